# SPDX-License-Identifier: Apache-2.0
"""Collect facts about the machine of a GPU check, each with its source. This uses the standard library only.

``gpu_check_machine.py cuda`` prints the facts as JSON. The check runs it as a process of its own, because the first
call of a driver can hang.
"""

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_check_process import ROOT

#: The driver library of each back end. Only `device_of` calls its functions here.
LIBRARIES = {"cuda": ("libcuda.so.1", "libcuda.so"), "hip": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")}
SMI_FIELDS = (
    "name", "driver_version", "pci.bus_id", "memory.total", "memory.used", "pcie.link.gen.max", "pcie.link.gen.current",
    "pcie.link.width.max", "pcie.link.width.current", "clocks.max.sm", "clocks.max.mem", "power.limit",
    "ecc.mode.current", "mig.mode.current", "compute_mode", "persistence_mode",
)  # fmt: skip
#: The values that change while figures are measured: they are read before and after each bench.
SMI_STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate", "clocks_throttle_reasons.active")
SYSFS_LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "numa_node")
Facts = dict[str, tuple[str, str]]


class MissingDeviceError(Exception):
    """There is no such device; the message says why in one line."""


def output_of(*command: str) -> str:
    """Return what a command prints; empty if it cannot be run, fails, or takes more than ten seconds."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def open_library(backend: str) -> ctypes.CDLL | None:
    """Open the back end's driver library, without calling any of its functions.

    Raises
    ------
    MissingDeviceError
        If there is none.

    """
    if backend not in LIBRARIES:
        return None
    for name in LIBRARIES[backend]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise MissingDeviceError(f"there is no GPU: {LIBRARIES[backend][0]} cannot be opened")


def device_of(backend: str) -> Facts:
    """Ask the driver alone what its first device is.

    Raises
    ------
    MissingDeviceError
        If the driver has none.

    """
    library = open_library(backend)
    name = ctypes.create_string_buffer(128)
    bus = ctypes.create_string_buffer(32)
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if library is None:
        return {"gpu": (backend, "--backend")}
    if backend == "hip":
        if library.hipGetDeviceCount(ctypes.byref(count)) or count.value == 0:
            raise MissingDeviceError("there is no GPU: the driver has no device")
        library.hipDeviceGetName(name, 128, 0)
        library.hipDeviceGetPCIBusId(bus, 32, 0)
        library.hipDriverGetVersion(ctypes.byref(version))
        prefix = "hip"
    else:
        status = library.cuInit(0)
        if status or library.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
            raise MissingDeviceError(f"there is no GPU: the driver has no device (cuInit: {status})")
        library.cuDeviceGetName(name, 128, 0)
        library.cuDeviceGetPCIBusId(bus, 32, 0)
        library.cuDriverGetVersion(ctypes.byref(version))
        prefix = "cu"
    facts = {
        "gpu": (name.value.decode() or "AMD GPU", f"{prefix}DeviceGetName"),
        "devices": (str(count.value), f"{prefix}DeviceGetCount"),
        "bus": (bus.value.decode().lower(), f"{prefix}DeviceGetPCIBusId"),
        "driver interface": (str(version.value), f"{prefix}DriverGetVersion"),
    }
    if backend == "cuda":
        numbers = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)
            value = ctypes.c_int(0)
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
            numbers.append(str(value.value))
        facts["architecture"] = ("".join(numbers), "cuDeviceGetAttribute")
    return facts


def nvidia_smi(fields: tuple[str, ...]) -> dict[str, str]:
    """Ask nvidia-smi for fields of device 0, one by one if it does not know them all."""
    if not shutil.which("nvidia-smi"):
        return {}

    def ask(*asked: str) -> list[str]:
        return output_of("nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader", "--id=0").split(", ")

    values = ask(*fields)
    if len(values) != len(fields):
        values = [", ".join(ask(field)) for field in fields]
    return {field: value for field, value in zip(fields, values, strict=True) if value and value != "[N/A]"}


def read(path: str | Path) -> str:
    """Return a small file's text; empty if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def first_line(path: str, key: str) -> str:
    """Return the value of the first line of a file in /proc that starts with the key."""
    lines = (line for line in read(path).splitlines() if line.startswith(key))
    return next((line.split(":", 1)[1].strip() for line in lines), "")


