# SPDX-License-Identifier: Apache-2.0
"""How much device memory the staging rings may take beside what the engine has profiled and not allocated yet."""

from dataclasses import dataclass

from kvferry.config import MIB
from kvferry.errors import ResourceError
from kvferry.sizes import format_size

# What PyTorch's allocator and the driver take beyond what the engine has measured; the engine itself keeps 150 MiB.
MARGIN_BYTES = 256 * MIB
_REMEDY = "set staging_bytes, or lower --gpu-memory-utilization"


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one rank's device when its KV cache is registered; all in bytes.

    The engine has allocated weights and KV cache by then. Activations, CUDA graphs and the sampler's buffers come
    later: it has counted them in its share of the device, and has measured them.

    Attributes
    ----------
    total_bytes
        Of the device.
    free_bytes
        That no process has, as the driver tells it.
    own_bytes
        What this rank has taken since the engine's first look at the device: weights, KV cache, and what PyTorch keeps.
    requested_bytes
        The engine's share: `total_bytes` times ``gpu_memory_utilization``. None: it was given ``kv_cache_memory_bytes``
        and keeps to no share.
    pending_bytes
        What the engine's profile run took and has given back: activations, without CUDA graphs. It counts only where
        `requested_bytes` is None; a share has it in it. 0: not known.

    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    requested_bytes: int | None
    pending_bytes: int = 0


def room_bytes(memory: DeviceMemory) -> int:
    """Count the bytes that no one has and the engine will not take.

    With a share: what is free, less what the engine has yet to take of its share. That is total * (1 - utilization)
    less what others hold: other processes, other engines' ranks on this device, NCCL. Without one: what is free, less
    what the engine has measured.

    Returns
    -------
    int
        Bytes, 0 or more; the margin is not taken off.

    """
    if memory.requested_bytes is None:
        yet_to_take = memory.pending_bytes
    else:
        yet_to_take = max(0, memory.requested_bytes - memory.own_bytes)
    return max(0, min(memory.free_bytes, memory.total_bytes) - yet_to_take)


@dataclass(frozen=True)
class RingChoice:
    """A store ring, and what the log says of it; empty if it is as wanted."""

    ring_bytes: int
    warning: str = ""


def choose_ring(memory: DeviceMemory, wanted_bytes: int, least_bytes: int, load_ring_bytes: int) -> RingChoice:
    """Choose the size of a rank's default store ring.

    Parameters
    ----------
    memory
        Of its device.
    wanted_bytes
        One step of KV.
    least_bytes
        One block.
    load_ring_bytes
        Of the ring for loads, which is as large as configured.

    Raises
    ------
    ResourceError
        Not even `least_bytes` fit.

    """
    room = room_bytes(memory)
    left = room - load_ring_bytes - MARGIN_BYTES
    if left >= wanted_bytes:
        return RingChoice(wanted_bytes)
    share = "its measured peak" if memory.requested_bytes is None else format_size(memory.requested_bytes)
    why = (
        f"the device has {format_size(room)} of {format_size(memory.total_bytes)} outside the engine's share ({share}) "
        f"and what others hold, and {format_size(load_ring_bytes + MARGIN_BYTES)} of that are for loads and a margin"
    )
    if left < least_bytes:
        raise ResourceError(
            f"the staging ring needs {format_size(least_bytes)} or more: {why}; {_REMEDY}, or set load_staging_bytes "
            "to 0"
        )
    return RingChoice(
        left,
        f"staging ring of {format_size(left)} instead of {format_size(wanted_bytes)}: {why}; prefills that fill it "
        f"store less; {_REMEDY}",
    )
