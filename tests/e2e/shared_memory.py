# SPDX-License-Identifier: Apache-2.0
"""What an engine leaves in /dev/shm, told from what others on this machine work with."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

# What ending engines remove, they have removed by then.
ABANDONED_S = 20.0
SHARED_MEMORY = Path("/dev/shm")
# Of vLLM's communicator between CPU ranks, which it has on processors with AVX-512: they stay when a rank is killed.
VLLMS_OWN = re.compile(r"vllm_dist_.*-cpushm_\d+")
# Of an engine that was killed: vLLM's queues and semaphores, which stay, and a claim on memory and what it said of its
# tier, which the next engine removes.
LEFT_BY_THE_DEAD = re.compile(r"psm_.*|sem\.mp-.*|kvferry-claim-.*|kvferry-engine-.*")
# A tier, and what engines write beside it for routers.
TIER_OF_TEST = re.compile(r"kvferry-.*-of-test-(\d+)(?:\.events-\d+)?")


@contextlib.contextmanager
def tier_file(name: str) -> Iterator[Path]:
    """Where a tier of this test is to lie, whose files are gone afterwards."""
    path = SHARED_MEMORY / f"kvferry-{name}-of-test-{os.getpid()}"
    try:
        yield path
    finally:
        for file in [path, *files_beside(path)]:
            file.unlink(missing_ok=True)


def files_beside(tier: Path) -> list[Path]:
    """What engines write beside a tier for routers."""
    return list(tier.parent.glob(f"{tier.name}.events-*"))


def shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


def abandoned(names: set[str]) -> set[str]:
    """Those that stay though no living process has them: what others on this machine work with is not counted.

    Engines of other tests make and remove theirs meanwhile, and are a moment without them when they end. The tier of a
    test that still runs is its own to look for: between two engines nobody has it open.
    """
    names = {name for name in names if not is_tier_of_running_test(name)}
    deadline = time.monotonic() + ABANDONED_S
    while names and time.monotonic() < deadline:
        names = not_used(names & shared_memory())
        for name in filter(VLLMS_OWN.fullmatch, names):
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        time.sleep(0.2)
    return names


def shared_memory_of(session: int) -> set[str]:
    """What the living processes of a session have mapped or open."""
    used = mapped_files(session) | open_files(session)
    return {name for name in shared_memory() if file_of(SHARED_MEMORY / name) in used - {None}}


def without_those_of_others(names: set[str], mine: set[str]) -> set[str]:
    """`names` without what a killed engine of another test may have left.

    That test or the next engine removes it. What is among `mine` counts in any case: the caller's engine had it mapped
    or open.
    """
    return {name for name in names if name in mine or not LEFT_BY_THE_DEAD.fullmatch(name)}


def remove_what_the_dead_left(before: set[str]) -> None:
    """Of what has come since then: tests that run beside this one would call it a leak of theirs."""
    for name in not_used(set(filter(LEFT_BY_THE_DEAD.fullmatch, shared_memory() - before))):
        (SHARED_MEMORY / name).unlink(missing_ok=True)


def is_tier_of_running_test(name: str) -> bool:
    """Whether it is what `tier_file` gave to a test whose process lives."""
    found = TIER_OF_TEST.fullmatch(name)
    return found is not None and Path(f"/proc/{found[1]}").exists()


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


def processes(session: int | None) -> Iterator[Path]:
    """The folders of living processes in /proc; `session`: only those of this session."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if session is None or os.getsid(int(process.name)) == session:
                yield process


def mapped_files(session: int | None = None) -> set[tuple[int, int] | None]:
    """Files that living processes have mapped. None is among them: what is gone is not abandoned."""
    found: set[tuple[int, int] | None] = {None}
    for process in processes(session):
        try:
            lines = (process / "maps").read_text().splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:  # addresses, permissions, offset, device, inode, path
            _, _, _, device, inode, *_ = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in device.split(":"))
            found.add((os.makedev(major, minor), int(inode)))
    return found


def open_files(session: int | None = None) -> set[tuple[int, int] | None]:
    """Files in shared memory that living processes have open, as kvferry's claims on memory are."""
    found: set[tuple[int, int] | None] = set()
    for process in processes(session):
        with contextlib.suppress(OSError):  # it has ended
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()).startswith(str(SHARED_MEMORY)):
                        found.add(file_of(descriptor))  # whatever it was called when it was opened
    return found
