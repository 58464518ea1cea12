# SPDX-License-Identifier: Apache-2.0
"""What the kernel reports about this machine's GPUs. Everything else is unknown."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvferry.doctor import pci, sharing
from kvferry.doctor.fact import Fact, read


def examine_gpus(
    root: Path = Path("/"), affinity: frozenset[int] | None = None, environment: Mapping[str, str] = os.environ
) -> list[Fact]:
    """Examine the GPUs without asking their drivers.

    Parameters
    ----------
    root
        Root of the file system that has ``proc`` and ``sys``.
    affinity
        Processors that this process can use. None: the kernel is asked.
    environment
        Environment variables of this process.

    """
    cpus = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    facts = [*_drivers(root, environment)]
    for device in pci.gpus(root):
        facts += [pci.link(device), pci.node(device, root, cpus), pci.acs(device), sharing.vgpu(device, root)]
        if pci.vendor_of(device) == "NVIDIA":
            facts.append(sharing.mig(device, root))
    if not facts:
        return [Fact("GPU", "unknown", "the kernel shows none")]
    return [*facts, pci.iommu(root), sharing.mps(root, environment)]


def _drivers(root: Path, environment: Mapping[str, str]) -> Iterator[Fact]:
    if version := re.search(r"Module\s+([\d.]+)", read(root / "proc/driver/nvidia/version")):
        yield Fact("NVIDIA driver", "ok", version[1])
    if (root / "sys/class/kfd").is_dir():
        version_text = read(root / "sys/module/amdgpu/version") or "that of the kernel"
        yield Fact("AMD driver", "ok", f"amdgpu {version_text}, with kfd")
        yield _xnack(root, environment)
    elif (root / "sys/module/amdgpu").is_dir():
        yield Fact("AMD driver", "problem", "amdgpu without kfd: load the driver of ROCm")


def _xnack(root: Path, environment: Mapping[str, str]) -> Fact:
    noretry = read(root / "sys/module/amdgpu/parameters/noretry")
    costs = "page faults are retried, which makes kernels slower, and kvferry does not need it"
    if environment.get("HSA_XNACK") == "1":
        return Fact("XNACK", "note", f"on in this process (HSA_XNACK=1): {costs}; unset it unless the engine needs it")
    if noretry == "0":
        return Fact("XNACK", "note", f"on by default (amdgpu.noretry=0): {costs}; boot with amdgpu.noretry=-1")
    if not noretry:
        return Fact("XNACK", "unknown", "amdgpu does not show noretry")
    return Fact("XNACK", "ok", f"off by default (amdgpu.noretry={noretry})")
