# SPDX-License-Identifier: Apache-2.0
# Made by `make stubs` from the built extension; `make lint` compares.
"""
The C++ core of kvferry.
"""

from __future__ import annotations
import collections.abc
import typing

__all__: list[str] = [
    "ConfigError",
    "DeviceError",
    "Error",
    "ObjectClient",
    "ProtocolError",
    "ResourceError",
    "SchedulerEngine",
    "TimeoutError",
    "TopologyError",
    "WorkerEngine",
    "admission_names",
    "ask_for_tier",
    "backend_names",
    "backends",
    "built_kernels",
    "check_numa_node",
    "check_shared_tier",
    "eviction_names",
    "find_devices",
    "find_tiers",
    "huge_page_pool",
    "inspect_tier",
    "memlock_limit_bytes",
    "memlock_warning",
    "memory_limits",
    "numa_nodes",
    "remove_tier",
    "shared_tier_shape",
    "slab_geometry",
]

class Error(RuntimeError):
    pass

class ConfigError(Error):
    pass

class ResourceError(Error):
    pass

class TopologyError(Error):
    pass

class ProtocolError(Error):
    pass

class DeviceError(Error):
    pass

class TimeoutError(Error):
    pass

class SchedulerEngine:
    """
    The scheduler side: decides what is stored, loaded, evicted and reported. One per engine, called by its scheduler's thread.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_scheduler_options.cpp: the user's, and what the connector works out. One that is None has its default. Raises ConfigError naming a key that is unknown, missing or of another type, and ResourceError.
        """
    def bind_pool(self, blocks: list[typing.Any]) -> None:
        """
        The engine's KVCacheBlock objects by block id, by which the backlog is checked.
        """
    def build_plan(self, scheduler_output: typing.Any) -> bytes:
        """
        Ends the step: the encoded plan for every rank. Reads the vLLM SchedulerOutput, keeps nothing of it. Raises TimeoutError naming a rank that is lost.
        """
    def change_weights(self, weights: typing.SupportsInt | typing.SupportsIndex, forget_old: bool) -> None:
        """
        The model has other weights from here on, by a digest of their name; 0: nobody names them. Blocks of the old ones are found when these come back, or with `forget_old` leave the tier. Loads in flight fail, and what the engine has computed so far is not stored. No step is under way.
        """
    def close(self) -> None:
        """
        Drops everything. Idempotent.
        """
    def fold(self, reports: list[bytes]) -> tuple[list[str], list[str]]:
        """
        Applies the ranks' encoded reports, once for each step's output, with an empty list if it has none: time-outs count outputs. Returns (request ids whose load has ended, to be told to the engine; request ids that ranks have announced and nobody waits for, not to be told). Raises ProtocolError or TopologyError.
        """
    def is_busy(self) -> bool:
        """
        Whether a store or a load is under way. Cheap.
        """
    def lookup(
        self,
        request_id: str,
        block_hashes: list[bytes],
        num_local_tokens: typing.SupportsInt | typing.SupportsIndex,
        num_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> int | None:
        """
        Tokens that can be loaded beyond the local ones, a multiple of the block. Holds nothing. None: another request loads them now; ask again in the next step.
        """
    def note_local(self, request_id: str, num_local_tokens: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        lookup() without a question: where a load of another connector would begin.
        """
    def on_allocated(
        self,
        request_id: str,
        block_hashes: list[bytes],
        blocks: tuple[typing.Any, ...],
        num_external_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        The engine allocated `blocks` (for each KV cache group, all KVCacheBlock objects of the request) and waits for the load. Raises ProtocolError.
        """
    def on_blocks_invalid(self, blocks: collections.abc.Iterable[int]) -> None:
        """
        Another connector failed to load these blocks. To be called before the fold() of the reports that came with them.
        """
    def on_finished(self, request_id: str, num_tokens: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Releases everything of the request. `num_tokens`: those that the engine knows of it; 0 says nothing. Idempotent.
        """
    def on_hints(
        self,
        request_id: str,
        session: str,
        hints: collections.abc.Sequence[tuple[str, typing.SupportsFloat | typing.SupportsIndex, str]],
    ) -> None:
        """
        What the client of a request that has just arrived says of blocks: for each hint the action (retain, release, demote, prefetch), the seconds that a promise lives, and whose blocks, a session or empty: the request's own. `session`: to which the request belongs, or empty. Raises ConfigError for another action.
        """
    def on_request(
        self,
        request_id: str,
        block_hashes: list[bytes],
        max_load_tokens: typing.SupportsInt | typing.SupportsIndex | None = None,
        max_store_tokens: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> None:
        """
        A request arrives, or its id is used again. The list is kept and read as the engine extends it. A load of it brings `max_load_tokens` at most, and its blocks are stored that end with one of its first `max_store_tokens`; None: no limit.
        """
    def reset_cache(self) -> None:
        """
        Empties the tier.
        """
    def resize(self, num_chunks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        From now on the tier is to have so many chunks, as far as the ranks' memory goes: each plan takes some out of use or into it.
        """
    def snapshot(self) -> dict[str, int]:
        """
        All levels and counters, in blocks unless the name says otherwise.
        """
    def take_key_events(self) -> list[tuple[bool, int, bytes]]:
        """
        What can be loaded since the last call, and what cannot any more, in order: (whether it can, KV cache group, block hash). Empty without `key_events`.
        """
    def take_tier_changes(self, most: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[bool, int, bytes, int]]:
        """
        What can be loaded of a shared tier since the last call, and what cannot any more, whichever engine stored it: (whether it can, KV cache group, block hash, slot). Two slots may hold one hash. About `most` at most; fewer: every slot was looked at. Empty without a shared tier. Any one thread, but not during or after close().
        """
    def take_warnings(self) -> list[str]:
        """
        What the user should read in the log, since the last call; in full sentences.
        """
    def tier_size(self) -> tuple[dict[str, int], list[int], str]:
        """
        How large the tier is and is to be, in chunks, and whether that changes in the next steps; the ranks that have not done what they were told; why one could not.
        """
    @property
    def max_slots(self) -> int:
        """
        The same of those that will be: as told, until every rank has said how many it will have.
        """
    @property
    def num_slots(self) -> int:
        """
        Slots of the tier that are ready on every rank, if all were of the first slab class.
        """

class WorkerEngine:
    """
    The worker side of one rank: executes plans and reports. Called by the engine's worker thread.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_worker_options.cpp: the user's, and what the connector works out. One that is None has its default. Raises ConfigError naming a key that is unknown, missing or of another type, ResourceError, DeviceError, TopologyError or TimeoutError.
        """
    def arena(self) -> str:
        """
        What was obtained of the host memory so far, in one line.
        """
    def arena_figures(self) -> dict[str, float]:
        """
        The same as numbers, as of the start or the end of the arena's growth; unknown ones are left out.
        """
    def arena_warnings(self) -> list[str]:
        """
        What the user is to be warned of about the host memory, a line each.
        """
    def bind(self, plan: bytes, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Takes the step's plan over, before the forward. `stream`: the compute stream's native handle. Raises ProtocolError.
        """
    def close(self) -> None:
        """
        Refuses new work and waits for what runs. Idempotent. Raises TimeoutError.
        """
    def collect(self) -> list[str]:
        """
        Takes note of what ended. Returns the request ids whose load this rank has to announce as ended and failed, each once. Raises TimeoutError.
        """
    def copy_paths(self) -> str:
        """
        How copies cross the link by their shape, as far as it is known now, in a few lines.
        """
    def is_busy(self) -> bool:
        """
        Whether bytes are on the link or wait for it. Cheap.
        """
    def pump(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers what is ready and did not fit before.
        """
    def save(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers what the step completed, behind the forward.
        """
    def sleep(self) -> None:
        """
        Waits until no copy touches the KV cache, and gives the device memory back. Idempotent. Raises TimeoutError or DeviceError: it does not sleep then.
        """
    def stats(self) -> dict[str, int]:
        """
        Counters since the start and levels of now.
        """
    def take_report(self) -> bytes:
        """
        The encoded report of everything since the last call; empty when there is nothing to say.
        """
    def take_timings(self) -> dict[str, list[float]]:
        """
        How long the transfers took that were seen to succeed since the last call, by 'queue_seconds' (until the first copy) or 'device_seconds', '/', and 'store' or 'load'; a figure each.
        """
    def unsafe_copy_slot(
        self, source: typing.SupportsInt | typing.SupportsIndex, to: typing.SupportsInt | typing.SupportsIndex
    ) -> None:
        """
        For tests: overwrites the bytes of slot `to`, so that a wrong byte can be shown to be noticed.
        """
    def waiting(self) -> bool:
        """
        Whether pump() has anything to try.
        """
    def wake(
        self,
        fragments: collections.abc.Sequence[
            collections.abc.Sequence[
                tuple[
                    typing.SupportsInt | typing.SupportsIndex,
                    typing.SupportsInt | typing.SupportsIndex,
                    typing.SupportsInt | typing.SupportsIndex,
                ]
            ]
        ],
        num_blocks: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        Takes device memory again for the KV cache, which may lie elsewhere; nothing if it does not sleep. Raises ConfigError, ResourceError or DeviceError: it sleeps on then.
        """
    @property
    def device(self) -> str:
        """
        Back end, name, architecture and driver of the device.
        """
    @property
    def is_asleep(self) -> bool:
        """
        Whether it sleeps: from sleep() to wake().
        """
    @property
    def max_slots(self) -> int:
        """
        Slots that will be ready.
        """
    @property
    def num_slots(self) -> int:
        """
        Slots that are ready now.
        """
    @property
    def slot_bytes(self) -> int:
        """
        Of the first slab class, as the slots that the next two count.
        """

class ObjectClient:
    """
    An object store in host memory as LMCache drives a native client. Each batch that was accepted has exactly one completion. Thread-safe.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_object_client.cpp: the user's and `grace_s`, for which a copy may go on whose process is gone. One that is None has its default. Raises ConfigError naming a key that is unknown, missing or of another type, or ResourceError.
        """
    def close(self) -> None:
        """
        Ends what is under way; nobody touches a buffer afterwards. Completions can still be drained. Idempotent.
        """
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """
        Takes what has completed: tuples (id, ok, error, for each key whether it was loaded, is there, was there; None of a set).
        """
    def event_fd(self) -> int:
        """
        A file descriptor that is readable while there are completions.
        """
    def memory(self) -> str:
        """
        What memory was obtained, in a line.
        """
    def snapshot(self) -> dict[str, int]:
        """
        Levels and counters.
        """
    def submit_batch_delete(self, keys: list[str]) -> int:
        """
        Forgets keys; returns the batch's id. Raises Error after close().
        """
    def submit_batch_exists(self, keys: list[str]) -> int:
        """
        Asks which keys are held; returns the batch's id. Raises Error after close().
        """
    def submit_batch_get(self, keys: list[str], buffers: list[typing.Any]) -> int:
        """
        Copies into each buffer the value that is held under its key with exactly its size; returns the batch's id. Raises Error after close().
        """
    def submit_batch_set(self, keys: list[str], buffers: list[typing.Any]) -> int:
        """
        Stores all values, or none; returns the batch's id. The buffers, any contiguous ones, stay as they are until the completion. Raises Error after close().
        """
    def warning(self) -> str:
        """
        What its user is to be told; usually nothing.
        """
    @property
    def num_workers(self) -> int: ...

def admission_names() -> list[str]:
    """
    The admission policies by the names that users know, the default first.
    """

def ask_for_tier(
    rank_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    pages: str,
) -> tuple[str, int, str]:
    """
    What the first of `num_ranks` ranks that start now would hear, each with a tier of `rank_bytes` > 0 in `pages` ('auto' for the best): (pages it would be, bytes of room for all, why it is refused or empty). Takes nothing. Raises ConfigError.
    """

def backend_names() -> list[str]:
    """
    The back ends by the names that users know, the host first.
    """

def backends() -> dict[str, str]:
    """
    For each back end why it cannot be had in this process, in one line; empty if it can. Starts the vendors' drivers, which can hang.
    """

def built_kernels() -> tuple[str, list[str], list[str]]:
    """
    What the GPU kernels of this build were compiled with and for: (CUDA toolkit, '13.0' or empty; NVIDIA architectures, 'sm_80'; AMD's, 'gfx90a').
    """

def check_numa_node(node: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Raises ConfigError that lists the nodes, unless `node` is one of them.
    """

def check_shared_tier(
    path: str,
    capacity_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[int, int]:
    """
    Whether an engine would take that path as its shared tier's, as far as it can be told without making anything. Returns the bytes that its file lacks as yet, of all ranks, and those of a page of it. Raises ConfigError or ResourceError, as the engine would.
    """

def eviction_names() -> list[str]:
    """
    The eviction policies by the names that users know, the default first.
    """

def find_devices(backend: str, driver_library: str = "") -> list[dict[str, str]]:
    """
    The devices of a GPU's back end in the order of their ordinals, as their driver describes them: name, architecture, driver, pci_address ('' if it does not tell) and kernels: what this build has for it ('sm_90', 'PTX of sm_100', 'hipRTC', '' if nothing). Makes no context; starts the driver, which can hang. Raises DeviceError or ConfigError.
    """

def find_tiers(directory: bytes) -> list[bytes]:
    """
    Paths, as bytes, of the shared tiers right in that directory (bytes, too) that this user can open.
    """

def huge_page_pool() -> dict[str, int]:
    """
    The machine's pool of huge pages: page_bytes, num_total, num_free, and num_more that the kernel may add.
    """

def inspect_tier(path: bytes) -> tuple[dict[str, str], dict[str, int], list[tuple[str, int, bool, int, int]]]:
    """
    What is in a shared tier now, without joining it (`path`: bytes): (texts, figures, instances as (name, name space, whether it lives, chunks, weight)). Raises ConfigError or ResourceError.
    """

def memlock_limit_bytes() -> int | None:
    """
    Bytes that this process may lock; None if that is unlimited.
    """

def memlock_warning(bytes: typing.SupportsInt | typing.SupportsIndex) -> str | None:
    """
    What a user is to know before `bytes` are registered with a GPU; None if nothing.
    """

def memory_limits() -> list[tuple[str, int, str]]:
    """
    The limits on more host memory that apply to this process: (name, bytes of room, what lifts it).
    """

def numa_nodes() -> list[tuple[int, int, int]]:
    """
    The NUMA nodes that this process may use: (number, bytes of memory, processors). Raises ResourceError.
    """

def remove_tier(path: bytes) -> None:
    """
    Removes the file of a shared tier. Raises ResourceError naming the engines that use it, and ConfigError.
    """

def shared_tier_shape(
    path: str,
    capacity_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[int, int, int]:
    """
    How a shared tier of `capacity_bytes` for all of an engine's `num_ranks` is divided: (chunks, bytes of a chunk on one rank, slots that a chunk may have). `chunk_bytes`: 0 for a size that depends on the capacity alone. Makes nothing. Raises ConfigError.
    """

def slab_geometry(
    tier_bytes: typing.SupportsInt | typing.SupportsIndex,
    slot_bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
) -> tuple[int, list[int]]:
    """
    How a tier of `tier_bytes` is divided for blocks of `slot_bytes`, by slab class: (chunks, slots of each class in a chunk). Raises ConfigError.
    """

__version__: str
