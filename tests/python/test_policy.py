# SPDX-License-Identifier: Apache-2.0
"""What the tier keeps and stores when it is full, and that queued requests find what they will need."""

from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from scenarios import MODELS, PROMPTS, STORE_ALL, Make, assert_at_rest

# Of the plain model, and of the hybrid one, in each of whose groups are two of its four layers.
BLOCK_BYTES, HYBRID_BLOCK_BYTES = 6144, 4096
PROMPT_BLOCKS = 6  # Whole blocks of a prompt of 100 tokens.


def serve(engine: ToyEngine, request_id: str, prompt: list[int]) -> list[int]:
    """Run a request of which the engine's own cache has nothing, until its blocks are stored; return its tokens."""
    tokens = engine.generate({request_id: prompt})[request_id]
    engine.settle_stores()
    engine.drop_gpu_cache()
    return tokens


def make_queue(make: Make, is_async: bool, model: dict[str, Any], **extra: float) -> ToyEngine:
    """Make an engine that runs one request at a time: "queued" waits behind others that fill the tier.

    What "queued" needs is a quarter of the tier, and its oldest blocks.
    """
    slot_bytes = 2 * HYBRID_BLOCK_BYTES if model else BLOCK_BYTES  # Of both groups.
    config = {**STORE_ALL, "retention": "dense", "cpu_bytes_to_use": 4 * PROMPT_BLOCKS * slot_bytes, **extra}
    engine = make(config, max_num_seqs=1, num_blocks=64, async_scheduling=is_async, **model)
    engine.on_step = lambda engine: engine.workers[0].wait_for_copies()
    serve(engine, "first", PROMPTS["a"])
    for i in range(4):
        engine.add(f"pressure {i}", prompt_of(50 + i, 100))
    engine.add("queued", PROMPTS["a"])
    return engine


@pytest.mark.parametrize("model", MODELS)
def test_blocks_of_a_queued_request_survive_pressure(make: Make, is_async: bool, model: dict[str, Any]) -> None:
    hits = []
    for extra in ({}, {"max_awaited_share": 0}):
        engine = make_queue(make, is_async, model, **extra)
        assert (engine.snapshot()["num_awaited"] > 0) is (not extra)
        engine.run()
        assert engine.finished["queued"].tokens == engine.finished["first"].tokens
        hits.append(engine.external_hit_tokens["queued"])
        assert engine.snapshot()["num_awaited"] == 0, "the request has run"
        assert_at_rest(engine)
    assert hits == [96, 0]


@pytest.mark.parametrize("model", MODELS)
def test_abort_of_a_queued_request_ends_its_protection_at_once(
    make: Make, is_async: bool, model: dict[str, Any]
) -> None:
    engine = make_queue(make, is_async, model)
    num_awaited = engine.snapshot()["num_awaited"]
    engine.add("queued too", PROMPTS["a"])
    engine.abort("queued")
    assert engine.snapshot()["num_awaited"] == num_awaited, "another one waits for them"
    engine.abort("queued too")
    assert engine.snapshot()["num_awaited"] == 0
    engine.run()
    assert_at_rest(engine)


def test_default_keeps_a_part_of_what_comes_round_and_is_larger_than_the_tier(
    make: Make, folder: Path, is_async: bool
) -> None:
    prompts = {f"p{i}": prompt_of(30 + i, 100) for i in range(3)}
    expected = expected_tokens(folder, prompts)
    hits: dict[str, int] = {}
    for name, extra in {"default": {}, "lru": STORE_ALL}.items():
        engine = make({"cpu_bytes_to_use": (2 * PROMPT_BLOCKS + 2) * BLOCK_BYTES, **extra}, async_scheduling=is_async)
        for turn in range(12):
            for request_id, prompt in prompts.items():
                assert serve(engine, f"{request_id} {turn}", prompt) == expected[request_id]
        hits[name] = sum(engine.external_hit_tokens.values())
        view = engine.snapshot()
        assert (view["num_rule_switches_total"] > 0) is (name == "default")
        assert (view["skipped_declined"] > 0) is (name == "default")
        assert_at_rest(engine)
    # LRU keeps the beginnings of the prompts, and stores the rest again each time.
    assert hits["default"] > 1.5 * hits["lru"]


@pytest.mark.parametrize("extra", [{}, {"admission": "second_offer"}, {"eviction": "arc"}], ids=["default", "2", "arc"])
@pytest.mark.parametrize("model", MODELS)
def test_tier_that_is_larger_than_its_traffic_stores_everything(
    make: Make, is_async: bool, extra: dict[str, str], model: dict[str, Any]
) -> None:
    # The first requests come before any rank has registered.
    engine = make({"retention": "dense", **extra}, async_scheduling=is_async, **model)
    engine.generate(PROMPTS)
    engine.settle_stores()
    view = engine.snapshot()
    num_groups = len(engine.kv_cache_config.kv_cache_groups)
    # Before its rank registered some blocks slid out of the window.
    num_stored = view["stored"] + (view["skipped_reallocated"] if model else 0)
    assert num_stored == num_groups * sum((len(prompt) + 3) // 16 for prompt in PROMPTS.values())
    assert view["skipped_declined"] == view["num_evicted_total"] == 0
    engine.drop_gpu_cache()
    for request_id, prompt in PROMPTS.items():
        engine.generate({request_id + " again": prompt})
        assert engine.external_hit_tokens[request_id + " again"] == (len(prompt) - 1) // 16 * 16


def test_full_tier_stores_on_the_second_offer(make: Make, is_async: bool) -> None:
    engine = make(
        {"cpu_bytes_to_use": PROMPT_BLOCKS * BLOCK_BYTES, "admission": "second_offer"}, async_scheduling=is_async
    )
    serve(engine, "fills the tier", PROMPTS["a"])
    other = prompt_of(40, 100)
    serve(engine, "first offer", other)
    view = engine.snapshot()
    assert view["skipped_declined"] == PROMPT_BLOCKS
    assert view["num_evicted_total"] == 0
    serve(engine, "second offer", other)
    assert engine.external_hit_tokens["second offer"] == 0
    serve(engine, "third", other)
    assert engine.external_hit_tokens["third"] == 96
    assert engine.snapshot()["skipped_declined"] == PROMPT_BLOCKS
    assert_at_rest(engine)
