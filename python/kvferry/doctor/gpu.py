# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of this machine's GPUs: one line a fact, with a verdict; what it keeps to itself is unknown."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# Display controllers (03) and processing accelerators (12).
_CLASSES = ("0x03", "0x12")


@dataclass(frozen=True)
class GpuFact:
    """One fact; `verdict` is ``"ok"``, ``"note"``, ``"problem"`` or ``"unknown"``; `detail` says what to do."""

    name: str
    verdict: str
    detail: str


def examine_gpus(root: Path = Path("/"), affinity: frozenset[int] | None = None) -> list[GpuFact]:
    """Look at the GPUs.

    Parameters
    ----------
    root
        Of the file system that has ``proc`` and ``sys``.
    affinity
        Processors that this process may use. None: as the kernel says.

    """
    cpus = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    facts = [*_drivers(root)]
    for device in _devices(root):
        facts += [_link(device), _node(device, root, cpus)]
    return [*facts, _iommu(root), _mps()] if facts else [GpuFact("GPU", "unknown", "the kernel shows none")]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _drivers(root: Path) -> Iterator[GpuFact]:
    if version := re.search(r"Module\s+([\d.]+)", _read(root / "proc/driver/nvidia/version")):
        yield GpuFact("NVIDIA driver", "ok", version[1])
    if (root / "sys/class/kfd").is_dir():
        version_text = _read(root / "sys/module/amdgpu/version") or "that of the kernel"
        yield GpuFact("AMD driver", "ok", f"amdgpu {version_text}, with kfd")
    elif (root / "sys/module/amdgpu").is_dir():
        yield GpuFact("AMD driver", "problem", "amdgpu without kfd: load the driver of ROCm")


def _devices(root: Path) -> Iterator[Path]:
    folder = root / "sys/bus/pci/devices"
    for device in sorted(folder.iterdir()) if folder.is_dir() else []:
        if _read(device / "vendor") in _VENDORS and _read(device / "class").startswith(_CLASSES):
            yield device


def _name(device: Path, what: str) -> str:
    return f"{_VENDORS[_read(device / 'vendor')]} {device.name}: {what}"


def _link(device: Path) -> GpuFact:
    now, best = (
        (_read(device / f"{which}_link_speed"), _read(device / f"{which}_link_width")) for which in ("current", "max")
    )
    name = _name(device, "PCIe link")
    if not all((*now, *best)) or "Unknown" in (now[0], best[0]):
        return GpuFact(name, "unknown", "the kernel does not tell (a virtual machine, a container or a vGPU)")
    text = f"{now[0]} x{now[1]}, at best {best[0]} x{best[1]}"
    if now[1] != best[1]:
        return GpuFact(name, "problem", f"{text}: fewer lanes; look at the slot, the riser and the firmware's settings")
    if now[0] != best[0]:
        return GpuFact(name, "note", f"{text}: idle GPUs lower their speed; look again under load")
    return GpuFact(name, "ok", text)


def _node(device: Path, root: Path, affinity: frozenset[int]) -> GpuFact:
    node, name = _read(device / "numa_node"), _name(device, "NUMA node")
    cpus = _cpus_of(_read(root / f"sys/devices/system/node/node{node}/cpulist"))
    if not node.isdecimal() or not cpus:
        return GpuFact(name, "unknown", "the kernel does not tell; set numa_node if the machine has several")
    if not cpus & affinity:
        return GpuFact(
            name, "problem", f"{node}, and this process runs on none of its processors: numactl --cpunodebind={node}"
        )
    return GpuFact(name, "ok", node)


def _cpus_of(text: str) -> set[int]:
    return {
        cpu
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
        for cpu in range(int(first), int(last or first) + 1)
    }


def _iommu(root: Path) -> GpuFact:
    groups = root / "sys/class/iommu"
    if not groups.is_dir():
        return GpuFact("IOMMU", "unknown", "the kernel does not tell")
    if not any(groups.iterdir()):
        return GpuFact("IOMMU", "ok", "off")
    if "iommu=pt" in _read(root / "proc/cmdline"):
        return GpuFact("IOMMU", "ok", "on, in pass-through")
    return GpuFact("IOMMU", "note", "on, and may translate: if copies are slow, boot with iommu=pt")


def _mps() -> GpuFact:
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return GpuFact("MPS", "note", "on: memory of a killed process stays in quarantine in a shared tier")
    return GpuFact("MPS", "ok", "not asked for in this process's environment")