def link_facts(bus: str) -> Facts:
    """Return what the kernel says about the device's slot, and how far it is from the processors of this process."""
    folder = Path("/sys/bus/pci/devices") / bus
    facts = {name.replace("_", " "): (read(folder / name), str(folder / name)) for name in SYSFS_LINK}
    node = facts["numa node"][0]
    if node.isdigit():
        path = f"/sys/devices/system/node/node{node}/distance"
        facts["distance of NUMA nodes to the GPU's"] = (read(path), path)
    return facts


def nvcc() -> str:
    """Return the path of nvcc, searched for in the same way as in the build; empty if there is none."""
    folders = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [Path(folder) / "bin/nvcc" for folder in [*folders, "/usr/local/cuda"] if folder]
    candidates.append(ROOT / "build/nvcc/nvidia/cu13/bin/nvcc")
    return shutil.which("nvcc") or next((str(path) for path in candidates if path.exists()), "")


def host_facts() -> Facts:
    """Return what a reader of the figures needs to know about the machine around the GPU."""
    affinity = os.sched_getaffinity(0)
    facts = {
        "kernel": (platform.release(), "uname"),
        "processor": (first_line("/proc/cpuinfo", "model name") or platform.machine(), "/proc/cpuinfo"),
        "processors": (f"{os.cpu_count()}, {len(affinity)} of them for us", "sched_getaffinity"),
        "memory": (first_line("/proc/meminfo", "MemTotal"), "/proc/meminfo"),
        "memory available": (first_line("/proc/meminfo", "MemAvailable"), "/proc/meminfo"),
        "memory limit": (read("/sys/fs/cgroup/memory.max"), "/sys/fs/cgroup/memory.max"),
        "locked memory limit": (re.sub(r"\s+", " ", first_limit("Max locked memory")), "/proc/self/limits"),
        "NUMA nodes": (read("/sys/devices/system/node/online"), "/sys/devices/system/node/online"),
        "IOMMU groups": (str(len(list(Path("/sys/kernel/iommu_groups").glob("*")))), "/sys/kernel/iommu_groups"),
        "C library": (" ".join(platform.libc_ver()), "platform.libc_ver"),
        "python": (platform.python_version(), "platform"),
        "cmake": ((output_of("cmake", "--version").splitlines() or [""])[0], "cmake --version"),
        "compiler": ((output_of("c++", "--version").splitlines() or [""])[0], "c++ --version"),
        "commit": (output_of("git", "describe", "--always", "--dirty") or "unknown (no git here)", "git describe"),
    }
    if path := nvcc():
        facts["toolkit"] = ((output_of(path, "--version").splitlines() or [""])[-1], "nvcc --version")
    return facts


def first_limit(name: str) -> str:
    """Return one row of /proc/self/limits."""
    lines = (line for line in read("/proc/self/limits").splitlines() if line.startswith(name))
    return next((line.removeprefix(name).strip() for line in lines), "")


def describe(backend: str) -> Facts:
    """Return all facts: name -> value and its source.

    Raises
    ------
    MissingDeviceError
        If there is no device.

    """
    facts = device_of(backend) | host_facts()
    if backend == "cuda":
        facts |= {f"smi {field}": (value, "nvidia-smi") for field, value in nvidia_smi(SMI_FIELDS).items()}
    if bus := facts.get("bus", ("", ""))[0]:
        facts |= link_facts(bus)
    return {name: fact for name, fact in facts.items() if fact[0]}


def missing_tools(backend: str) -> list[str]:
    """Return one line for each missing tool that a step needs."""
    missing = []
    if backend == "cuda":
        if not shutil.which("compute-sanitizer"):
            missing.append("compute-sanitizer is missing (CUDA toolkit): the third call's first steps do not run")
        if not shutil.which("nvidia-smi"):
            missing.append("nvidia-smi is missing: the report says nothing about clocks and power")
    return missing


if __name__ == "__main__":
    try:
        print(json.dumps(describe(sys.argv[1])))
    except MissingDeviceError as reason:
        print(reason)
        sys.exit(3)
