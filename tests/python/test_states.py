# SPDX-License-Identifier: Apache-2.0
"""Recurrent state: what comes back out of the tier is the state of that very boundary."""

from pathlib import Path
from typing import Any

import pytest
from harness import WrongKvError, expected_tokens, prompt_of
from scenarios import PROMPTS, RECURRENT, STORE_ALL, Make, again, assert_at_rest, leave_to_the_tier
from vllm.v1.core.kv_cache_utils import get_group_id

BLOCK = 16
DENSE = {**RECURRENT, "retention_interval": None}


def whole_blocks(num_tokens: int) -> int:
    """Tokens of a prompt that can be loaded: its last one is computed in any case."""
    return (num_tokens - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("pattern", ["s", "fss", "ws", "ms", "fcs"])
def test_prompts_come_back_up_to_their_last_boundary(make: Make, folder: Path, is_async: bool, pattern: str) -> None:
    model = {**RECURRENT, "layer_pattern": pattern, "chunk_size": 48, "num_blocks": 81}
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make(STORE_ALL, async_scheduling=is_async, **model)
    assert engine.generate(PROMPTS) == expected
    leave_to_the_tier(engine)
    found = engine.generate(again("2"))
    assert found == {f"{name}2": tokens for name, tokens in expected.items()}
    for name, prompt in PROMPTS.items():
        assert engine.external_hit_tokens[f"{name}2"] == whole_blocks(len(prompt))
    assert_at_rest(engine)


def test_the_state_where_prompts_part_is_kept(make: Make, folder: Path, is_async: bool) -> None:
    shared = prompt_of(7, 70)
    prompts = {name: shared + prompt_of(60 + i, 40) for i, name in enumerate("abc")}
    expected = expected_tokens(folder, prompts, **RECURRENT)
    engine = make(STORE_ALL, async_scheduling=is_async, **RECURRENT)
    # The second one tells the engine where they part.
    for name in "ab":
        assert engine.generate({name: prompts[name]})[name] == expected[name]
    leave_to_the_tier(engine)
    assert engine.generate({"c": prompts["c"]})["c"] == expected["c"]
    assert engine.external_hit_tokens["c"] == whole_blocks(len(shared))


def test_a_state_that_the_tier_has_lost_is_taken_from_the_engines_cache(make: Make, is_async: bool) -> None:
    engine = make(STORE_ALL, async_scheduling=is_async, **RECURRENT)
    engine.generate(PROMPTS)
    engine.settle_stores()
    assert engine.scheduler.reset_connector_cache()
    engine.generate(again("2"))
    assert engine.snapshot()["hit_tokens"] == 0, "the engine had them all"
    leave_to_the_tier(engine)
    engine.generate(again("3"))
    for name, prompt in PROMPTS.items():
        assert engine.external_hit_tokens[f"{name}3"] == whole_blocks(len(prompt))


@pytest.mark.parametrize("wrong_every", [5, 7])
@pytest.mark.parametrize("world_size", [1, 2])
def test_states_that_drafts_ran_over_are_those_of_their_boundaries(
    make: Make, folder: Path, is_async: bool, world_size: int, wrong_every: int
) -> None:
    # Room for states that wait for a step behind their drafts, however late the staging ring is.
    model = {**DENSE, "num_blocks": 129, "max_model_len": 256}
    expected = expected_tokens(folder, PROMPTS, max_tokens=90, **model)
    texts = {name: prompt + expected[name] for name, prompt in PROMPTS.items()}
    engine = make(STORE_ALL, num_drafts=3, async_scheduling=is_async, world_size=world_size, **model)

    def drafts(request_id: str, position: int, num_drafts: int) -> list[int]:
        # Steps end, and begin, on boundaries and around them.
        text = texts[request_id[0]]
        end = position + num_drafts
        return [text[at] if at % wrong_every and at < len(text) else -1 for at in range(position, end)]

    for worker in engine.workers:
        worker.model.drafts = drafts
    assert engine.generate(PROMPTS, max_tokens=90) == expected
    leave_to_the_tier(engine)
    # A request for each boundary: it begins with what is loaded, and compares.
    found = set()
    for name, text in texts.items():
        for boundary in range(BLOCK, len(text), BLOCK):
            request_id = f"{name}-{boundary}"
            engine.generate({request_id: [*text[:boundary], 7]}, max_tokens=1)
            if engine.external_hit_tokens[request_id] == boundary:
                found.add((name, boundary))
            leave_to_the_tier(engine)
    # Which states the engine still has when their drafts are settled is up to it.
    assert [boundary for name, boundary in found if boundary > len(PROMPTS[name])], found
    assert_at_rest(engine)


def test_every_copy_may_fail(make: Make, folder: Path, is_async: bool) -> None:
    expected = expected_tokens(folder, PROMPTS, **RECURRENT)
    for nth in range(1, 100):
        extra: dict[str, Any] = {"host_link": {"fail_nth": nth}, "copy_path": "per_run", **STORE_ALL}
        engine = make(extra, async_scheduling=is_async, **RECURRENT)
        engine.generate(PROMPTS)
        leave_to_the_tier(engine)
        found = engine.generate(again("2"))
        assert found == {f"{name}2": tokens for name, tokens in expected.items()}
        engine.settle_stores()
        assert_at_rest(engine)
        view = engine.snapshot()
        if view["failed_stores"] == view["failed_loads"] == 0:
            break
    assert nth > 5, "no copy failed"


def test_the_toy_notices_another_state(make: Make) -> None:
    engine = make({**STORE_ALL, "verify": "off"}, **{**RECURRENT, "layer_pattern": "s"})
    engine.generate(PROMPTS)
    leave_to_the_tier(engine)
    worker = engine.workers[0].connector.worker_side.engine
    for slot in range(1, len(PROMPTS)):
        worker.unsafe_copy_slot(0, slot)
    with pytest.raises(WrongKvError, match="wrong state behind"):
        engine.generate(again("2"))


def test_another_state_gives_other_tokens(make: Make, folder: Path) -> None:
    model = {**RECURRENT, "layer_pattern": "s"}
    engine = make({**STORE_ALL, "verify": "off"}, **model)
    engine.generate(PROMPTS)
    leave_to_the_tier(engine)
    worker = engine.workers[0].connector.worker_side.engine
    for slot in range(1, len(PROMPTS)):
        worker.unsafe_copy_slot(0, slot)
    engine.workers[0].model.check_kv = False
    found = engine.generate(again("2"))
    expected = expected_tokens(folder, PROMPTS, **model)
    assert sum(found[f"{name}2"] != tokens for name, tokens in expected.items()) == len(PROMPTS) - 1


@pytest.mark.parametrize("pattern", ["fss", "ms", "fws"])
def test_blocks_that_the_engine_has_are_not_loaded_with_a_state_that_it_lacks(
    make: Make, folder: Path, is_async: bool, pattern: str
) -> None:
    model = {**DENSE, "layer_pattern": pattern, "num_blocks": 81}
    text = prompt_of(3, 130)
    expected = expected_tokens(folder, {"r": text}, **model)["r"]
    engine = make({**STORE_ALL, "retention": "dense"}, async_scheduling=is_async, **model)
    engine.generate({"first": prompt_of(9, 40)})  # Its ranks say how their blocks lie; nothing is stored before.
    engine.generate({"long": text})
    leave_to_the_tier(engine)
    engine.generate({"short": text[:100]})
    # The engine holds 96 tokens; then it loses all of their states.
    pool = engine.scheduler.kv_cache_manager.block_pool
    states = engine.state_groups
    pool.evict_blocks(
        {
            block.block_id
            for block in pool.blocks
            if block.block_hash is not None and get_group_id(block.block_hash) in states
        }
    )
    assert engine.generate({"r": text})["r"] == expected
    # vLLM asks so only of a model without windows.
    has_windows = "w" in pattern
    assert engine.external_hit_tokens["r"] == (128 if has_windows else 32)
    assert_at_rest(engine)
