# SPDX-License-Identifier: Apache-2.0
"""The device of the engine's KV cache, and kvferry's back end for it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvferry import _core
from kvferry.errors import ConfigError
from kvferry.vllm.ring_room import DeviceMemory


@dataclass(frozen=True)
class KvDevice:
    """The device that holds one rank's KV cache.

    Attributes
    ----------
    backend
        ``"host"``, ``"cuda"`` or ``"hip"``.
    ordinal
        Number of the device in this process; 0 for the host.
    driver_library
        Library of the vendor's driver; empty: the system's own.

    """

    backend: str
    ordinal: int = 0
    driver_library: str = ""

    def compute_stream(self) -> int:
        """Native handle of the stream on which the calling thread computes; 0 for the host, which has no streams."""
        if self.backend == "host":
            return 0
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def memory(self, utilization: float | None, profiled_bytes: int) -> DeviceMemory | None:
        """Return the current state of the device's memory.

        Parameters
        ----------
        utilization
            ``gpu_memory_utilization``: the engine's share of the device, from 0 to 1. None: the engine has
            ``kv_cache_memory_bytes`` instead.
        profiled_bytes
            Result of `profiled_bytes` before the KV cache was allocated.

        Returns
        -------
        DeviceMemory | None
            None for the host, whose memory the tier checks itself. PyTorch reports the memory of this process, and does
            not see that of NCCL and the driver, which counts as other processes' memory. That makes the ring smaller,
            and leaves the engine its share.

        """
        if self.backend == "host":
            return None
        free_bytes, total_bytes = map(int, torch.cuda.mem_get_info(self.ordinal))
        return DeviceMemory(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            own_bytes=int(torch.cuda.memory_reserved(self.ordinal)),
            requested_bytes=None if utilization is None else math.ceil(total_bytes * utilization),
            pending_bytes=profiled_bytes,
        )


def profiled_bytes() -> int:
    """Bytes of its current device that this process has used and freed: the activations of the profile run.

    0 if PyTorch has used no device. The result has this meaning only until the KV cache is allocated.
    """
    if not torch.cuda.is_initialized():
        return 0
    return max(0, int(torch.cuda.max_memory_allocated()) - int(torch.cuda.memory_allocated()))


def find(tensors: Iterable[torch.Tensor], wanted: str) -> KvDevice:
    """Find the device of the KV cache.

    Parameters
    ----------
    tensors
        The KV cache of one rank.
    wanted
        The key ``backend``: ``"auto"``, or the name of the only allowed back end.

    Raises
    ------
    ConfigError
        The tensors are on several devices, or on one that `wanted` or this build excludes. The message says why.

    """
    devices = {tensor.device for tensor in tensors}
    found = ", ".join(sorted(map(str, devices)))
    backend = _backend_of(next(iter(devices)).type) if len(devices) == 1 else None
    if backend is None or wanted not in ("auto", backend):
        raise ConfigError(
            f"the KV cache is on {found} and backend is {wanted!r}; allowed is one device: cpu (back end host) or a "
            "GPU of NVIDIA (cuda) or AMD (hip), and backend 'auto' or the one of that device; leave the key out, or "
            "start vLLM without KvFerryConnector"
        )
    # The host is always available; asking for the others would load and start their drivers.
    if backend != "host" and (why_not := _core.backends()[backend]):
        raise ConfigError(
            f"the KV cache is on {found}, and the back end {backend!r} is not available; fix what `kvferry doctor` "
            f"reports, or start vLLM without KvFerryConnector: {why_not}"
        )
    return KvDevice(backend, devices.pop().index or 0)


def _backend_of(device_type: str) -> str | None:
    # PyTorch calls AMD's GPUs cuda too.
    of_gpu = "cuda" if torch.version.hip is None else "hip"
    return {"cpu": "host", "cuda": of_gpu}.get(device_type)
