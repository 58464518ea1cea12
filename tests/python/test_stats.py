# SPDX-License-Identifier: Apache-2.0
"""What vLLM's log line and ``/metrics`` show of kvferry."""

from functools import partial
from typing import Any

import pytest
from harness import ToyEngine, prompt_of
from kvferry.vllm import KvFerryConnector, stats
from kvferry.vllm.stats import (
    METRICS,
    RANK_KEYS,
    SCHEDULER_KEYS,
    KvFerryStats,
    StatsSource,
    damage_keys,
    metric_of,
)
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from scenarios import Make


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are taken at every occasion."""
    monkeypatch.setattr(stats, "PERIOD_S", 0.0)


def told(engine: ToyEngine) -> dict[str, Any]:
    """Join what all sides have told, as the process does that logs it."""
    total = KvFerryStats()
    for data in engine.connector_stats:
        total = total.aggregate(KvFerryConnector.build_kv_connector_stats(data))
    return total.data


def test_every_key_is_of_a_metric() -> None:
    for key in (*SCHEDULER_KEYS.values(), *(f"{key}/0" for key in RANK_KEYS.values())):
        assert bool(metric_of(key).label) == ("/" in key)
    assert set(stats.LOGGED_KEYS) <= set(SCHEDULER_KEYS.values())
    by_rank = damage_keys(2)
    assert all(metric_of(key).label == "rank" for key in by_rank.values())
    told_as_figures = {name for name, metric in METRICS.items() if metric.kind is not Histogram}
    keys = (*SCHEDULER_KEYS.values(), *by_rank.values(), *RANK_KEYS.values())
    assert {key.partition("/")[0] for key in keys} == told_as_figures


def test_the_core_has_a_figure_for_every_key(make: Make) -> None:
    engine = make(world_size=2)
    assert {*SCHEDULER_KEYS, *damage_keys(2)} <= engine.scheduler.connector.scheduler_side.engine.snapshot().keys()
    for worker in engine.workers:
        known = {*worker.connector.worker_side.engine.stats(), *worker.connector.worker_side.engine.arena_figures()}
        assert set(RANK_KEYS) - {"numa_node", "on_node_ratio"} <= known


@pytest.mark.usefixtures("at_once")
def test_figures_of_all_sides_reach_the_log(make: Make, is_async: bool) -> None:
    engine = make(world_size=2, async_scheduling=is_async)
    prompt = prompt_of(1, 100)
    engine.generate({"a": prompt})
    engine.settle_stores()
    engine.drop_gpu_cache()
    engine.generate({"b": prompt})
    engine.settle_stores()
    figures = told(engine)
    slot_bytes = engine.workers[0].connector.worker_side.engine.slot_bytes
    assert figures["stored_blocks"] >= figures["loaded_blocks"] == 6
    assert figures["hit_tokens"] == 6 * 16
    for rank in range(2):
        assert figures[f"rank_loaded_bytes/{rank}"] == 6 * slot_bytes
        assert figures[f"rank_stored_bytes/{rank}"] == figures["stored_blocks"] * slot_bytes
        assert figures[f"rank_ready_blocks/{rank}"] == figures["tier_ready_blocks"] == figures["tier_size_blocks"]
    for key in ("queue_seconds", "device_seconds"):
        assert len(figures[f"{key}/load"]) == 2, "one load on each rank"
        assert len(figures[f"{key}/store"]) >= 2
        assert all(0 <= seconds < 60 for kind in ("load", "store") for seconds in figures[f"{key}/{kind}"])
    assert min(figures["device_seconds/load"]) > 0
    states = [figures[key] for key in SCHEDULER_KEYS.values() if key.startswith("tier_blocks/") and key in figures]
    assert sum(states) == figures["tier_ready_blocks"]


def test_the_core_tells_each_change_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    core = engine.scheduler.connector.scheduler_side.engine
    monkeypatch.setattr(StatsSource, "take", lambda self: None)  # It would take the changes before this test.
    core.take_changes()
    before = core.snapshot()
    assert core.take_changes() == {}
    engine.generate({"a": prompt_of(1, 100)})
    engine.settle_stores()
    now = core.snapshot()
    assert now["stored"] > before["stored"]
    assert core.take_changes() == {name: value for name, value in now.items() if value != before[name]}
    assert core.take_changes() == {}


def test_figures_are_taken_once_in_a_while_and_when_a_request_ends() -> None:
    levels = {"num_free": 7, "stored": 0}
    source = StatsSource(lambda: levels, SCHEDULER_KEYS, lambda: False)
    first = source.take()
    assert first is not None
    assert first.data == {"tier_blocks/free": 7}
    levels["stored"] = 3
    assert source.take() is None
    source.hurry()
    later = source.take()
    assert later is not None
    assert later.data == {"stored_blocks": 3}
    source.hurry()
    assert source.take() is None


def test_end_of_the_copies_that_were_told_of_is_told_at_once() -> None:
    levels = {"num_loads_in_flight": 1, "loaded": 0}
    source = StatsSource(lambda: levels, SCHEDULER_KEYS, lambda: levels["num_loads_in_flight"] > 0)
    assert source.take() is not None
    levels["loaded"] = 2
    assert source.take() is None  # one load is still under way
    levels |= {"num_loads_in_flight": 0, "loaded": 5}
    last = source.take()  # an engine without requests makes no other step
    assert last is not None
    assert last.data == {"loads_in_flight": 0, "loaded_blocks": 5}
    levels["loaded"] = 6
    assert source.take() is None


def test_figures_of_ranks_and_intervals_join() -> None:
    first = KvFerryStats(data={"stored_blocks": 2, "tier_blocks/free": 9, "rank_stored_bytes/0": 5})
    seen = [0.5]
    first.data["queue_seconds/load"] = seen
    later = KvFerryStats(data={"stored_blocks": 3, "tier_blocks/free": 4, "rank_stored_bytes/1": 6})
    later.data["queue_seconds/load"] = [0.25, 0.1]
    joined = KvFerryConnector.build_kv_connector_stats(first.to_dict()).aggregate(later)
    expected = {"stored_blocks": 5, "tier_blocks/free": 4, "rank_stored_bytes/0": 5, "rank_stored_bytes/1": 6}
    assert joined.data == {**expected, "queue_seconds/load": [0.5, 0.25, 0.1]}
    assert seen == [0.5], "it is the teller's"
    assert joined.reduce() == {"stored_blocks": 5, "tier_blocks/free": 4}
    assert not joined.is_empty()
    joined.reset()
    assert joined.is_empty()


def test_prometheus_has_every_metric_of_every_engine(make: Make) -> None:
    registry = CollectorRegistry()
    types: dict[Any, Any] = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    labels = {0: ["toy", "0"], 1: ["toy", "1"]}
    engine = make(world_size=2)
    metrics = KvFerryConnector.build_prom_metrics(engine.config, types, ["model_name", "engine"], labels)

    def value(name: str, engine_number: int, **label: str) -> float | None:
        return registry.get_sample_value(name, {"model_name": "toy", "engine": str(engine_number), **label})

    assert value("vllm:kvferry_hit_tokens_total", 1) == 0
    for name in ("stored_bytes", "loaded_bytes", "failed_transfers", "damaged_blocks"):
        assert [value(f"vllm:kvferry_rank_{name}_total", 1, rank=rank) for rank in "012"] == [0, 0, None]
    assert value("vllm:kvferry_rank_numa_node", 1, rank="0") is None
    metrics.observe({"hit_tokens": 32, "skipped_blocks/ring": 2, "tier_ready_blocks": 5}, 1)
    metrics.observe({"hit_tokens": 16, "tier_ready_blocks": 7, "rank_stored_bytes/3": 100}, 1)
    assert value("vllm:kvferry_hit_tokens_total", 1) == 48
    assert value("vllm:kvferry_hit_tokens_total", 0) == 0
    assert value("vllm:kvferry_tier_ready_blocks", 1) == 7
    assert value("vllm:kvferry_skipped_blocks_total", 1, reason="ring") == 2
    assert value("vllm:kvferry_rank_stored_bytes_total", 1, rank="3") == 100
    metrics.observe({"device_seconds/load": [0.002, 0.02, 2.0]}, 1)
    assert value("vllm:kvferry_device_seconds_count", 1, kind="load") == 3
    assert value("vllm:kvferry_device_seconds_sum", 1, kind="load") == pytest.approx(2.022)
    assert value("vllm:kvferry_device_seconds_bucket", 1, kind="load", le="0.03") == 2


def test_ranks_tell_of_a_request_when_it_ends(make: Make) -> None:
    engine = make()
    engine.generate({"a": prompt_of(1, 100)})
    stored = told(engine).get("rank_stored_bytes/0", 0)
    engine.generate({"b": prompt_of(2, 100)})
    engine.settle_stores()
    # Within the same second.
    assert told(engine)["rank_stored_bytes/0"] > stored
