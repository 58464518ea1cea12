# SPDX-License-Identifier: Apache-2.0
"""Where the engine's KV cache lies, and which of kvferry's back ends serves that."""

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
        Of the device, as this process numbers them; 0 for the host.
    driver_library
        Of the vendor's driver; empty: the one that the system has.

    """

    backend: str
    ordinal: int = 0
    driver_library: str = ""

    def compute_stream(self) -> int:
        """Native handle of the stream on which the calling thread computes; on the host it computes itself."""
        if self.backend == "host":
            return 0
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def memory(self, utilization: float | None, profiled_bytes: int) -> DeviceMemory | None:
        """Look at the device's memory as it is now.

        Parameters
        ----------
        utilization
            ``gpu_memory_utilization``: the engine's share of the device, from 0 to 1. None: the engine was given
            ``kv_cache_memory_bytes``.
        profiled_bytes
            Answer of `profiled_bytes` before the KV cache was allocated.

        Returns
        -------
        DeviceMemory | None
            None: the host's, which the tier checks itself. What this process has is told by PyTorch, which does not
            see NCCL and the driver: these count as others'. That leaves less to the ring, and not to the engine.

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
    """Bytes that this process once had of its current device and has no more: the activations of the profile run.

    0 if PyTorch has used no device. It means that only before the KV cache is allocated, which takes the place.
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
        The key ``backend``: ``"auto"``, or the name of the only back end that is to serve.

    Raises
    ------
    ConfigError
        The tensors lie on several devices, or on one that `wanted` or this build does not serve; the message says why.

    """
    devices = {tensor.device for tensor in tensors}
    found = ", ".join(sorted(map(str, devices)))
    backend = _backend_of(next(iter(devices)).type) if len(devices) == 1 else None
    if backend is None or wanted not in ("auto", backend):
        raise ConfigError(
            f"the KV cache is on {found} and backend is {wanted!r}; allowed is one device: cpu (back end host) or a "
            "GPU of NVIDIA (cuda) or AMD (hip), and backend 'auto' or the one that serves it; leave the key out, or "
            "start vLLM without KvFerryConnector"
        )
    # The host is always there; asking for the others would load and start their drivers.
    if backend != "host" and (why_not := _core.backends()[backend]):
        raise ConfigError(
            f"the KV cache is on {found}, and the back end {backend!r} cannot be had; mend what `kvferry doctor` "
            f"names, or start vLLM without KvFerryConnector: {why_not}"
        )
    return KvDevice(backend, devices.pop().index or 0)


def _backend_of(device_type: str) -> str | None:
    # PyTorch names AMD's GPUs cuda too.
    of_gpu = "cuda" if torch.version.hip is None else "hip"
    return {"cpu": "host", "cuda": of_gpu}.get(device_type)
