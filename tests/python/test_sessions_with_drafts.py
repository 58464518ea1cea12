# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions of models with recurrent state and drafts: vLLM goes on from a wrong state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, WrongKvError, expected_tokens, prompt_of
from scenarios import RECURRENT, STORE_ALL, Make
from vllm.v1.request import RequestStatus

MODEL: dict[str, Any] = {**RECURRENT, "retention_interval": None, "num_blocks": 129, "max_model_len": 256}
BLOCK = 16


def right_drafts(text: list[int]) -> Callable[[str, int, int], list[int]]:
    """Drafts that hold, but for every seventh."""

    def drafts(request_id: str, position: int, num_drafts: int) -> list[int]:
        end = position + num_drafts
        return [text[at] if at % 7 and at < len(text) else -1 for at in range(position, end)]

    return drafts


def live(engine: ToyEngine, turns: list[list[int]], texts: dict[str, list[int]]) -> list[int]:
    """Run a session of several turns; return all of its tokens but the last."""
    for turn in turns:
        request = engine.make_request("s", turn, 10, {"resumable": True})
        engine.requests.setdefault("s", request)
        engine.scheduler.add_request(request)
        engine.run_until(lambda: engine.requests["s"].status == RequestStatus.WAITING_FOR_STREAMING_REQ)
    return list(engine.requests["s"].all_token_ids)


def test_vllm_goes_on_from_a_wrong_state_without_kvferry(folder: Path) -> None:
    # docs/upstream/streaming-session-drafts.md. When this fails, vLLM is mended: store these turns again.
    text = prompt_of(1, 40)
    text += expected_tokens(folder, {"a": text}, max_tokens=10, **MODEL)["a"]
    engine = ToyEngine(folder, ToySpec(**{**MODEL, "num_drafts": 3, "extra_config": None}))
    engine.workers[0].model.drafts = right_drafts(text)
    with pytest.raises(WrongKvError, match="wrong state"):
        live(engine, [prompt_of(1, 40), prompt_of(2, 30)], {})


def test_of_a_sessions_later_turns_no_wrong_state_is_stored(make: Make, folder: Path) -> None:
    text = prompt_of(1, 40)
    text += expected_tokens(folder, {"a": text}, max_tokens=10, **MODEL)["a"]
    engine = make(STORE_ALL, **{**MODEL, "num_drafts": 3})
    model = engine.workers[0].model
    model.drafts = right_drafts(text)
    model.check_kv = False
    tokens = live(engine, [prompt_of(1, 40), prompt_of(2, 60), prompt_of(3, 40)], {})
    engine.abort("s")
    engine.settle_stores()
    engine.drop_gpu_cache()
    model.check_kv = True
    found = 0
    for boundary in range(BLOCK, len(tokens), BLOCK):
        engine.generate({f"b{boundary}": [*tokens[:boundary], 7]}, max_tokens=1)
        found += engine.external_hit_tokens[f"b{boundary}"] > 0
        engine.settle_stores()
        assert engine.scheduler.reset_prefix_cache(reset_connector=False)
    assert found, "nothing of the first turn was stored"
