# SPDX-License-Identifier: Apache-2.0
"""What is available to this process on this machine: versions, back ends, memory and its limits, NUMA nodes."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from kvferry import _core
from kvferry.doctor import drivers
from kvferry.doctor.fact import Fact
from kvferry.doctor.gpu import examine_gpus
from kvferry.doctor.kernels import examine_kernels
from kvferry.doctor.packages import PACKAGES, version_of
from kvferry.doctor.pinning import Limit
from kvferry.doctor.plugin import examine_plugin
from kvferry.errors import Error

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node that this process may use."""

    number: int
    memory_bytes: int
    num_cpus: int


@dataclass(frozen=True)
class SharedMemory:
    """The file system of ``/dev/shm``, where kvferry's processes record the memory that they were granted."""

    size_bytes: int
    free_bytes: int
    is_writable: bool


@dataclass(frozen=True)
class HugePages:
    """The machine's pool of huge pages."""

    page_bytes: int
    num_total: int
    num_free: int
    num_more: int


@dataclass(frozen=True)
class Findings:
    """Everything that was found.

    Attributes
    ----------
    versions
        By name; None for what is not installed.
    plugin
        Whether vLLM would find the connector by its name.
    backends
        For each back end, why it is not available; empty if it is.
    limits
        The limits on more host memory.
    memlock_bytes
        Bytes that can be locked; None: unlimited.
    shared_memory
        None: there is none.
    huge_pages
        The machine's pool.
    numa_nodes
        None: the machine does not report them.
    gpus
        What the kernel and the drivers report about the GPUs, and whether this build's kernels fit them.

    """

    versions: dict[str, str | None]
    plugin: Fact
    backends: dict[str, str]
    limits: list[Limit]
    memlock_bytes: int | None
    shared_memory: SharedMemory | None
    huge_pages: HugePages
    numa_nodes: list[NumaNode] | None
    gpus: list[Fact]

    @property
    def usable_devices(self) -> list[str]:
        """The back ends for GPUs that are available."""
        return [name for name in drivers.BACKENDS if not self.backends[name]]


def examine() -> Findings:
    """Examine everything. Changes nothing, and loads neither vLLM nor torch."""
    return Findings(
        versions={
            "kvferry": _core.__version__,
            "python": platform.python_version(),
            **{name: version_of(name) for name in PACKAGES},
        },
        plugin=examine_plugin(os.environ),
        backends=drivers.backends(),
        limits=[Limit(*limit) for limit in _core.memory_limits()],
        memlock_bytes=_core.memlock_limit_bytes(),
        shared_memory=_shared_memory(),
        huge_pages=HugePages(**_core.huge_page_pool()),
        numa_nodes=_numa_nodes(),
        gpus=[*examine_gpus(), *examine_kernels(drivers.answers())],
    )


def _shared_memory() -> SharedMemory | None:
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return SharedMemory(
        found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, os.access(_SHARED_MEMORY, os.W_OK)
    )


def _numa_nodes() -> list[NumaNode] | None:
    try:
        return [NumaNode(*node) for node in _core.numa_nodes()]
    except Error:
        return None
