# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor`` on this machine, and what it says to configurations that an engine would take or refuse."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.doctor.verdict import judge
from kvferry.errors import ResourceError
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


def test_everything_is_shown_to_a_person() -> None:
    run = doctor("--config", json.dumps(FITS))
    assert run.returncode == 0, run.stderr
    for name in ("kvferry", "vllm", "cuda", "hip", "host", "MemAvailable", "RLIMIT_MEMLOCK", "/dev/shm", "huge pages"):
        assert name in run.stdout
    assert run.stdout.splitlines()[-1].startswith(f"OK {format_size(2 << 20)} on each rank")


@pytest.mark.parametrize(
    "config", [FITS, {"kv_connector": "KvFerryConnector", "kv_connector_extra_config": FITS}], ids=["keys", "whole"]
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
        ('{"cpu_bytes_to_use": 1}', "at least one block of the KV cache per rank"),
        ("{", "is no JSON"),
        ("[1]", "a JSON object"),
        ('{"kv_connector": "KvFerryConnector", "kv_connector_extra_config": []}', "a JSON object"),
        (json.dumps(TOO_LARGE), "the CPU tier's 3 ranks that start on this node ask for"),
    ],
)
def test_configuration_that_an_engine_would_refuse_ends_with_1_and_says_why(config: str, complaint: str) -> None:
    run = doctor("--config", config, "--world-size", "3")
    assert run.returncode == 1
    assert run.stderr == ""
    last = run.stdout[run.stdout.index("REFUSED") :]
    assert complaint in " ".join(last.split())


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


def test_smaller_tier_that_is_allowed_is_told_with_its_size() -> None:
    verdict = judge(json.dumps(TOO_LARGE | {"allow_smaller_tier": True}), 2)
    assert verdict.refusal == ""
    [note] = verdict.notes[:1]
    assert f"about {format_size(verdict.room_bytes // 2)} on each rank" in note
