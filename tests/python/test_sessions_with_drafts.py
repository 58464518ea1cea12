# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions of models with recurrent state: behind drafts, or a stop, vLLM goes on from a wrong state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import (
    ToyEngine,
    ToySpec,
    WrongKvError,
    expected_tokens,
    make_kv_cache_configs,
    make_vllm_config,
    prompt_of,
)
from kvferry.vllm import preflight
from scenarios import MODELS, RECURRENT, STORE_ALL, Make
from sessions import TAKES_HASHES_BACK
from vllm.v1.request import RequestStatus

MODEL: dict[str, Any] = {**RECURRENT, "retention_interval": None, "num_blocks": 129, "max_model_len": 256}
BLOCK = 16


def right_drafts(text: list[int]) -> Callable[[str, int, int], list[int]]:
    """Drafts that hold, but for every seventh."""

    def drafts(request_id: str, position: int, num_drafts: int) -> list[int]:
        end = position + num_drafts
        return [text[at] if at % 7 and at < len(text) else -1 for at in range(position, end)]

    return drafts


def live(engine: ToyEngine, turns: list[list[int]], **params: Any) -> list[int]:
    """Run a session of several turns; return all of its tokens but the last."""
    for turn in turns:
        request = engine.make_request("s", turn, 10, {"resumable": True}, **params)
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
        live(engine, [prompt_of(1, 40), prompt_of(2, 30)])


@pytest.mark.parametrize("behind", ["drafts", "a stop"])
def test_of_a_sessions_later_turns_no_wrong_state_is_stored(make: Make, folder: Path, behind: str) -> None:
    answer = expected_tokens(folder, {"a": prompt_of(1, 40)}, max_tokens=10, **MODEL)["a"]
    text = prompt_of(1, 40) + answer
    engine = make(STORE_ALL, **MODEL, **({"num_drafts": 3} if behind == "drafts" else {"async_scheduling": True}))
    stops = {"stop_token_ids": [answer[4]]} if behind == "a stop" else {}
    model = engine.workers[0].model
    model.drafts = right_drafts(text)
    model.check_kv = False
    tokens = live(engine, [prompt_of(1, 40), prompt_of(2, 60), prompt_of(3, 40)], **stops)
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


def test_vllm_goes_on_from_the_state_of_a_step_under_way_without_kvferry(folder: Path) -> None:
    # docs/upstream/streaming-session-drafts.md, the same with asynchronous scheduling and no draft.
    stop = expected_tokens(folder, {"a": prompt_of(1, 40)}, max_tokens=10, **MODEL)["a"][4]
    engine = ToyEngine(folder, ToySpec(**{**MODEL, "async_scheduling": True, "extra_config": None}))
    with pytest.raises(WrongKvError, match="wrong state"):
        live(engine, [prompt_of(1, 40), prompt_of(2, 30)], stop_token_ids=[stop])


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("model", [*MODELS, RECURRENT])
def test_later_turns_are_stored_where_vllm_gets_them_right(
    folder: Path, model: dict[str, Any], num_drafts: int, is_async: bool
) -> None:
    spec = ToySpec(**{**model, "num_drafts": num_drafts, "async_scheduling": is_async})
    config = make_vllm_config(folder, spec)
    groups = make_kv_cache_configs(config, spec)[0].kv_cache_groups
    is_right = TAKES_HASHES_BACK and not (model is RECURRENT and (num_drafts or is_async))
    assert preflight.can_store_later_turns(config, groups) == is_right
