# SPDX-License-Identifier: Apache-2.0
"""How much device memory the staging rings can take, besides what the engine has profiled and not allocated yet."""

from dataclasses import dataclass

from kvferry.config import MIB
from kvferry.errors import ResourceError
from kvferry.sizes import format_size

# For what PyTorch's allocator and the driver take beyond the engine's measurement; the engine itself keeps 150 MiB.
MARGIN_BYTES = 256 * MIB
_REMEDY = "set staging_bytes, or lower --gpu-memory-utilization"


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one rank's device when its KV cache is registered; all in bytes.

    The engine has allocated weights and KV cache by then. Activations, CUDA graphs and the sampler's buffers come
    later; the engine has measured them, and counts them in its share of the device.

    Attributes
    ----------
    total_bytes
        Memory of the device.
    free_bytes
        Memory that no process has taken, as the driver reports it.
    own_bytes
        Memory that this rank has taken since the engine first looked at the device: weights, KV cache, and what PyTorch
        keeps.
    requested_bytes
        The engine's share: `total_bytes` times ``gpu_memory_utilization``. None: the engine has
        ``kv_cache_memory_bytes`` instead of a share.
    pending_bytes
        Memory that the engine's profile run took and has given back: activations, without CUDA graphs. It counts only
        if `requested_bytes` is None, because a share includes it. 0: not known.

    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    requested_bytes: int | None
    pending_bytes: int = 0


def room_bytes(memory: DeviceMemory) -> int:
    """Count the bytes that are free and that the engine will not take.

    With a share: the free memory, less what the engine has yet to take of its share. That is total * (1 - utilization),
    less what others hold: other processes, other engines' ranks on this device, NCCL. Without a share: the free memory,
    less what the engine has measured.

    Returns
    -------
    int
        Bytes, 0 or more; the margin is not subtracted.

    """
    if memory.requested_bytes is None:
        yet_to_take = memory.pending_bytes
    else:
        yet_to_take = max(0, memory.requested_bytes - memory.own_bytes)
    return max(0, min(memory.free_bytes, memory.total_bytes) - yet_to_take)


@dataclass(frozen=True)
class RingChoice:
    """The size of a store ring, and a warning for the log; empty if the ring has the wanted size."""

    ring_bytes: int
    warning: str = ""


def choose_ring(memory: DeviceMemory, wanted_bytes: int, least_bytes: int, load_ring_bytes: int) -> RingChoice:
    """Choose the size of a rank's default store ring.

    Parameters
    ----------
    memory
        The memory of the rank's device.
    wanted_bytes
        One step of KV.
    least_bytes
        One block.
    load_ring_bytes
        Size of the ring for loads, as configured.

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
        f"and other processes' memory; {format_size(load_ring_bytes + MARGIN_BYTES)} of that are for loads and a margin"
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
