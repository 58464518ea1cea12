# SPDX-License-Identifier: Apache-2.0
"""How GPUs are connected to this machine: PCIe link, NUMA node, IOMMU, and bridges that redirect copies."""

import re
from collections.abc import Iterator
from pathlib import Path

from kvferry.doctor.fact import Fact, read

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# Display controllers (03) and processing accelerators (12).
_CLASSES = ("0x03", "0x12")
_BRIDGE = "0x0604"
# PCI Express Base Specification, "Access Control Services Extended Capability".
_ACS_ID = 0x000D
_ACS_CONTROL = 6
_REDIRECTS_PEERS = 0x4 | 0x8


def gpus(root: Path) -> Iterator[Path]:
    """Yield each GPU's folder in sysfs."""
    folder = root / "sys/bus/pci/devices"
    for device in sorted(folder.iterdir()) if folder.is_dir() else []:
        if read(device / "vendor") in VENDORS and read(device / "class").startswith(_CLASSES):
            yield device


def vendor_of(device: Path) -> str:
    """Return the name of a GPU's vendor."""
    return VENDORS[read(device / "vendor")]


def name_of(device: Path, what: str) -> str:
    """Name a fact about a GPU."""
    return f"{vendor_of(device)} {device.name}: {what}"


def link(device: Path) -> Fact:
    """Report the current and the best speed and width of the PCIe link."""
    now, best = (
        (read(device / f"{which}_link_speed"), read(device / f"{which}_link_width")) for which in ("current", "max")
    )
    name = name_of(device, "PCIe link")
    if not all((*now, *best)) or "Unknown" in (now[0], best[0]):
        return Fact(name, "unknown", "the kernel does not report it (a virtual machine, a container or a vGPU)")
    text = f"{now[0]} x{now[1]}, at best {best[0]} x{best[1]}"
    if now[1] != best[1]:
        return Fact(name, "problem", f"{text}: fewer lanes; check the slot, the riser and the firmware's settings")
    if now[0] != best[0]:
        return Fact(name, "note", f"{text}: idle GPUs lower their speed; check again under load")
    return Fact(name, "ok", text)


def node(device: Path, root: Path, affinity: frozenset[int]) -> Fact:
    """Report the GPU's NUMA node, and whether this process can run there."""
    number, name = read(device / "numa_node"), name_of(device, "NUMA node")
    cpus = _cpus_of(read(root / f"sys/devices/system/node/node{number}/cpulist"))
    if not number.isdecimal() or not cpus:
        return Fact(name, "unknown", "the kernel does not report it; set numa_node if the machine has several")
    if not cpus & affinity:
        return Fact(
            name,
            "problem",
            f"{number}, but this process runs on none of its processors: use numactl --cpunodebind={number}",
        )
    return Fact(name, "ok", number)


def _cpus_of(text: str) -> set[int]:
    return {
        cpu
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
        for cpu in range(int(first), int(last or first) + 1)
    }


def acs(device: Path) -> Fact:
    """Report whether a bridge above the GPU sends copies between GPUs through the root complex."""
    name = name_of(device, "ACS")
    bridges = [folder for folder in device.resolve().parents if read(folder / "class").startswith(_BRIDGE)]
    controls = {bridge.name: _acs_control(bridge) for bridge in bridges}
    redirecting = [bridge for bridge, control in controls.items() if control is not None and control & _REDIRECTS_PEERS]
    if redirecting:
        return Fact(
            name, "note",
            f"{', '.join(redirecting)} redirects copies between GPUs: kvferry makes none, but NCCL's are slower; if "
            "one tenant has all GPUs, switch ACS off in the firmware",
        )  # fmt: skip
    if not controls:
        return Fact(name, "unknown", "the kernel shows no bridge (a virtual machine)")
    if None in controls.values():
        return Fact(name, "unknown", "only root can read it: sudo lspci -vvv shows ACSCtl of each bridge")
    return Fact(name, "ok", "no bridge redirects copies between GPUs")


def _acs_control(bridge: Path) -> int | None:
    """Return the register, 0 if the bridge has none; None if it cannot be read."""
    try:
        space = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(space) <= 0x100:
        return None
    at, seen = 0x100, set[int]()
    while 0x100 <= at <= len(space) - 8 and at not in seen:
        seen.add(at)
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS_ID:
            return int.from_bytes(space[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
        at = header >> 20
    return 0


def iommu(root: Path) -> Fact:
    """Report whether the IOMMU may translate the addresses of the GPUs' copies."""
    groups = root / "sys/class/iommu"
    if not groups.is_dir():
        return Fact("IOMMU", "unknown", "the kernel does not report it")
    if not any(groups.iterdir()):
        return Fact("IOMMU", "ok", "off")
    if "iommu=pt" in read(root / "proc/cmdline"):
        return Fact("IOMMU", "ok", "on, in pass-through")
    return Fact("IOMMU", "note", "on, and may translate addresses: if copies are slow, boot with iommu=pt")
