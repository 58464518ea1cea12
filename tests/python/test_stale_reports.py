# SPDX-License-Identifier: Apache-2.0
"""What ends early or late, and for whom: a report meets the incarnation that it belongs to, or nobody."""

from pathlib import Path

import pytest
from harness import ToyEngine, expected_tokens
from scenarios import MODELS, PROMPTS, Make, again, assert_at_rest, store_all
from vllm.v1.request import RequestStatus


def make_silent(make: Make, is_async: bool, model: dict[str, object]) -> ToyEngine:
    """Make an engine whose rank has registered, and keeps to itself what ends from now on."""
    engine = make(async_scheduling=is_async, **model)
    engine.generate({"warm up": PROMPTS["c"]})
    engine.settle_stores()
    engine.workers[0].hold_reports()
    return engine


@pytest.mark.parametrize("model", MODELS)
def test_store_that_is_heard_of_when_its_id_is_in_use_again_matches_nobody_else(
    make: Make, folder: Path, is_async: bool, model: dict[str, object]
) -> None:
    # vllm#51637: the same id three times, with another prompt each, while the first one's stores are under way.
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make_silent(make, is_async, model)
    for name in ("a", "b"):
        assert engine.generate({"id": PROMPTS[name]})["id"] == expected[name]
    engine.add("id", PROMPTS["c"], max_tokens=4)
    engine.step()
    engine.workers[0].wait_for_copies()
    engine.workers[0].release_reports()
    engine.run()
    assert engine.finished["id"].tokens == expected["c"]
    engine.settle_stores()
    engine.drop_gpu_cache()
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert engine.external_hit_tokens["a2"] == 96
    assert_at_rest(engine)


@pytest.mark.parametrize("model", MODELS)
def test_store_of_a_life_before_preemption_matches_nobody_else(
    make: Make, folder: Path, is_async: bool, model: dict[str, object]
) -> None:
    # vllm#51637
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make_silent(make, is_async, model)
    request = engine.add("b", PROMPTS["b"])
    engine.step()
    engine.drain_outputs()
    assert engine.snapshot()["num_stores_in_flight"] > 0
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert request.status == RequestStatus.PREEMPTED
    engine.step()
    engine.workers[0].wait_for_copies()
    engine.workers[0].release_reports()
    engine.run()
    assert engine.finished["b"].tokens == expected["b"]
    engine.settle_stores()
    engine.drop_gpu_cache()
    assert engine.generate({"b2": PROMPTS["b"]})["b2"] == expected["b"]
    assert engine.external_hit_tokens["b2"] == 144
    assert_at_rest(engine)


def test_load_that_ends_in_the_step_that_began_it_is_not_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]], is_async: bool
) -> None:
    # ai-dynamo/dynamo#5072: the completion comes before the engine has made its record of the transfer.
    engine = make(async_scheduling=is_async)
    store_all(engine)
    worker = engine.workers[0]
    save = worker.connector.wait_for_save

    def save_and_wait() -> None:
        save()
        worker.wait_for_copies()

    monkeypatch.setattr(worker.connector, "wait_for_save", save_and_wait)
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert engine.external_hit_tokens["b2"] == 144
    assert_at_rest(engine)


@pytest.mark.parametrize("delays", [(25, 25), (0, 40), (40, 0)])
def test_load_that_the_engine_hears_of_many_steps_late_is_not_lost(
    make: Make, expected: dict[str, list[int]], is_async: bool, delays: tuple[int, int]
) -> None:
    # ai-dynamo/dynamo#5072, and ranks that are out of step with each other.
    engine = make(async_scheduling=is_async, world_size=2)
    store_all(engine)
    for worker, delay in zip(engine.workers, delays, strict=True):
        worker.report_delay = delay
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert engine.external_hit_tokens["b2"] == 144
    assert_at_rest(engine)
