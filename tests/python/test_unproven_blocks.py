# SPDX-License-Identifier: Apache-2.0
"""Blocks that vLLM's cache has under a hash, and that hold something else: the tier must not make them last."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from scenarios import HYBRID, PROMPTS, Make, again, assert_at_rest
from toy_hashes import PREEMPTED_WHILE_SCHEDULED
from toy_sibling import SCRIPTS, Script, lend_models, siblings
from vllm.v1.request import RequestStatus

SMALL = {"max_model_len": 112}
NUM_TOKENS = 40
ROOMY_HYBRID = {**HYBRID, "num_blocks": 97}


def ask_again(engine: ToyEngine, prompts: dict[str, Sequence[int]], expected: dict[str, list[int]]) -> None:
    """Ask for the prompts when only the tier has them, and for texts that go on behind them."""
    engine.settle_stores()
    engine.drop_gpu_cache()
    for name, prompt in prompts.items():
        text = [*prompt, *expected[name]]
        engine.generate({f"{name}-again": text[:-1]}, max_tokens=1)
        assert engine.finished[f"{name}-again"].tokens == text[-1:]
        engine.settle_stores()
        engine.drop_gpu_cache()


@pytest.mark.parametrize(
    ("model", "num_drafts", "sizes"),
    [pytest.param({}, 3, range(10, 14), id="drafts"), pytest.param(HYBRID, 0, range(16, 18), id="groups")],
)
def test_a_block_that_was_hashed_and_never_computed_is_not_stored(
    make: Make, folder: Path, model: dict[str, Any], num_drafts: int, sizes: range
) -> None:
    found = 0
    spec = {**model, **SMALL, "num_drafts": num_drafts}
    for num_blocks in sizes:
        for low, high in [(61, 60), (62, 62), (60, 62), (63, 60)]:
            prompts = {"low": prompt_of(1, low), "high": prompt_of(2, high)}
            expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **spec)
            engine = make(policy="priority", **{**spec, "num_blocks": num_blocks})
            engine.add("low", prompts["low"], NUM_TOKENS, {"priority": 2})
            engine.step()
            engine.add("high", prompts["high"], NUM_TOKENS, {"priority": 0})
            engine.run()
            assert {fault for fault, _ in engine.hashes.faults} <= {PREEMPTED_WHILE_SCHEDULED}
            if not engine.hashes.faults:
                continue
            found += 1
            ask_again(engine, prompts, expected)
            assert_at_rest(engine)
            if found == 3:
                return
    pytest.skip("vLLM's fault was not met: is it mended?") if not found else None


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Script:
    """What the sibling of this test does."""
    SCRIPTS[request.node.name] = script = Script(prompts=list(PROMPTS.values()))
    return script


def engine_of(make: Make, name: str, **spec: Any) -> ToyEngine:
    engine = make(**{**siblings(name), **spec})
    lend_models(engine)
    return engine


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("loads_async", [False, True], ids=["sync-load", "async-load"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_a_sibling_fails_to_load_is_not_kept(
    make: Make,
    request: pytest.FixtureRequest,
    script: Script,
    expected: dict[str, list[int]],
    is_async: bool,
    loads_async: bool,
    policy: str,
    world_size: int,
) -> None:
    script.is_async = loads_async
    script.fail_share = 1.0
    engine = engine_of(
        make, request.node.name, async_scheduling=is_async, load_failure_policy=policy, world_size=world_size
    )
    engine.generate({"warm": prompt_of(9, 20)})  # until the ranks have registered, nothing is stored
    del engine.finished["warm"], engine.requests["warm"]
    engine.generate(PROMPTS)
    assert script.num_failures >= len(PROMPTS)
    statuses = {end.status for end in engine.finished.values()}
    assert statuses == {RequestStatus.FINISHED_ERROR if policy == "fail" else RequestStatus.FINISHED_LENGTH_CAPPED}
    script.prompts.clear()
    engine.settle_stores()
    engine.drop_gpu_cache()
    for turn in "23":
        tokens = engine.generate(again(turn))
        assert [tokens[name + turn] for name in PROMPTS] == list(expected.values())
        engine.settle_stores()
        engine.drop_gpu_cache()
    assert_at_rest(engine)


@pytest.mark.parametrize("loads_async", [False, True], ids=["sync-load", "async-load"])
@pytest.mark.parametrize("model", [pytest.param({}, id="plain"), pytest.param(ROOMY_HYBRID, id="hybrid")])
def test_what_a_sibling_loads_goes_to_the_tier_once_it_has_come(
    make: Make,
    request: pytest.FixtureRequest,
    folder: Path,
    script: Script,
    is_async: bool,
    loads_async: bool,
    model: dict[str, Any],
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    script.is_async = loads_async
    engine = engine_of(make, request.node.name, async_scheduling=is_async, **model)
    engine.generate({"warm": prompt_of(9, 20)})
    assert engine.generate(PROMPTS) == expected
    assert script.num_loads == len(PROMPTS)
    script.prompts.clear()
    engine.settle_stores()
    engine.drop_gpu_cache()
    tokens = engine.generate(again("2"))
    assert [tokens[name + "2"] for name in PROMPTS] == list(expected.values())
    assert [engine.external_hit_tokens[name + "2"] for name in PROMPTS] == [96, 144, 32]
    assert_at_rest(engine)


def test_a_failed_load_of_several_groups_is_not_kept(
    make: Make, request: pytest.FixtureRequest, folder: Path, script: Script, is_async: bool
) -> None:
    # vLLM takes the failure of a synchronous load for one group only.
    expected = expected_tokens(folder, PROMPTS, **HYBRID)
    script.is_async = True
    script.fail_share = 0.5
    script.rng = random.Random(3)
    # Room for all: vLLM lets requests whose load failed wait for each other.
    engine = engine_of(make, request.node.name, async_scheduling=is_async, **ROOMY_HYBRID)
    engine.generate({"warm": prompt_of(9, 20)})
    for turn in range(6):
        tokens = engine.generate(again(str(turn)))
        assert [tokens[name + str(turn)] for name in PROMPTS] == list(expected.values())
        engine.settle_stores()
        engine.drop_gpu_cache()
    assert script.num_failures
    assert_at_rest(engine)
