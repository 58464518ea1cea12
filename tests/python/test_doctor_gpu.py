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


def verdicts(root: Path, cpus: range, **environment: str) -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.verdict, fact.detail) for fact in examine_gpus(root, frozenset(cpus), environment)}


def test_two_gpus_of_two_nodes(tmp_path: Path) -> None:
    idle = device("0000:c1:00.0", "0x10de", "1", current_link_speed="2.5 GT/s PCIe")
    write(tmp_path, NVIDIA | NODES | device("0000:41:00.0", "0x10de", "0") | idle)
    found = verdicts(tmp_path, range(16))
    assert found["NVIDIA driver"] == ("ok", "580.65.06")
    assert found["NVIDIA 0000:41:00.0: vGPU"] == ("ok", "none")
    assert found["NVIDIA 0000:41:00.0: MIG"][0] == "unknown"
    assert found["MPS"] == ("ok", "off")
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
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm"})
    found = verdicts(tmp_path, range(4))
    assert found["NVIDIA 0000:00:05.0: vGPU"][0] == found["NVIDIA 0000:00:05.0: ACS"][0] == "unknown"
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


ONE = NVIDIA | NODES | device("0000:41:00.0", "0x10de", "0")
MINOR_2 = {"proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: \t\t NVIDIA H100\nDevice Minor: \t 2"}


@pytest.mark.parametrize(("num_instances", "verdict"), [(0, "ok"), (3, "note")])
def test_gpu_that_is_divided(tmp_path: Path, num_instances: int, verdict: str) -> None:
    write(tmp_path, ONE | MINOR_2 | {"proc/driver/nvidia/capabilities/gpu2/mig/x": ""})
    write(tmp_path, {f"proc/driver/nvidia/capabilities/gpu2/mig/gi{i}/access": "" for i in range(num_instances)})
    found = verdicts(tmp_path, range(4))["NVIDIA 0000:41:00.0: MIG"]
    assert found[0] == verdict
    assert num_instances == 0 or found[1].startswith(f"{num_instances} instances")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sys/bus/pci/devices/0000:41:00.0/physfn/vendor", "0x10de", "this is a virtual function"),
        ("sys/bus/pci/devices/0000:41:00.0/sriov_numvfs", "4", "4 virtual functions"),
        ("etc/nvidia/gridd.conf", "FeatureType=1", "set up for vGPU"),
    ],
)
def test_gpu_that_guests_share(tmp_path: Path, name: str, text: str, said: str) -> None:
    write(tmp_path, ONE | {name: text})
    found = verdicts(tmp_path, range(4))["NVIDIA 0000:41:00.0: vGPU"]
    assert found[0] == "note"
    assert said in found[1]


def test_gpu_that_gives_no_guest_a_part(tmp_path: Path) -> None:
    write(tmp_path, ONE | {"sys/bus/pci/devices/0000:41:00.0/sriov_numvfs": "0"})
    assert verdicts(tmp_path, range(4))["NVIDIA 0000:41:00.0: vGPU"] == ("ok", "none")


def below_a_bridge(root: Path, config: bytes) -> None:
    """Put a GPU below one bridge whose configuration space is that."""
    bridge = root / "sys/devices/pci0000:40/0000:40:01.0"
    listed = root / "sys/bus/pci/devices"
    write(root, ONE)
    bridge.mkdir(parents=True)
    (listed / "0000:41:00.0").rename(bridge / "0000:41:00.0")
    (listed / "0000:41:00.0").symlink_to(bridge / "0000:41:00.0")
    (bridge / "class").write_text("0x060400\n")
    (bridge / "config").write_bytes(config)


def space_with_acs(control: int) -> bytes:
    """Return a configuration space whose second extended capability is ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("config", "verdict", "said"),
    [
        (space_with_acs(0x1D), "note", "0000:40:01.0 redirects"),
        (space_with_acs(0x01), "ok", "no bridge redirects"),
        (bytes(4096), "ok", "no bridge redirects"),
        (bytes(64), "unknown", "only root can read it"),
    ],
    ids=["redirects", "switched off", "without ACS", "not root"],
)
def test_bridge_above_a_gpu(tmp_path: Path, config: bytes, verdict: str, said: str) -> None:
    below_a_bridge(tmp_path, config)
    found = verdicts(tmp_path, range(4))["NVIDIA 0000:41:00.0: ACS"]
    assert found[0] == verdict
    assert said in found[1]


def test_mps_is_seen_by_its_variable_or_its_daemon(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    assert verdicts(tmp_path, range(4), CUDA_MPS_PIPE_DIRECTORY="/run/mps")["MPS"][0] == "note"
    write(tmp_path, {"tmp/nvidia-mps/control": ""})
    assert verdicts(tmp_path, range(4))["MPS"][0] == "note"


@pytest.mark.parametrize(
    ("noretry", "environment", "verdict"),
    [("-1", {}, "ok"), ("1", {}, "ok"), ("0", {}, "note"), ("", {}, "unknown"), ("-1", {"HSA_XNACK": "1"}, "note")],
)
def test_xnack(tmp_path: Path, noretry: str, environment: dict[str, str], verdict: str) -> None:
    write(tmp_path, NODES | device("0000:05:00.0", "0x1002", "0") | {"sys/class/kfd/kfd/dev": "236:0"})
    if noretry:
        write(tmp_path, {"sys/module/amdgpu/parameters/noretry": noretry})
    assert verdicts(tmp_path, range(4), **environment)["XNACK"][0] == verdict


def test_machine_without_a_gpu(tmp_path: Path) -> None:
    assert verdicts(tmp_path, range(4)) == {"GPU": ("unknown", "the kernel shows none")}
