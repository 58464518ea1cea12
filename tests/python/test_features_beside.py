# SPDX-License-Identifier: Apache-2.0
"""kvferry as one of a ``MultiConnector``'s, beside a connector that loads synchronously, or a second kvferry.

And beside vLLM's events of its own prefix cache.
"""

from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, expected_tokens
from scenarios import MODELS, PROMPTS, SLOW_LOADS, Make, again, assert_at_rest, start_loading, store_all
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.request import RequestStatus

# vLLM's: on disk, loads in the step that computes, whole prompts only (tokens below the last, less one block).
EXAMPLE = "ExampleConnector"
NUM_EXAMPLE_HITS = [96, 144, 32]


def kvferry(**extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "KvFerryConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0, **extra},
    }


@pytest.fixture
def example(tmp_path: Path) -> dict[str, Any]:
    """Configuration of the connector that loads synchronously."""
    storage = tmp_path / "example"
    storage.mkdir()
    return {
        "kv_connector": EXAMPLE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(storage)},
    }


def multi(make: Make, *children: dict[str, Any], **spec: Any) -> ToyEngine:
    is_hybrid = all(child["kv_connector"] != EXAMPLE for child in children)
    return make(
        {"connectors": list(children)},
        connector="MultiConnector",
        connector_module=None,
        hybrid_manager=is_hybrid,
        max_num_batched_tokens=512,  # vLLM's example saves what the first chunk of a prompt has, as if it were all
        **spec,
    )


def hits(engine: ToyEngine, suffix: str) -> list[int]:
    return [engine.external_hit_tokens[request_id + suffix] for request_id in PROMPTS]


def take_turn(engine: ToyEngine, suffix: str, expected: dict[str, list[int]]) -> None:
    """Ask for the prompts again, and leave their blocks outside the engine only."""
    tokens = engine.generate(again(suffix))
    assert [tokens[request_id + suffix] for request_id in PROMPTS] == list(expected.values())
    engine.settle_stores()
    assert_at_rest(engine)
    engine.drop_gpu_cache()


@pytest.mark.parametrize("is_first", [True, False], ids=["kvferry first", "kvferry second"])
def test_first_connector_that_has_the_prefix_loads_it(
    make: Make, expected: dict[str, list[int]], example: dict[str, Any], is_async: bool, is_first: bool
) -> None:
    children = [kvferry(), example]
    engine = multi(make, *(children if is_first else reversed(children)), async_scheduling=is_async)
    store_all(engine)
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert hits(engine, "2") == ([96, 144, 32] if is_first else NUM_EXAMPLE_HITS)
    assert (engine.snapshot()["loaded"] > 0) == is_first
    engine.settle_stores()
    assert_at_rest(engine)


def test_what_the_other_connector_loaded_goes_to_the_tier(
    make: Make, expected: dict[str, list[int]], example: dict[str, Any], is_async: bool
) -> None:
    engine = multi(make, kvferry(), example, async_scheduling=is_async)
    store_all(engine)
    # Of kvferry alone: a reset of all would empty the other one too, if that could be emptied.
    assert engine.scheduler.connector.sub_connectors[0].reset_cache()
    engine.generate(again("2"))
    assert hits(engine, "2") == NUM_EXAMPLE_HITS
    assert engine.snapshot()["loaded"] == 0
    engine.settle_stores()
    engine.drop_gpu_cache()
    tokens = engine.generate(again("3"))
    assert [tokens[request_id + "3"] for request_id in PROMPTS] == list(expected.values())
    assert hits(engine, "3") == [96, 144, 32]
    assert engine.snapshot()["loaded"] > 0
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.parametrize("is_first", [True, False], ids=["kvferry first", "kvferry second"])
def test_failed_load_is_taken_over_or_computed(
    make: Make, expected: dict[str, list[int]], example: dict[str, Any], is_async: bool, is_first: bool
) -> None:
    failing = kvferry(host_link={"fail_probability": 0.3, "seed": 1})
    children = [failing, example] if is_first else [example, failing]
    engine = multi(make, *children, async_scheduling=is_async)
    for turn in range(8 if not is_first else 100):
        take_turn(engine, str(turn), expected)
        if turn >= 8 and engine.failed_loads:
            break
    assert (len(engine.failed_loads) > 0) == is_first


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("failing", [0, 1])
def test_two_tiers_beside_each_other_lose_no_load(
    make: Make, folder: Path, is_async: bool, failing: int, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    # The first one keeps a prompt or two only, so that both have to load.
    children = [
        kvferry(cpu_bytes_to_use=12 * 6144, eviction="lru", admission="always"),
        kvferry(),
    ]
    children[failing]["kv_connector_extra_config"]["host_link"] = {"fail_probability": 0.2, "seed": 2}
    engine = multi(make, *children, async_scheduling=is_async, world_size=2, **model)
    for turn in range(100):
        take_turn(engine, str(turn), expected)
        views = [child.scheduler_side.engine.snapshot() for child in engine.scheduler.connector.sub_connectors]
        if turn >= 8 and engine.failed_loads and all(view["loaded"] > 0 for view in views):
            break
    else:
        pytest.fail(f"not both have loaded, or none failed: {views}")
    for view in views:
        assert (view["num_loads_in_flight"], view["num_leased"], view["num_tombstones"]) == (0, 0, 0)


def test_abort_while_loading_beside_another_connector_frees_the_blocks(
    make: Make, example: dict[str, Any], is_async: bool
) -> None:
    engine = multi(make, kvferry(host_link=SLOW_LOADS), example, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.abort("a2")
    engine.run()
    assert engine.finished["a2"].status == RequestStatus.FINISHED_ABORTED
    assert_at_rest(engine)


def test_figures_reach_the_log_through_the_wrapper(make: Make, example: dict[str, Any]) -> None:
    engine = multi(make, example, kvferry())
    store_all(engine)
    engine.generate(again("2"))  # their ends are when the figures are told
    total = MultiConnector.build_kv_connector_stats()
    assert total is not None
    for data in engine.connector_stats:
        # As the process that logs does it, which knows the connectors by their names only.
        one = MultiConnector.build_kv_connector_stats(data)
        assert one is not None
        total.aggregate(one)
    assert total.reduce()["KvFerryConnector"]["stored_blocks"] > 0


def test_events_of_the_engines_own_cache_go_on_beside_the_tier(
    make: Make, expected: dict[str, list[int]], is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(kv_events=True, async_scheduling=is_async)
    batches: list[Any] = []
    monkeypatch.setattr(engine.scheduler.kv_event_publisher, "publish", batches.append)
    store_all(engine)
    tokens = engine.generate(again("2"))
    engine.drop_gpu_cache()
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert hits(engine, "2") == [96, 144, 32]
    events = [event for batch in batches for event in batch.events]
    stored = [event for event in events if isinstance(event, BlockStored)]
    # Blocks that were computed, and those that came from the tier and are in the engine's cache again.
    assert sum(len(event.block_hashes) for event in stored) >= 2 * (96 + 144 + 32) // 16
    assert any(isinstance(event, AllBlocksCleared | BlockRemoved) for event in events)
    engine.settle_stores()
    assert_at_rest(engine)
