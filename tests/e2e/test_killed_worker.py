# SPDX-License-Identifier: Apache-2.0
"""Kill -9 of a rank while blocks are on the link: a named error, nothing left behind, and the next engine works."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.shared_memory
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import EngineReport, EngineRunner, Prompts, generate
from .shared_memory import (
    SHARED_MEMORY,
    abandoned,
    is_tier_of_running_test,
    not_used,
    shared_memory,
    shared_memory_of,
    tier_file,
    without_those_of_others,
)

# In both directions a few hundred bytes per second: no copy of a block ends before the test's time limit.
STALLED_GB_S = 1e-6
# Which rank dies during which transfer, and the direction of the link that is stalled.
DEATHS = {"store": (0, "d2h_gb_s"), "load": (1, "h2d_gb_s")}


@dataclasses.dataclass
class Death:
    """An engine whose rank was killed, and what it left behind."""

    rank: int
    report: EngineReport
    shared_memory: set[str]
    processes: list[int]

    @property
    def first(self) -> dict[str, Any]:
        """What the engine computed before."""
        return self.report.results[0]

    @property
    def killed(self) -> dict[str, Any]:
        """What `kill_worker_during_transfer` saw."""
        return self.report.results[1]


def test_what_is_abandoned_is_told_from_what_others_use() -> None:
    before = shared_memory()
    semaphore = multiprocessing.get_context("spawn").Lock()  # with fork it would have no name
    mine = {name for name in shared_memory() - before if name.startswith("sem.mp-")}
    assert mine
    # Those of others may be gone by now; this one is mapped, and its name is in nobody's maps.
    assert not_used(mine) == set()
    del semaphore
    descriptor, path = tempfile.mkstemp(dir=SHARED_MEMORY)
    name = Path(path).name
    try:
        assert not_used({name}) == set()
        os.close(descriptor)
        assert not_used({name}) == {name}
    finally:
        Path(path).unlink()


def test_the_queues_of_another_session_are_told_from_those_of_ones_own() -> None:
    queue = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    try:
        mine = shared_memory_of(os.getsid(0))
        assert queue.name in mine
        assert without_those_of_others({queue.name}, mine) == {queue.name}
        another = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            its = shared_memory_of(another.pid)
        finally:
            another.kill()
            another.wait()
        assert queue.name not in its
        # A tier's file counts, whoever left it.
        assert without_those_of_others({queue.name, "kvferry-claim-1", "kvferry-tier"}, its) == {"kvferry-tier"}
    finally:
        queue.close()
        queue.unlink()


def test_tier_of_a_test_that_runs_is_not_abandoned() -> None:
    with tier_file("between engines") as path:
        path.touch()
        assert not_used({path.name}) == {path.name}
        assert abandoned({path.name}) == set()
    nobody = 1 << 22  # above every process id
    assert not is_tier_of_running_test(f"kvferry-e2e-of-test-{nobody}")


@pytest.fixture(scope="module")
def deaths(runner: EngineRunner) -> dict[str, Death]:
    """One engine after the other; each computes the same prompts before a rank of it is killed."""
    prompts = Prompts(seed=9)
    known = prompts.many(3, 300)
    found: dict[str, Death] = {}
    for transfer, (rank, direction) in DEATHS.items():
        before = shared_memory()
        extra: dict[str, Any] = {
            "cpu_bytes_to_use": 256 * runner.block_bytes,
            "host_link": {direction: STALLED_GB_S},
            # vLLM may kill the engine's process too, before it ends by itself. What that recorded stays on purpose.
            "recorder_bytes": 0,
        }
        kill = {
            "op": "kill_worker_during_transfer",
            "prompts": known if transfer == "load" else prompts.many(3, 300),
            "transfer": transfer,
            "rank": rank,
        }
        report = runner.run(
            [generate(known, 8, "one_by_one"), kill],
            runner.kv_config(**extra),
            num_gpu_blocks=64,
            num_ranks=2,
            multiprocessing=True,
            environment={"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},  # for functions that run in a worker
        )
        pids = [state["pid"] for state in report.results[1]["at_kill"]]
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        found[transfer] = Death(rank, report, abandoned(shared_memory() - before), alive)
    return found


@pytest.mark.parametrize("transfer", DEATHS)
def test_the_error_names_the_dead_worker(deaths: dict[str, Death], transfer: str) -> None:
    death = deaths[transfer]
    assert death.killed["error"] is not None, death.report.log
    assert death.killed["error"]["type"] == "EngineDeadError"
    dead = [line for line in death.report.log.splitlines() if "died unexpectedly" in line]
    assert len(dead) == 1, death.report.log
    assert f"VllmWorker-{death.rank} " in dead[0]
    # vLLM asks for the code as soon as the process has closed its files, when the kernel may not have it yet.
    assert re.search(r"exit code: (-9|None)\)", dead[0]), dead[0]


@pytest.mark.parametrize("transfer", DEATHS)
def test_every_rank_was_copying_when_one_was_killed(deaths: dict[str, Death], transfer: str) -> None:
    killed = deaths[transfer].killed
    counter = "loaded_bytes" if transfer == "load" else "stored_bytes"
    for before, at_kill in zip(killed["before"], killed["at_kill"], strict=True):
        assert at_kill["in_flight_bytes"] > 0
        assert at_kill[counter] == before[counter]


@pytest.mark.parametrize("transfer", DEATHS)
def test_no_process_and_no_shared_memory_is_left(deaths: dict[str, Death], transfer: str) -> None:
    death = deaths[transfer]
    assert death.report.returncode == 0, death.report.log
    assert death.processes == []
    assert death.shared_memory == set()


def test_an_engine_started_right_after_works(deaths: dict[str, Death]) -> None:
    assert list(deaths) == ["store", "load"]
    assert all(len(tokens) == 8 for tokens in deaths["load"].first["tokens"])
    assert deaths["load"].first["tokens"] == deaths["store"].first["tokens"]
    # Its link to the tier is not the stalled one: every rank stored blocks, and was finding them when it was killed.
    assert all(state["stored_blocks"] > 0 for state in deaths["load"].killed["before"])
