# SPDX-License-Identifier: Apache-2.0
"""Of windows and chunks the tier stores what the engine's own cache retains, or more where it is told to."""

from typing import Any

import pytest
from event_mirror import CachedHashes, EventMirror
from harness import ToyEngine, prompt_of
from scenarios import CHUNKED, HYBRID, STORE_ALL, Make, assert_at_rest
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec

# A ring that takes all, so that no block of a window slides out before its turn.
ROOMY: dict[str, Any] = {"cpu_bytes_to_use": "64MiB", "staging_bytes": "4MiB", **STORE_ALL}
LONG: dict[str, Any] = {"num_blocks": 400, "max_model_len": 600, "max_num_batched_tokens": 96}


@pytest.fixture(autouse=True)
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events name blocks by what the pool finds them by."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


def window_groups(engine: ToyEngine) -> list[int]:
    groups = enumerate(engine.kv_cache_config.kv_cache_groups)
    return [number for number, group in groups if not isinstance(group.kv_cache_spec, FullAttentionSpec)]


def run(make: Make, is_async: bool, retention: object, spec: dict[str, Any]) -> tuple[ToyEngine, EventMirror, Any]:
    engine = make({**ROOMY, "retention": retention}, async_scheduling=is_async, kv_events=True, **spec)
    mirror, cached = EventMirror(engine), CachedHashes(engine)
    shared = prompt_of(3, 300)
    engine.generate({"a": prompt_of(1, 500), "b": shared + prompt_of(4, 40)}, max_tokens=20)
    engine.generate({"c": shared + prompt_of(5, 100)}, max_tokens=20)
    engine.settle_stores()
    cached.look(engine)
    assert_at_rest(engine)
    return engine, mirror, cached


@pytest.mark.parametrize("interval", [0, 128, None])
@pytest.mark.parametrize(
    "spec", [HYBRID, CHUNKED, {**HYBRID, "layer_pattern": "hw"}], ids=["window", "chunk", "coarse"]
)
def test_what_the_engine_retains_is_stored_and_no_more(
    make: Make, is_async: bool, spec: dict[str, Any], interval: int | None
) -> None:
    engine, mirror, cached = run(make, is_async, "engine", {**spec, **LONG, "retention_interval": interval})
    for group in window_groups(engine):
        held, retained = mirror.held.get(group, set()), cached.by_group.get(group, set())
        assert held <= retained
        # With asynchronous scheduling the last block of a text is cached after its request has ended, or never.
        assert len(retained - held) <= (3 if is_async else 0)


@pytest.mark.parametrize(("num_unseen", "num_more"), [(2, 0), (10, 1), (30, 2)])
def test_with_what_the_engine_retains_of_a_window_goes_what_it_keeps_beyond_it(
    make: Make, is_async: bool, num_unseen: int, num_more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drafters of several modules make vLLM do so.
    monkeypatch.setattr(VllmConfig, "num_prefill_lookahead_tokens", num_unseen + 1)
    engine, mirror, cached = run(make, is_async, "engine", {**HYBRID, **LONG})
    (group,) = window_groups(engine)
    held, retained = mirror.held[group], cached.by_group[group]
    # Three prompts end, and two begin alike: of each end a window.
    assert len(retained - held) <= (3 if is_async else 0)
    assert len(held - retained) >= 3 * num_more
    assert len(held) <= len(retained) + 4 * num_more
    engine.drop_gpu_cache()
    engine.generate({"again": prompt_of(1, 500)}, max_tokens=2)
    assert engine.external_hit_tokens["again"] == 496


def test_dense_stores_all_and_an_interval_some(make: Make) -> None:
    spec = {**HYBRID, **LONG}
    numbers = {}
    for retention in ("dense", 128, "engine"):
        engine, mirror, _ = run(make, False, retention, spec)
        (group,) = window_groups(engine)
        numbers[retention] = len(mirror.held[group])
    assert numbers["dense"] > numbers[128] > numbers["engine"] > 0


def test_hit_at_an_interval_is_found(make: Make) -> None:
    spec = {**HYBRID, **LONG}
    prompt = prompt_of(1, 500)
    hits = {}
    for retention in ("dense", 128, "engine"):
        engine = make({**ROOMY, "retention": retention}, **spec)
        engine.generate({"a": prompt}, max_tokens=2)
        engine.settle_stores()
        engine.scheduler.reset_prefix_cache()
        # It leaves the first prompt behind its 400th token.
        engine.generate({"b": prompt[:400] + prompt_of(2, 40)}, max_tokens=2)
        hits[retention] = engine.external_hit_tokens.get("b", 0)
        assert_at_rest(engine)
    assert hits == {"dense": 400, 128: 384, "engine": 0}


@pytest.mark.parametrize(
    "spec", [HYBRID, CHUNKED, {**HYBRID, "layer_pattern": "hw"}], ids=["window", "chunk", "coarse"]
)
def test_a_prefix_that_only_the_tier_knows_to_be_shared_is_found_the_third_time(
    make: Make, is_async: bool, spec: dict[str, Any]
) -> None:
    engine = make(ROOMY, async_scheduling=is_async, **{**spec, **LONG})
    shared = prompt_of(3, 288)
    for name in "abc":
        engine.generate({name: shared + prompt_of(ord(name), 70)}, max_tokens=2)
        engine.settle_stores()
        engine.drop_gpu_cache()
    hits = [engine.external_hit_tokens.get(name, 0) for name in "abc"]
    assert hits == [0, 0, 288]
    assert_at_rest(engine)


def test_a_conversation_goes_on_where_its_last_prompt_ended(make: Make, is_async: bool) -> None:
    engine = make(ROOMY, async_scheduling=is_async, **{**HYBRID, **LONG})
    history: list[int] = []
    for turn in range(4):
        ends = len(history)
        history += prompt_of(turn, 90)
        answer = engine.generate({f"turn {turn}": history}, max_tokens=30)[f"turn {turn}"]
        # All of the last prompt but what its last block lacked; its answer is computed again.
        last_prompt = (ends - 30 - 1) // 16 * 16 if turn else 0
        assert engine.external_hit_tokens.get(f"turn {turn}", 0) == last_prompt
        history += answer
        engine.settle_stores()
        engine.drop_gpu_cache()
    assert_at_rest(engine)
