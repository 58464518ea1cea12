# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of drivers, on stand-ins and on drivers that hang, and of the kernels for their devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stand_in
from kvferry import _core
from kvferry.doctor import drivers
from kvferry.doctor.drivers import Answer, Device
from kvferry.doctor.kernels import examine_kernels

SONAMES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}
SAID = (
    '{"why_not": "", "devices": [{"name": "x", "architecture": "x", "driver": "", "pci_address": "", "kernels": "x"}]}'
)


def told_beside(folder: Path, backend: str) -> dict[str, Any]:
    """Tell what the doctor finds on a machine that has a stand-in for a driver."""
    (folder / SONAMES[backend]).symlink_to(stand_in.LIBRARY.with_name(f"libfake_{backend}.so"))
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "doctor", "--json"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"LD_LIBRARY_PATH": str(folder)}
    )
    return json.loads(run.stdout)


def facts(answers: dict[str, Answer]) -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.verdict, fact.detail) for fact in examine_kernels(answers)}


def test_stand_in_of_cuda_has_kernels_of_its_architecture(tmp_path: Path) -> None:
    found = told_beside(tmp_path, "cuda")
    assert found["backends"]["cuda"] == ""
    told = {fact["name"]: fact for fact in found["gpus"]}
    toolkit, architectures, _ = _core.built_kernels()
    fitting = told["NVIDIA 0000:c1:00.0: kernels"]
    assert "sm_90 (stand-in for an H100, CUDA driver 13.0)" in fitting["detail"]
    if "sm_90" in architectures:
        assert fitting["verdict"] == "ok"
        assert fitting["detail"].startswith("sm_90 for")
        assert told["NVIDIA kernels"]["detail"].startswith(f"built with CUDA {toolkit} for {', '.join(architectures)}")
    else:
        assert fitting["verdict"] in ("note", "problem")


def test_stand_in_of_hip_has_kernels_or_hiprtc(tmp_path: Path) -> None:
    found = told_beside(tmp_path, "hip")
    assert found["backends"]["hip"] == ""
    told = {fact["name"]: fact for fact in found["gpus"]}
    assert told["AMD 0000:c1:00.0: kernels"]["verdict"] == ("ok" if "gfx90a" in _core.built_kernels()[2] else "note")


def test_without_a_driver_nothing_is_known_of_devices() -> None:
    answer = Answer("no library", [])
    verdict, detail = facts({"cuda": answer, "hip": answer})["kernels for the GPUs"]
    assert verdict == "unknown"
    assert "back ends" in detail


@pytest.mark.parametrize(
    ("backend", "architecture", "kernels", "verdict", "detail"),
    [
        ("cuda", "sm_86", "sm_80", "ok", "sm_80 for sm_86 (a GPU, a driver)"),
        ("cuda", "sm_120", "PTX of sm_100", "note", "KVFERRY_CUDA_ARCHITECTURES=120"),
        ("cuda", "sm_70", "", "problem", "KVFERRY_CUDA_ARCHITECTURES=70"),
        ("hip", "gfx942", "gfx942", "ok", "gfx942 for gfx942"),
        ("hip", "gfx942", "hipRTC", "note", "KVFERRY_HIP_ARCHITECTURES=gfx942"),
    ],
)
def test_device_gets_a_verdict_on_its_kernels(
    backend: str, architecture: str, kernels: str, verdict: str, detail: str
) -> None:
    device = Device("a GPU", architecture, "a driver", "", kernels)
    vendor = "NVIDIA" if backend == "cuda" else "AMD"
    found = facts({backend: Answer("", [device])})[f"{vendor} device 0: kernels"]
    assert found[0] == verdict
    assert detail in found[1]


def test_driver_that_hangs_is_a_problem_and_holds_nothing_up() -> None:
    # One hangs, and the other answers.
    script = f"import sys, time; print({SAID!r}) if sys.argv[1] == 'hip' else time.sleep(600)"
    answers = drivers.ask(3, (sys.executable, "-c", script))
    assert [device.name for device in answers["hip"].devices] == ["x"]
    verdict, detail = facts(answers)["NVIDIA driver"]
    assert verdict == "problem"
    assert "did not answer within 3 s" in detail


def test_driver_that_ends_the_process_is_a_problem() -> None:
    answers = drivers.ask(60, (sys.executable, "-c", "import os; os.abort()"))
    verdict, detail = facts(answers)["NVIDIA driver"]
    assert verdict == "problem"
    assert "ended with -6" in detail


def test_drivers_are_asked_as_an_engine_asks_them() -> None:
    assert drivers.backends() == _core.backends()
