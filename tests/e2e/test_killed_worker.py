# SPDX-License-Identifier: Apache-2.0
"""Kill -9 of a rank while blocks are on the link: a named error, nothing left behind, and the next engine works."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import EngineReport, EngineRunner, Prompts, generate

# In both directions a few hundred bytes per second: no copy of a block ends before the test's time limit.
STALLED_GB_S = 1e-6
# What ending engines remove, they have removed by then.
ABANDONED_S = 20.0
SHARED_MEMORY = Path("/dev/shm")
# Of vLLM's communicator between CPU ranks, which it has on processors with AVX-512: they stay when a rank is killed.
VLLMS_OWN = re.compile(r"vllm_dist_.*-cpushm_\d+")
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


def shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


def abandoned(names: set[str]) -> set[str]:
    """Those that stay though no living process has them: what others on this machine work with is not counted.

    Engines of other tests make and remove theirs meanwhile, and are a moment without them when they end.
    """
    deadline = time.monotonic() + ABANDONED_S
    while names and time.monotonic() < deadline:
        names = not_used(names & shared_memory())
        for name in filter(VLLMS_OWN.fullmatch, names):
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        time.sleep(0.2)
    return names


def not_used(names: set[str]) -> set[str]:
    """Compares files and not their names: a semaphore is mapped before it gets the name that it is found by."""
    used = mapped_files() | open_files()
    return {name for name in names if file_of(SHARED_MEMORY / name) not in used}


def file_of(path: Path) -> tuple[int, int] | None:
    """Device and inode; None if it is gone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def mapped_files() -> set[tuple[int, int] | None]:
    """Files that living processes have mapped. None is among them: what is gone is not abandoned."""
    found: set[tuple[int, int] | None] = {None}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:  # addresses, permissions, offset, device, inode, path
            _, _, _, device, inode, *_ = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in device.split(":"))
            found.add((os.makedev(major, minor), int(inode)))
    return found


def open_files() -> set[tuple[int, int] | None]:
    """Files in shared memory that living processes have open, as kvferry's claims on memory are."""
    found: set[tuple[int, int] | None] = set()
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # it has ended
            for descriptor in descriptors.iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()).startswith(str(SHARED_MEMORY)):
                        found.add(file_of(descriptor))  # whatever it was called when it was opened
    return found


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
