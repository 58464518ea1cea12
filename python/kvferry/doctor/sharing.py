# SPDX-License-Identifier: Apache-2.0
"""Whether other processes or guests share a GPU with this process: MIG, vGPU, MPS."""

import re
from collections.abc import Mapping
from pathlib import Path

from kvferry.doctor.fact import Fact, read
from kvferry.doctor.pci import name_of, vendor_of


def mig(device: Path, root: Path) -> Fact:
    """Report whether an NVIDIA GPU is divided."""
    name, nvidia = name_of(device, "MIG"), root / "proc/driver/nvidia"
    minor = re.search(r"Device Minor:\s*(\d+)", read(nvidia / "gpus" / device.name / "information"))
    folder = nvidia / f"capabilities/gpu{minor[1]}" if minor else None
    if folder is None or not folder.is_dir():
        return Fact(name, "unknown", "not reported; nvidia-smi --query-gpu=mig.mode.current --format=csv shows it")
    num_instances = len(list(folder.glob("mig/gi*")))
    if num_instances == 0:
        return Fact(name, "ok", "no instances")
    return Fact(
        name, "note",
        f"{num_instances} instances: an engine gets one (CUDA_VISIBLE_DEVICES), and all share the PCIe link above",
    )  # fmt: skip


def vgpu(device: Path, root: Path) -> Fact:
    """Report whether this is a part of a GPU, or a GPU of which guests have parts."""
    name = name_of(device, "vGPU")
    if (device / "physfn").exists():
        return Fact(name, "note", "this is a virtual function: other users share the GPU and its PCIe link")
    if read(device / "sriov_numvfs") not in ("", "0"):
        return Fact(name, "note", f"{read(device / 'sriov_numvfs')} virtual functions: guests share its PCIe link")
    if vendor_of(device) == "NVIDIA" and (root / "etc/nvidia/gridd.conf").exists():
        return Fact(name, "note", "this guest is set up for vGPU: other guests may share the GPU and its PCIe link")
    if re.search(r"^flags\s*:.*\bhypervisor\b", read(root / "proc/cpuinfo"), re.MULTILINE):
        return Fact(name, "unknown", "a virtual machine: whole GPU or vGPU? nvidia-smi -q shows Virtualization Mode")
    return Fact(name, "ok", "none")


def mps(root: Path, environment: Mapping[str, str]) -> Fact:
    """Report whether CUDA uses NVIDIA's Multi-Process Service: its variable is set, or its daemon's folder exists."""
    if "CUDA_MPS_PIPE_DIRECTORY" in environment or (root / "tmp/nvidia-mps/control").exists():
        return Fact("MPS", "note", "on: in a shared tier, memory of a killed process stays in quarantine")
    return Fact("MPS", "ok", "off")
