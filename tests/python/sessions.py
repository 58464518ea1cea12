# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions: requests whose client sends their input turn by turn, as vLLM's ``AsyncLLM.generate`` does."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import vllm
from harness import ToyEngine
from vllm.v1.request import Request

# The last token of a turn, which is sampled and not computed, makes room for the next turn's first one. vLLM before
# 0.32 leaves the hash of a block that it ended, and so caches other tokens under it: a fault of vLLM's.
TAKES_HASHES_BACK = [int(part) for part in vllm.__version__.split(".")[:2]] >= [0, 32]


def begin_session(
    engine: ToyEngine,
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int,
    stops: Collection[int] = (),
    extra_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Request:
    """Add a session with its first turn. At the end of a turn it keeps its blocks and waits for the next one.

    A turn ends after `max_tokens` tokens, or with the first of `stops`.
    """
    return engine.add(
        request_id,
        prompt,
        max_tokens,
        options={"resumable": True, **options},
        stop_token_ids=sorted(stops),
        extra_args=dict(extra_args or {}),
    )


def add_turn(
    engine: ToyEngine, request_id: str, tokens: Sequence[int], max_tokens: int, stops: Collection[int] = ()
) -> None:
    """Send a session's next turn, which begins at once or when the running one has ended.

    vLLM keeps what a turn has sampled and computed, which is all but its last token.
    """
    turn = engine.make_request(
        request_id, tokens, max_tokens, options={"resumable": True}, stop_token_ids=sorted(stops)
    )
    engine.scheduler.add_request(turn)


def close_session(engine: ToyEngine, request_id: str) -> None:
    """Tell the engine that no turn follows: the session ends with the last one that was sent."""
    engine.scheduler.add_request(engine.make_request(request_id, [0]))
