# SPDX-License-Identifier: Apache-2.0
"""``kvferry tier``: what it shows of a tier that an engine has, and what it refuses."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvferry import _core
from kvferry.errors import ConfigError, ResourceError

CAPACITY = 4 << 20
BLOCK_BYTES = 4096


def tier(*arguments: str, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "tier", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if columns is not None:
        variables["COLUMNS"] = str(columns)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


@pytest.fixture
def path() -> Iterator[Path]:
    found = Path(f"/dev/shm/kvferry-tier-test-{os.getpid()}")
    yield found
    found.unlink(missing_ok=True)


class Rank:
    """A rank of an engine whose arena is in the tier."""

    def __init__(self, path: Path, **more: object) -> None:
        self._memory = ctypes.create_string_buffer(4 * BLOCK_BYTES)
        shape = {"path": str(path), "capacity_bytes": CAPACITY, "num_ranks": 1}
        num_chunks, chunk_bytes, _ = _core.shared_tier_shape(**shape)
        self.engine = _core.WorkerEngine(
            backend="host",
            rank=0,
            world_size=1,
            num_blocks=4,
            fragments=[[(ctypes.addressof(self._memory), BLOCK_BYTES, BLOCK_BYTES)]],
            num_chunks=num_chunks,
            slots_per_chunk=[chunk_bytes // BLOCK_BYTES],
            staging_bytes=1 << 20,
            max_in_flight_bytes=1 << 20,
            transfer_timeout_s=60,
            **{"shared_path": str(path), "shared_capacity_bytes": CAPACITY, "shared_instance": "engine-1", **more},
        )


def test_a_tier_is_listed_and_shown_and_not_removed_while_it_is_used(path: Path) -> None:
    rank = Rank(path, shared_keep=True)
    listed = tier("ls", "/dev/shm")
    assert listed.returncode == 0, listed.stderr
    assert str(path) in listed.stdout
    assert "4.00 MiB" in listed.stdout
    shown = tier("inspect", str(path))
    assert shown.returncode == 0, shown.stderr
    assert "64 of 64.00 KiB on each rank" in shown.stdout
    figures = json.loads(tier("inspect", str(path), "--json").stdout)["figures"]
    assert figures["num_empty_chunks"] == figures["num_chunks"] == 64
    assert figures["is_of_this_boot"] == 1
    refused = tier("rm", str(path))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"kvferry: the shared tier {path} is in use by")
    assert len(refused.stderr.splitlines()) == 1
    del rank
    assert path.exists()
    assert tier("rm", str(path)).returncode == 0
    assert not path.exists()


@pytest.fixture
def long_path() -> Iterator[Path]:
    folder = Path(f"/dev/shm/kvferry-long-{os.getpid()}-{'x' * 150}")
    yield folder / "tier"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("columns", [None, 40, 80])
def test_a_path_is_whole_on_one_line_however_wide_the_output_is(long_path: Path, columns: int | None) -> None:
    rank = Rank(long_path)
    listed = tier("ls", str(long_path.parent), columns=columns)
    assert listed.stdout.splitlines()[0] == str(long_path)
    assert "4.00 MiB, " in listed.stdout
    inspected = tier("inspect", str(long_path), columns=columns)
    assert inspected.stdout.splitlines()[0] == str(long_path)
    told = json.loads(tier("ls", str(long_path.parent), "--json", columns=columns).stdout)
    [found] = told["shared"]
    assert (found["path"], found["figures"]["capacity_bytes"]) == (str(long_path), CAPACITY)
    assert told["engines"] == [], "they are not in that directory"
    del rank


def test_a_file_that_cannot_be_read_is_listed_with_the_reason(path: Path) -> None:
    rank = Rank(path, shared_keep=True)
    path.chmod(0o644)
    listed = tier("ls", "/dev/shm").stdout.splitlines()
    assert "mode 0600" in listed[listed.index(str(path)) + 1]
    [told] = [
        each for each in json.loads(tier("ls", "/dev/shm", "--json").stdout)["shared"] if each["path"] == str(path)
    ]
    assert "mode 0600" in told["error"]
    del rank


def test_the_last_engine_removes_its_tier(path: Path) -> None:
    rank = Rank(path)
    assert path.exists()
    del rank
    assert not path.exists()


@pytest.mark.parametrize("command", [("inspect",), ("rm",)])
def test_what_is_no_tier_is_refused_in_one_line(path: Path, command: tuple[str, ...]) -> None:
    absent = tier(*command, str(path))
    assert absent.returncode == 2
    assert absent.stderr.splitlines() == [f"kvferry: shared memory {path} cannot be opened: No such file or directory"]
    path.write_bytes(bytes(4096))
    path.chmod(0o600)
    other = tier(*command, str(path))
    assert other.returncode == 2
    assert "is not the file of a shared tier" in other.stderr
    assert path.exists()


def test_no_tiers_are_none(tmp_path: Path) -> None:
    assert tier("ls", str(tmp_path)).stdout.strip() == "no shared tier"
    assert "is not a directory" in tier("ls", str(tmp_path / "none")).stderr


@pytest.mark.parametrize("name", [b"[red]tier", b"[link=x]tier", b"\xff\xfe tier", "Stra\u00dfe".encode()])
def test_names_are_shown_as_they_are_whatever_they_are(name: bytes) -> None:
    folder = Path(f"/dev/shm/kvferry-names-{os.getpid()}")
    made, path = folder / "tier", os.path.join(os.fsencode(folder), name)
    try:
        rank = Rank(made, shared_keep=True)
        os.rename(made, path)
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        listed = tier("ls", str(folder))
        assert listed.returncode == 0, listed.stderr
        assert shown in listed.stdout
        inspected = tier("inspect", os.fsdecode(path))
        assert inspected.returncode == 0, inspected.stderr
        assert shown in inspected.stdout
        assert json.loads(tier("inspect", os.fsdecode(path), "--json").stdout)["path"] == os.fsdecode(path)
        del rank
        os.rename(path, path + b"2")
        refused = tier("rm", os.fsdecode(path))
        assert refused.returncode == 2
        assert refused.stderr.splitlines() == [
            f"kvferry: shared memory {shown} cannot be opened: No such file or directory"
        ]
        assert tier("rm", os.fsdecode(path + b"2")).returncode == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_folder_that_is_none_is_named_as_it_is(tmp_path: Path) -> None:
    refused = tier("ls", str(tmp_path / "[red]none"))
    assert refused.returncode == 2
    assert "[red]none is not a directory" in refused.stderr


def test_two_connectors_of_one_engine_are_told_what_they_can_do(path: Path) -> None:
    rank = Rank(path)
    with pytest.raises(
        ResourceError, match=r"rank 0 of this very engine .* for one KvFerryConnector of MultiConnector"
    ):
        Rank(path)
    del rank


def test_a_wrong_wish_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"WorkerEngine: unknown key 'shared_size'; expected .*shared_path, "):
        Rank(path, shared_size=3)
    with pytest.raises(ConfigError, match="shared_path is set and shared_instance is not; expected both"):
        Rank(path, shared_instance=None)
    with pytest.raises(ConfigError, match="request chunks of that shape"):
        Rank(path, shared_capacity_bytes=2 << 20)
