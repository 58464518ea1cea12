# SPDX-License-Identifier: Apache-2.0
"""Ranks that were told something else than the scheduler: the engine stops with an error that names both sides.

kvcached#339: a world size that was read before it was known, and an engine that hangs for it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, ToyWorker, make_kv_cache_configs, make_vllm_config, prompt_of
from kvferry.config import KvFerryConfig
from kvferry.errors import ProtocolError, ResourceError, TimeoutError, TopologyError
from scenarios import Make, assert_at_rest


def replace_rank(engine: ToyEngine, folder: Path, rank: int, **told: Any) -> None:
    """Start rank `rank` anew, as a process that was told something else."""
    engine.workers[rank].connector.shutdown()
    engine.workers[0].model.check_kv = False  # The ranks' cells differ, as they are meant to.
    spec = ToySpec(**{"world_size": engine.spec.world_size, "extra_config": engine.spec.extra_config, **told})
    config = make_vllm_config(folder, spec)
    engine.workers[rank] = ToyWorker(config, make_kv_cache_configs(config, spec)[0], rank, spec)


def step_until_error(engine: ToyEngine) -> None:
    """Step as often as it may take until the first reports have arrived."""
    engine.add("a", prompt_of(1, 40))
    for _ in range(3):
        engine.step()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"world_size": 3}, r"rank 1 has world size 3, the scheduler was told 2"),
        ({"num_layers": 4}, r"rank 1 has bytes per block 8192, the scheduler was told 6144"),
        ({"block_size": 32}, r"rank 1 has bytes per block 12288, the scheduler was told 6144"),
        ({"num_blocks": 40}, r"rank 1 has GPU blocks 40, the scheduler was told 33"),
    ],
)
def test_rank_that_was_told_something_else_stops_the_engine_with_both_figures(
    make: Make, folder: Path, is_async: bool, told: dict[str, int], message: str
) -> None:
    engine = make(world_size=2, async_scheduling=is_async)
    replace_rank(engine, folder, 1, **told)
    with pytest.raises(TopologyError, match=message):
        step_until_error(engine)


def test_rank_beyond_the_world_size_stops_the_engine_with_both_figures(make: Make, folder: Path) -> None:
    engine = make(world_size=1)
    other = make(world_size=2).workers[1]
    engine.workers.append(other)
    with pytest.raises(TopologyError, match=r"reports as rank 1, the scheduler was told a world size of 1"):
        step_until_error(engine)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may be silent for 50 ms, and for 16 plans."""
    monkeypatch.setattr(KvFerryConfig, "rank_timeout_s", 0.05)


def idle_until_error(engine: ToyEngine, timeout_s: float = 30.0) -> None:
    """Step, without a request."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        engine.step()
    raise AssertionError(f"no error in {timeout_s} s")


@pytest.mark.usefixtures("short_patience")
def test_rank_that_never_comes_stops_the_engine_with_an_error_that_names_it(make: Make, is_async: bool) -> None:
    engine = make(world_size=2, async_scheduling=is_async)
    engine.workers[1].hold_reports()
    message = r"rank 1 of the world size 2 .* registered: rank 0 \(world size 2, \d+ slots\)"
    with pytest.raises(TimeoutError, match=message):
        idle_until_error(engine)


@pytest.mark.usefixtures("short_patience")
def test_rank_that_falls_silent_stops_the_engine_with_an_error_that_names_it(make: Make, is_async: bool) -> None:
    engine = make(world_size=2, async_scheduling=is_async)
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)
    engine.workers[1].hold_reports()
    engine.add("a", prompt_of(1, 40))
    with pytest.raises(TimeoutError, match=r"rank 1 of 2 has not ended store \d+ of owner .* it is lost"):
        idle_until_error(engine)
    assert engine.snapshot()["num_quarantined"] == 2
    assert engine.snapshot()["num_evictable"] == 0


def with_version(message: bytes, version: int) -> bytes:
    """Give an encoded plan or report another message version: two bytes behind the magic number."""
    return message[:4] + version.to_bytes(2, "little") + message[6:]


def version_of(message: bytes) -> int:
    return int.from_bytes(message[4:6], "little")


def test_report_of_another_message_version_stops_the_engine_with_both_versions(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(world_size=2)
    side = engine.workers[1].connector.worker_side
    take: Callable[[], bytes] = side._take_report
    versions = []

    def take_newer() -> bytes:
        report = take()
        versions.append(version_of(report))
        return with_version(report, versions[0] + 1)

    monkeypatch.setattr(side, "_take_report", take_newer)
    with pytest.raises(ProtocolError) as caught:
        step_until_error(engine)
    assert f"message version {versions[0] + 1}, this side speaks {versions[0]}" in str(caught.value)


def test_plan_of_another_message_version_stops_the_rank_with_both_versions(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    side = engine.scheduler.connector.scheduler_side
    build: Callable[[object], bytes] = side._build_plan
    versions = []

    def build_newer(scheduler_output: object) -> bytes:
        plan = build(scheduler_output)
        versions.append(version_of(plan))
        return with_version(plan, versions[0] + 1)

    monkeypatch.setattr(side, "_build_plan", build_newer)
    with pytest.raises(ProtocolError) as caught:
        step_until_error(engine)
    assert f"message version {versions[0] + 1}, this side speaks {versions[0]}" in str(caught.value)


def test_ranks_with_tiers_of_different_size_use_the_smaller_one(make: Make, folder: Path, is_async: bool) -> None:
    engine = make({"cpu_bytes_to_use": 2 * 50 * 6144}, world_size=2, async_scheduling=is_async)
    replace_rank(engine, folder, 1, extra_config={"cpu_bytes_to_use": 2 * 20 * 6144})
    engine.generate({"a": prompt_of(1, 100)})
    engine.settle_stores()
    assert engine.snapshot()["num_slots"] == 20
    assert_at_rest(engine)


def test_rank_that_cannot_have_its_share_fails_the_start_with_its_name(make: Make, folder: Path) -> None:
    engine = make(world_size=2)
    message = r"rank 1 cannot get its share of cpu_bytes_to_use, 8.*: the CPU tier's 2 ranks .* leaves .* ask for less"
    with pytest.raises(ResourceError, match=message):
        replace_rank(engine, folder, 1, extra_config={"cpu_bytes_to_use": "16TiB"})


def test_nothing_is_planned_before_every_rank_has_registered(make: Make) -> None:
    engine = make(world_size=2)
    engine.workers[1].hold_reports()
    engine.generate({"a": prompt_of(1, 100)})
    view = engine.snapshot()
    assert (view["ready_ranks"], view["num_slots"], view["num_stores_in_flight"]) == (1, 0, 0)
    engine.workers[1].release_reports()
    engine.generate({"b": prompt_of(2, 100)})
    engine.settle_stores()
    assert engine.snapshot()["ready_ranks"] == 2
    assert engine.snapshot()["stored"] > 0
    assert_at_rest(engine)
