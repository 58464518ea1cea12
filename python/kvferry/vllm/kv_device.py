# SPDX-License-Identifier: Apache-2.0
"""Where the engine's KV cache lies, and which of kvferry's back ends serves that."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvferry import _core
from kvferry.errors import ConfigError


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

    def free_bytes(self) -> int | None:
        """Device memory that nobody has, in bytes; None: the host's, which the tier checks itself."""
        if self.backend == "host":
            return None
        return int(torch.cuda.mem_get_info(self.ordinal)[0])


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
