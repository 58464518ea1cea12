# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of GPUs on machines that are made up of files."""

from pathlib import Path

import pytest
from kvferry.doctor.gpu import examine_gpus


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def device(address: str, vendor: str, node: str, **link: str) -> dict[str, str]:
    at = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", **link}
    best = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    facts = {"vendor": vendor, "class": "0x030200", "numa_node": node, **at, **best}
    return {f"sys/bus/pci/devices/{address}/{name}": text for name, text in facts.items()}


NODES = {f"sys/devices/system/node/node{n}/cpulist": f"{16 * n}-{16 * n + 15}" for n in range(2)}
NVIDIA = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul"}


def verdicts(root: Path, cpus: range) -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.verdict, fact.detail) for fact in examine_gpus(root, frozenset(cpus))}


def test_two_gpus_of_two_nodes(tmp_path: Path) -> None:
    idle = device("0000:c1:00.0", "0x10de", "1", current_link_speed="2.5 GT/s PCIe")
    write(tmp_path, NVIDIA | NODES | device("0000:41:00.0", "0x10de", "0") | idle)
    found = verdicts(tmp_path, range(16))
    assert found["NVIDIA driver"] == ("ok", "580.65.06")
    assert found["NVIDIA 0000:41:00.0: PCIe link"][0] == found["NVIDIA 0000:41:00.0: NUMA node"][0] == "ok"
    assert found["NVIDIA 0000:c1:00.0: PCIe link"][0] == "note"
    assert "under load" in found["NVIDIA 0000:c1:00.0: PCIe link"][1]
    assert found["NVIDIA 0000:c1:00.0: NUMA node"][0] == "problem"
    assert "numactl --cpunodebind=1" in found["NVIDIA 0000:c1:00.0: NUMA node"][1]


def test_link_of_fewer_lanes_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, NVIDIA | NODES | device("0000:41:00.0", "0x10de", "0", current_link_width="8"))
    assert verdicts(tmp_path, range(16))["NVIDIA 0000:41:00.0: PCIe link"][0] == "problem"


def test_guest_whose_kernel_tells_little(tmp_path: Path) -> None:
    write(tmp_path, NVIDIA | device("0000:00:05.0", "0x10de", "-1", current_link_speed="Unknown"))
    found = verdicts(tmp_path, range(4))
    assert found["NVIDIA 0000:00:05.0: PCIe link"][0] == found["NVIDIA 0000:00:05.0: NUMA node"][0] == "unknown"


def test_container_that_shows_the_driver_only(tmp_path: Path) -> None:
    write(tmp_path, NVIDIA)
    assert list(verdicts(tmp_path, range(4))) == ["NVIDIA driver", "IOMMU", "MPS"]


@pytest.mark.parametrize(("kfd", "verdict"), [(True, "ok"), (False, "problem")])
def test_gpu_of_amd(tmp_path: Path, kfd: bool, verdict: str) -> None:
    write(tmp_path, NODES | {"sys/module/amdgpu/version": "6.12.12"} | device("0000:05:00.0", "0x1002", "0"))
    write(tmp_path, {"sys/class/iommu/ivhd0/x": "", "proc/cmdline": "quiet iommu=pt"})
    if kfd:
        write(tmp_path, {"sys/class/kfd/kfd/dev": "236:0"})
    found = verdicts(tmp_path, range(4))
    assert found["AMD driver"][0] == verdict
    assert found["AMD 0000:05:00.0: PCIe link"][0] == "ok"
    assert found["IOMMU"] == ("ok", "on, in pass-through")


def test_machine_without_a_gpu(tmp_path: Path) -> None:
    assert verdicts(tmp_path, range(4)) == {"GPU": ("unknown", "the kernel shows none")}
