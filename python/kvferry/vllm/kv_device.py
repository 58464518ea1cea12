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

    def memory(self, utilization: float, *, has_share: bool) -> DeviceMemory | None:
        """Look at the device's memory as it is now.

        Parameters
        ----------
        utilization
            ``gpu_memory_utilization``: the engine's share of the device, from 0 to 1.
        has_share
            False: the engine was given ``kv_cache_memory_bytes``.

        Returns
        -------
        DeviceMemory | None
            None: the host's, which the tier checks itself. What this process has is told by PyTorch, which does not
            see NCCL and the driver: these count as others'. That leaves too little to the ring, never to the engine.

        """
        if self.backend == "host":
            return None
        free_bytes, total_bytes = map(int, torch.cuda.mem_get_info(self.ordinal))
        stats = torch.cuda.memory_stats(self.ordinal)
        reserved, peak = (
            int(stats.get(f"{name}.all.{kind}", 0))
            for name, kind in (("reserved_bytes", "current"), ("allocated_bytes", "peak"))
        )
        allocated = int(stats.get("allocated_bytes.all.current", 0))
        return DeviceMemory(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            own_bytes=reserved,
            requested_bytes=math.ceil(total_bytes * utilization) if has_share else None,
            pending_bytes=max(0, peak - allocated),
        )


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
        raise ConfigError(f"the KV cache is on {found}, and the back end {backend!r} cannot be had: {why_not}")
    return KvDevice(backend, devices.pop().index or 0)


def _backend_of(device_type: str) -> str | None:
    # PyTorch names AMD's GPUs cuda too.
    of_gpu = "cuda" if torch.version.hip is None else "hip"
    return {"cpu": "host", "cuda": of_gpu}.get(device_type)
