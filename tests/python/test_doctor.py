# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor`` on this machine, and what it says to configurations that an engine would take or refuse."""

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.doctor.fact import Fact
from kvferry.doctor.pinning import Limit, examine_pinning
from kvferry.doctor.verdict import Verdict, judge
from kvferry.errors import Error, ResourceError
from kvferry.sizes import format_size

FITS = {"cpu_bytes_to_use": "2MiB"}
TOO_LARGE = {"cpu_bytes_to_use": "4000TiB"}


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "doctor", *arguments]
    # Wide enough that no line is folded.
    variables = os.environ | {"COLUMNS": "500"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def told(*arguments: str) -> dict[str, Any]:
    return json.loads(doctor("--json", *arguments).stdout)


def without_figures(text: str) -> str:
    """What is free changes from moment to moment."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


def test_machine_is_described() -> None:
    found = told()
    assert found["verdict"] is None
    assert found["versions"]["kvferry"] == metadata.version("kvferry")
    assert found["versions"]["python"] == "{}.{}.{}".format(*sys.version_info)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["backends"] == _core.backends()
    [available] = [limit for limit in found["limits"] if limit["name"] == "MemAvailable"]
    total = int(re.findall(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    assert 0 < available["room_bytes"] <= total
    assert available["remedy"]
    assert {"page_bytes", "num_total", "num_free", "num_more"} == found["huge_pages"].keys()
    nodes = found["numa_nodes"]
    assert 0 < sum(node["memory_bytes"] for node in nodes) <= 1.1 * total
    assert sum(node["num_cpus"] for node in nodes) > 0
    assert [node["number"] for node in nodes] == sorted({node["number"] for node in nodes})


LIMITS = [Limit("MemAvailable", 8 << 30, "free some"), Limit("cgroup memory.max of /a", 4 << 30, "raise it")]


@pytest.mark.parametrize(
    ("machine_bytes", "expected"), [(0, ["ok", "ok"]), (4 << 30, ["ok", "ok"]), (5 << 30, ["ok", "problem"])]
)
def test_limits_are_held_against_the_tier(machine_bytes: int, expected: list[str]) -> None:
    facts = examine_pinning(LIMITS, None, Verdict("", machine_bytes=machine_bytes), has_gpu=True)
    assert [fact.verdict for fact in facts[:2]] == expected
    assert "raise it" in facts[1].detail or expected[1] == "ok"
    assert facts[2] == Fact("RLIMIT_MEMLOCK", "ok", "unlimited")


def test_locked_memory_of_a_rank_is_held_against_what_it_pins() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, hard))
    try:
        for rank_bytes, has_gpu, verdict in [(limit, True, "ok"), (limit + 1, True, "note"), (limit + 1, False, "ok")]:
            [fact] = examine_pinning([], limit, Verdict("", bytes_per_rank=rank_bytes), has_gpu)
            assert fact.verdict == verdict
            assert verdict == "ok" or "ulimit -l unlimited" in fact.detail
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def test_tier_too_large_is_a_problem_of_the_limit_that_refuses_it() -> None:
    found = told("--config", json.dumps(TOO_LARGE))
    [available] = [fact for fact in found["pinned_memory"] if fact["name"] == "MemAvailable"]
    assert available["verdict"] == "problem"
    [available] = [fact for fact in told()["pinned_memory"] if fact["name"] == "MemAvailable"]
    assert available["verdict"] == "ok"


def test_everything_is_shown_to_a_person() -> None:
    run = doctor("--config", json.dumps(FITS))
    assert run.returncode == 0, run.stderr
    named = ("kvferry", "vllm", "vLLM plugin", "cuda", "hip", "host", "MemAvailable", "RLIMIT_MEMLOCK", "/dev/shm")
    for name in (*named, "huge pages"):
        assert name in run.stdout
    assert run.stdout.splitlines()[0].startswith(f"OK {format_size(2 << 20)} on each rank"), "the verdict comes first"


def test_without_a_configuration_the_first_line_says_whether_a_gpu_is_usable() -> None:
    devices = [name for name, why_not in _core.backends().items() if name != "host" and not why_not]
    first, second, *_ = doctor().stdout.splitlines()
    assert first.startswith("OK kvferry can use " if devices else "NO GPU is usable here")
    assert all(name in first for name in devices)
    assert "--config" in second


@pytest.mark.parametrize(
    "config",
    [FITS, {"kv_connector": "KvFerryConnector", "kv_role": "kv_both", "kv_connector_extra_config": FITS}],
    ids=["keys", "whole"],
)
def test_configuration_that_fits_is_accepted(config: dict[str, Any]) -> None:
    run = doctor("--json", "--config", json.dumps(config), "--world-size", "2")
    assert run.returncode == 0, run.stderr
    verdict = json.loads(run.stdout)["verdict"]
    assert verdict["refusal"] == ""
    assert verdict["bytes_per_rank"] == 1 << 20
    assert verdict["room_bytes"] > 2 << 20


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ('{"cpu_bytes": 1}', "did you mean 'cpu_bytes_to_use'?"),
        ('{"cpu_bytes_to_use": "lots"}', "allowed is a whole number of bytes"),
        ('{"numa_node": 1000}', "1000"),
        ('{"cpu_bytes_to_use": 1}', "allowed is 4096 bytes or more"),
        ("{", "is not JSON"),
        ("[1]", "a JSON object"),
        (
            '{"kv_connector": "KvFerryConnector", "kv_role": "kv_both", "kv_connector_extra_config": []}',
            "a JSON object",
        ),
        (json.dumps(TOO_LARGE), "the CPU tier's 3 ranks that start on this node ask for"),
    ],
)
def test_configuration_that_an_engine_would_refuse_ends_with_1_and_says_why(config: str, complaint: str) -> None:
    run = doctor("--config", config, "--world-size", "3")
    assert run.returncode == 1
    assert run.stderr == ""
    first, _, _ = run.stdout.partition("\n")
    assert first.startswith("REFUSED ")
    assert complaint in first


def test_back_end_that_cannot_be_had_is_refused_with_the_reason() -> None:
    for backend, why_not in _core.backends().items():
        verdict = judge(json.dumps(FITS | {"backend": backend}), 1)
        assert (verdict.refusal == "") == (why_not == "")
        assert why_not in verdict.refusal


def test_refusal_is_in_the_words_of_the_engine() -> None:
    page = bytearray(4096)
    address = id(page)  # refused before anything is read there
    with pytest.raises(ResourceError) as refused:
        _core.WorkerEngine(
            backend="host", rank=0, world_size=1, num_blocks=1, fragments=[[(address, 1 << 30, 1 << 30)]],
            num_chunks=4000 << 10, slots_per_chunk=[1], staging_bytes=0, max_in_flight_bytes=1 << 20,
            transfer_timeout_s=1.0,
        )  # fmt: skip
    verdict = judge(json.dumps(TOO_LARGE), 1)
    assert without_figures(verdict.refusal) == without_figures(str(refused.value))
    assert str(4000 << 40) in verdict.refusal


def test_engines_with_a_tier_each_need_as_many_times_the_memory(tmp_path: Path) -> None:
    room = judge(json.dumps(FITS), 1).room_bytes
    half = json.dumps(FITS | {"cpu_bytes_to_use": room // 2})
    assert judge(half, 1).refusal == ""
    assert judge(half, 1, 4).refusal != ""
    shared = json.dumps(FITS | {"shared_path": str(tmp_path / "tier")})
    assert judge(shared, 1, 4) == judge(shared, 1, 1)


def test_smaller_tier_that_is_allowed_is_told_with_its_size() -> None:
    verdict = judge(json.dumps(TOO_LARGE | {"allow_smaller_tier": True}), 2)
    assert verdict.refusal == ""
    [note] = verdict.notes[:1]
    assert f"about {format_size(verdict.room_bytes // 2)} on each rank" in note


@pytest.fixture
def shared() -> Iterator[Path]:
    """A path in a folder that is not there yet."""
    folder = Path(f"/dev/shm/kvferry-doctor-{os.getpid()}")
    yield folder / "tier"
    if folder.is_dir():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def judge_shared(path: Path, num_ranks: int = 1, **more: object) -> str:
    return judge(json.dumps({"shared_path": str(path), "cpu_bytes_to_use": "4MiB", **more}), num_ranks).refusal


def join(path: Path, capacity_bytes: int = 4 << 20) -> object:
    """What an engine does with a shared path; raises what it would end with."""
    memory = ctypes.create_string_buffer(4096)
    shape = {"path": str(path), "capacity_bytes": capacity_bytes, "num_ranks": 1}
    num_chunks, chunk_bytes, _ = _core.shared_tier_shape(**shape)
    return _core.WorkerEngine(
        backend="host", rank=0, world_size=1, num_blocks=1, fragments=[[(ctypes.addressof(memory), 4096, 4096)]],
        num_chunks=num_chunks, slots_per_chunk=[chunk_bytes // 4096], staging_bytes=4096, max_in_flight_bytes=1 << 20,
        transfer_timeout_s=60.0, shared_path=str(path), shared_capacity_bytes=capacity_bytes,
        shared_instance="engine", shared_keep=True,
    )  # fmt: skip


def test_a_shared_path_that_an_engine_would_make_is_accepted_and_nothing_is_made(shared: Path) -> None:
    assert judge_shared(shared) == ""
    assert not shared.parent.exists()
    del_me = join(shared)
    assert judge_shared(shared) == ""
    del del_me
    assert shared.exists()
    assert judge_shared(shared) == ""


def make_directory(path: Path) -> None:
    path.mkdir(parents=True)


def make_foreign_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(bytes(8192))
    path.chmod(0o600)


def make_open_file(path: Path) -> None:
    make_foreign_file(path)
    path.chmod(0o644)


def make_file_above(path: Path) -> None:
    path.parent.write_text("")


def make_smaller_tier(path: Path) -> None:
    join(path, 2 << 20)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (make_directory, "cannot be opened: Is a directory"),
        (make_foreign_file, "was not made by kvferry for a shared tier"),
        (make_open_file, "mode 0600"),
        (make_smaller_tier, "32 chunks of 65536 bytes .* this process was told 64 chunks"),
        (make_file_above, "Not a directory"),
    ],
)
def test_a_shared_path_that_an_engine_would_refuse_is_refused_in_its_words(
    shared: Path, prepare: Callable[[Path], None], said: str
) -> None:
    prepare(shared)
    refusal = judge_shared(shared)
    assert re.search(said, refusal)
    with pytest.raises(Error) as refused:
        join(shared)
    assert without_figures(str(refused.value)) == without_figures(refusal)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Path("/dev/shm/kvferry-none/below/tier"), "mkdir -p /dev/shm/kvferry-none,"),
        (Path("/proc/tier"), "neither a tmpfs nor a hugetlbfs"),
    ],
)
def test_a_place_that_is_none_is_refused_with_the_remedy(place: Path, said: str) -> None:
    assert said in judge_shared(place)
    with pytest.raises(Error) as refused:
        join(place)
    assert said in str(refused.value)


def test_a_path_on_a_disk_is_refused(tmp_path: Path) -> None:
    assert "neither a tmpfs nor a hugetlbfs" in judge_shared(tmp_path / "tier")
    assert "neither a tmpfs nor a hugetlbfs" in judge_shared(tmp_path / "none" / "tier")
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_mount_has_is_refused(shared: Path) -> None:
    assert "the file system at /dev/shm" in judge_shared(shared, cpu_bytes_to_use="32TiB")
    assert "ranks has 0 chunks" in judge_shared(shared, num_ranks=64, cpu_bytes_to_use="1MiB")


def test_brackets_in_a_path_are_shown(shared: Path) -> None:
    run = doctor("--config", json.dumps({"shared_path": f"{shared.parent}/[red]x/y/tier"}))
    assert run.returncode == 1
    assert "[red]x" in run.stdout
