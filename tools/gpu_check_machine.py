# SPDX-License-Identifier: Apache-2.0
"""What the machine of a GPU check is: its device, and the tools on it. Standard library only."""

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK_FIELDS = (
    "name", "driver_version", "pci.bus_id", "memory.total", "pcie.link.gen.max", "pcie.link.gen.current",
    "pcie.link.width.max", "pcie.link.width.current", "clocks.max.sm", "clocks.max.mem", "power.limit",
)  # fmt: skip


@dataclass
class Gpu:
    """A device that the checks can run on."""

    name: str
    #: As nvcc counts it: "90". Empty for devices that need no code of their own.
    architecture: str = ""


class MissingDeviceError(Exception):
    """There is no such device; one line that says why."""


def output_of(*command: str) -> str:
    """Return what a command prints; empty if it cannot be run or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_gpu(backend: str) -> Gpu:
    """Return device 0 of the back end, asked of its driver and of nobody else.

    Raises
    ------
    MissingDeviceError
        If there is no driver or no device.
    """
    if backend == "cuda":
        return find_cuda()
    if backend == "hip":
        return find_hip()
    return Gpu(backend)


def open_library(*names: str) -> ctypes.CDLL:
    """Open the first library that there is."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise MissingDeviceError(f"there is no GPU: {names[0]} is not found")


def find_cuda() -> Gpu:
    """Ask libcuda for the first device."""
    cuda = open_library("libcuda.so.1")
    if status := cuda.cuInit(0):
        raise MissingDeviceError(f"there is no GPU: cuInit says {status}")
    count = ctypes.c_int(0)
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise MissingDeviceError("there is no GPU: the driver has no device")
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, 128, 0)
    numbers = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int(0)
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        numbers.append(str(value.value))
    return Gpu(name.value.decode(), "".join(numbers))


def find_hip() -> Gpu:
    """Ask libamdhip64 for the first device."""
    hip = open_library("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")
    count = ctypes.c_int(0)
    if hip.hipGetDeviceCount(ctypes.byref(count)) or count.value == 0:
        raise MissingDeviceError("there is no GPU: the driver has no device")
    name = ctypes.create_string_buffer(128)
    hip.hipDeviceGetName(name, 128, 0)
    return Gpu(name.value.decode() or "AMD GPU")


def find_nvcc() -> str:
    """Return nvcc's path as the build searches it; empty if there is none."""
    folders = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [Path(folder) / "bin/nvcc" for folder in [*folders, "/usr/local/cuda"] if folder]
    candidates.append(ROOT / "build/nvcc/nvidia/cu13/bin/nvcc")
    found = shutil.which("nvcc") or next((str(path) for path in candidates if path.exists()), "")
    return found


def first_line(path: str, key: str) -> str:
    """Return the value of the first line of a file in /proc that starts with the key."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def environment(backend: str, gpu: Gpu) -> dict[str, str]:
    """Describe the machine: what a reader of the figures has to know."""
    found = {
        "backend": backend,
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "commit": output_of("git", "describe", "--always", "--dirty") or "unknown (no git here)",
        "kernel": platform.release(),
        "processor": first_line("/proc/cpuinfo", "model name") or platform.machine(),
        "processors": str(os.cpu_count()),
        "memory": first_line("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "cmake": (output_of("cmake", "--version").splitlines() or [""])[0],
        "compiler": (output_of("c++", "--version").splitlines() or [""])[0],
    }
    if nvcc := find_nvcc():
        found["toolkit"] = output_of(nvcc, "--version").splitlines()[-1]
    if backend == "cuda":
        values = output_of("nvidia-smi", f"--query-gpu={','.join(LINK_FIELDS)}", "--format=csv,noheader", "--id=0")
        for field, value in zip(LINK_FIELDS, values.split(", "), strict=False):
            found[f"nvidia-smi {field}"] = value
        bus = found.get("nvidia-smi pci.bus_id", "").lower()
        node = Path(f"/sys/bus/pci/devices/{bus[4:]}/numa_node") if bus else Path("/nowhere")
        if node.exists():
            found["numa node"] = node.read_text().strip()
    return {key: value for key, value in found.items() if value}


def missing_tools(backend: str) -> list[str]:
    """Return one line for each tool that the checks want and that is not here."""
    wanted = {
        "cmake": "configures the build (Python package cmake)",
        "c++": "compiles it (package g++)",
    }
    missing = [f"{tool} is missing: {what}" for tool, what in wanted.items() if not shutil.which(tool)]
    if not shutil.which("ninja") and not shutil.which("make"):
        missing.append("ninja and make are missing: one of them runs the build (Python package ninja)")
    if backend == "cuda":
        if not find_nvcc():
            missing.append("nvcc is missing: without it there are no kernels (CUDA toolkit, or CUDA_HOME)")
        if not shutil.which("compute-sanitizer"):
            missing.append("compute-sanitizer is missing: its steps do not run (CUDA toolkit)")
        if not shutil.which("nvidia-smi"):
            missing.append("nvidia-smi is missing: the report says nothing about the link")
    return missing
