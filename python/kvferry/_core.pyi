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
    "RecordedEvent",
    "RecordedEvents",
    "Recorder",
    "Recording",
    "RecordingError",
    "RecordingFile",
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
    "recorded_keys",
    "remove_tier",
    "replay_recording",
    "replayed_books",
    "shared_tier_shape",
    "slab_geometry",
]

class Error(RuntimeError):
    """
    The root of all errors of kvferry: the environment or the caller is at fault.
    """

class ConfigError(Error):
    """
    A configuration value that cannot be used.
    """

class ResourceError(Error):
    """
    The machine has too little of a resource (memory, a limit).
    """

class TopologyError(Error):
    """
    Two sides disagree about world size, rank, layout or version. The message names both.
    """

class ProtocolError(Error):
    """
    A plan or report that cannot be decoded, or does not fit the state it meets.
    """

class DeviceError(Error):
    """
    A device call failed.
    """

class TimeoutError(Error):
    """
    A wait reached its time limit.
    """

class RecordingError(Error):
    """
    A file that is no recording, or is damaged, or was made by another version.
    """

class SchedulerEngine:
    """
    The scheduler side: decides what is stored, loaded, evicted and reported. One for each engine, called by the engine's scheduler thread.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_scheduler_options.cpp: the user's keys, and those that the connector computes. None means the default. Raises ResourceError, or a ConfigError that names a key that is unknown, missing or of the wrong type.
        """
    def bind_pool(self, blocks: list[typing.Any]) -> None:
        """
        Takes the engine's KVCacheBlock objects, by block id. The backlog is checked against them.
        """
    def build_plan(self, scheduler_output: typing.Any) -> bytes:
        """
        Ends the step, and returns the encoded plan for every rank. Reads vLLM's SchedulerOutput, and keeps no reference to it. Raises a TimeoutError that names a lost rank.
        """
    def change_weights(self, weights: typing.SupportsInt | typing.SupportsIndex, forget_old: bool) -> None:
        """
        Changes the model's weights, which are identified by a digest of their version; 0: they have no version. Blocks of the old weights are found again when those weights return; with `forget_old` they leave the tier. Loads in flight fail, and blocks that the engine has computed so far are not stored. Call it while no step is under way.
        """
    def close(self) -> None:
        """
        Drops everything. Idempotent.
        """
    def fold(self, reports: list[bytes]) -> tuple[list[str], list[str], list[str]]:
        """
        Applies the ranks' encoded reports. Call it once for each step's output, with an empty list if there are no reports, because time-outs count outputs. Returns three lists: request ids whose load has ended, which the engine has to be told; request ids that ranks have reported but no request waits for, which the engine must not be told; and warnings for the user's log since the last call, in full sentences. Raises ProtocolError or TopologyError.
        """
    def is_busy(self) -> bool:
        """
        Whether a store or a load is under way. A cheap call.
        """
    def lookup(
        self,
        request_id: str,
        block_hashes: list[bytes],
        num_local_tokens: typing.SupportsInt | typing.SupportsIndex,
        num_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> int | None:
        """
        Returns the number of tokens that can be loaded after the local ones, a multiple of the block. Holds nothing. None: ask again in the next step; another request loads them now, or loaded requests that wait behind this one are to run first.
        """
    def note_local(self, request_id: str, num_local_tokens: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Notes the local tokens like lookup(), without a search: another connector's load would begin after them. False: ask again in the next step.
        """
    def on_allocated(
        self,
        request_id: str,
        block_hashes: list[bytes],
        blocks: tuple[typing.Any, ...],
        num_external_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        The engine has allocated `blocks` (for each KV cache group, all KVCacheBlock objects of the request) and waits for the load. Raises ProtocolError.
        """
    def on_blocks_invalid(self, blocks: collections.abc.Iterable[int]) -> None:
        """
        Another connector failed to load these blocks. Call it before the fold() of the reports that came with them.
        """
    def on_finished(self, request_id: str, num_tokens: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Releases everything that the request holds. `num_tokens`: tokens of the request that the engine knows; 0: not given. Idempotent.
        """
    def on_hints(
        self,
        request_id: str,
        session: str,
        hints: collections.abc.Sequence[tuple[str, typing.SupportsFloat | typing.SupportsIndex, str]],
    ) -> None:
        """
        Takes the hints of a request that has just arrived. A hint has an action (retain, release, demote, prefetch), the seconds for which a promise lives, and a session; an empty session means the request's own blocks. `session`: the session of the request, or empty. Raises ConfigError for any other action.
        """
    def on_request(
        self,
        request_id: str,
        block_hashes: list[bytes],
        max_load_tokens: typing.SupportsInt | typing.SupportsIndex | None = None,
        max_store_tokens: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> None:
        """
        A request arrives, or its id is used again. The list is kept, and read as the engine extends it. A load for it brings at most `max_load_tokens`, and only blocks whose last token is among the first `max_store_tokens` are stored; None: no limit.
        """
    def reset_cache(self) -> None:
        """
        Empties the tier.
        """
    def resize(self, num_chunks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Sets the number of chunks that the tier should have, within the ranks' memory. Each plan then takes some chunks into use or out of use.
        """
    def snapshot(self) -> dict[str, int]:
        """
        Returns all current values and counters, in blocks unless the name says otherwise.
        """
    def take_changes(self) -> dict[str, int]:
        """
        Returns the values of `snapshot()` that have changed since the last call. The first call returns all.
        """
    def take_key_events(self) -> list[tuple[bool, int, bytes]]:
        """
        Returns the blocks that can be loaded since the last call, and those that cannot be loaded any more, in order: (whether it can be loaded, KV cache group, block hash). Empty without `key_events`.
        """
    def take_tier_changes(self, most: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[bool, int, bytes, int]]:
        """
        Returns the blocks of a shared tier that can be loaded since the last call, and those that cannot be loaded any more, whichever engine stored them: (whether it can be loaded, KV cache group, block hash, slot). Two slots can hold the same hash. Returns about `most` changes at most; if there are fewer, every slot was checked. Empty without a shared tier. One thread at a time can call it, but not during or after close().
        """
    def tier_size(self) -> tuple[dict[str, int], list[int], str]:
        """
        Returns the size of the tier and its target, in chunks, with whether the next steps change it; the ranks that have not executed their orders yet; and why a rank could not.
        """
    @property
    def max_slots(self) -> int:
        """
        Slots that the tier will have, counted in the same way: the configured number, until every rank has reported how many it will have.
        """
    @property
    def num_slots(self) -> int:
        """
        Slots of the tier that are ready on every rank, counted as if all belonged to the first slab class.
        """
    @property
    def recorder_error(self) -> str:
        """
        Why nothing is recorded although recorder_path was given, or empty. The engine works without a recording.
        """

class WorkerEngine:
    """
    The worker side of one rank: executes plans, and reports. Called by the engine's worker thread.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_worker_options.cpp: the user's keys, and those that the connector computes. None means the default. Raises ResourceError, DeviceError, TopologyError, TimeoutError, or a ConfigError that names a key that is unknown, missing or of the wrong type.
        """
    def arena(self) -> str:
        """
        Describes the host memory that was obtained so far, in one line.
        """
    def arena_figures(self) -> dict[str, float]:
        """
        Returns the same as numbers, from the start or the end of the arena's growth. Unknown numbers are left out.
        """
    def arena_warnings(self) -> list[str]:
        """
        Returns warnings for the user about the host memory, one line each.
        """
    def bind(self, plan: bytes, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Takes over the step's plan, before the forward pass. `stream`: the native handle of the compute stream. Raises ProtocolError.
        """
    def close(self) -> None:
        """
        Refuses new work, and waits for the work under way. Idempotent. Raises TimeoutError.
        """
    def collect(self) -> list[str]:
        """
        Collects the transfers that have ended. Returns the ids of requests whose load this rank has to report to the engine as ended and failed, each once. Raises TimeoutError.
        """
    def copy_paths(self) -> str:
        """
        Describes by which path copies of each shape cross the link, as far as known now, in a few lines.
        """
    def is_busy(self) -> bool:
        """
        Whether bytes are on the link or wait for it. A cheap call.
        """
    def pump(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers blocks that are ready and did not fit before.
        """
    def save(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers the blocks that the step completed, after the forward pass.
        """
    def sleep(self) -> None:
        """
        Waits until no copy touches the KV cache, and frees the device memory. Idempotent. Raises TimeoutError or DeviceError; then it is not asleep.
        """
    def stats(self) -> dict[str, int]:
        """
        Returns counters since the start, and current values.
        """
    def take_report(self) -> bytes:
        """
        Returns the encoded report of everything since the last call; empty if there is nothing to report.
        """
    def take_timings(self) -> dict[str, list[float]]:
        """
        Returns the times of the transfers that succeeded since the last call, one for each transfer. A key is 'queue_seconds' (until the first copy) or 'device_seconds', '/', and 'store' or 'load'.
        """
    def unsafe_copy_slot(
        self, source: typing.SupportsInt | typing.SupportsIndex, to: typing.SupportsInt | typing.SupportsIndex
    ) -> None:
        """
        For tests: overwrites the bytes of slot `to`, to show that wrong bytes are noticed.
        """
    def waiting(self) -> bool:
        """
        Whether pump() has anything to do.
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
        Allocates device memory again for the KV cache, which can have other addresses now. Does nothing if it is not asleep. Raises ConfigError, ResourceError or DeviceError; then it stays asleep.
        """
    @property
    def device(self) -> str:
        """
        Back end, name, architecture and driver of the device.
        """
    @property
    def is_asleep(self) -> bool:
        """
        Whether it is asleep: from sleep() to wake().
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
        Bytes of a slot of the first slab class; num_slots and max_slots count such slots.
        """

class ObjectClient:
    """
    An object store in host memory, with the interface of LMCache's native clients. Each accepted batch has exactly one completion. Thread-safe.
    """
    def __init__(self, **kwargs: typing.Any) -> None:
        """
        The keywords are the keys of the table in python/src/py_object_client.cpp: the user's keys, and `grace_s`, the seconds for which a copy can continue after its process has ended. None means the default. Raises ResourceError, or a ConfigError that names a key that is unknown, missing or of the wrong type.
        """
    def close(self) -> None:
        """
        Ends the work under way. Afterwards no thread touches a buffer. Completions can still be drained. Idempotent.
        """
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """
        Takes the completions: tuples (id, ok, error, flags). There is a flag for each key: whether it was loaded (get), is held (exists) or was held (delete); None for a set.
        """
    def event_fd(self) -> int:
        """
        A file descriptor that is readable while there are completions.
        """
    def memory(self) -> str:
        """
        Describes the memory that was obtained, in one line.
        """
    def snapshot(self) -> dict[str, int]:
        """
        Returns current values and counters.
        """
    def submit_batch_delete(self, keys: list[str]) -> int:
        """
        Forgets keys; returns the batch's id. Raises Error after close().
        """
    def submit_batch_exists(self, keys: list[str]) -> int:
        """
        Checks which keys are held; returns the batch's id. Raises Error after close().
        """
    def submit_batch_get(self, keys: list[str], buffers: list[typing.Any]) -> int:
        """
        Copies into each buffer the value that is held under its key with exactly its size; returns the batch's id. A value that is not what was stored is a miss, and its buffer is undefined. Raises Error after close().
        """
    def submit_batch_set(self, keys: list[str], buffers: list[typing.Any]) -> int:
        """
        Stores all values, or none; returns the batch's id. The buffers can be any contiguous ones, and must not change until the completion. Raises Error after close().
        """
    def take_warnings(self) -> list[str]:
        """
        Takes the lines about values that were found damaged since the last call.
        """
    def warning(self) -> str:
        """
        Returns a warning for the user; usually empty.
        """
    @property
    def num_workers(self) -> int: ...

class Recorder:
    """
    The recording of a rank, which its WorkerEngine writes.
    """
    def __init__(self, path: str, ring_bytes: typing.SupportsInt | typing.SupportsIndex, config: str) -> None:
        """
        Makes the file. `config`: lines of text for who reads it. Raises ConfigError for a file that exists, ResourceError if there is no memory for it.
        """

class RecordedEvent:
    """
    An event of a recording.
    """
    @property
    def flags(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def position(self) -> int:
        """
        Words recorded before it, from the beginning.
        """
    @property
    def words(self) -> list[int]:
        """
        What it says, as recorder/event.hpp defines it.
        """

class RecordedEvents:
    """
    An iterator over events of a recording.
    """
    def __iter__(self) -> RecordedEvents: ...
    def __next__(self) -> RecordedEvent: ...

class Recording:
    """
    Events that were read from a recording: a copy, which nothing overwrites. Thread-safe.
    """
    def about(self, key: typing.SupportsInt | typing.SupportsIndex) -> list[RecordedEvent]:
        """
        Returns what became of a block, in its order. Kinds: store, skipped, left and came, which name the key; store ended and aborted of the key's stores. The only word is the store, if the event is about one.
        """
    def each(self, kinds: collections.abc.Sequence[str]) -> RecordedEvents:
        """
        Iterates over the events of these kinds, in their order, of which Python holds one at a time. Raises ValueError for a kind that does not exist.
        """
    def last_text(self, kind: str) -> tuple[int, str] | None:
        """
        Returns position and text of the newest event of a kind that has a text (threw, broken invariant, books), or None. Raises ValueError for a kind that does not exist.
        """
    def save(self, path: str, others: collections.abc.Sequence[Recording] = []) -> None:
        """
        Writes it into a new file of the same format, which only this user can open, and the others behind it, as the file's next parts. Raises ConfigError for a file that exists, ResourceError if it cannot be written.
        """
    def select(
        self,
        kinds: collections.abc.Sequence[str] | None = None,
        number: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> list[RecordedEvent]:
        """
        Returns the events of these kinds, and with this number, in their order; None: of all. Raises ValueError for a kind that does not exist.
        """
    def texts(self, most: typing.SupportsInt | typing.SupportsIndex) -> list[str]:
        """
        Returns so many of the newest events, one line each.
        """
    def times(self, positions: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> list[int]:
        """
        Returns the newest time (nanoseconds of the engine's steady clock) that was recorded up to each of the positions; 0: none.
        """
    @property
    def begin(self) -> int:
        """
        Position of the first event; not 0: what came before was overwritten.
        """
    @property
    def end(self) -> int:
        """
        Where the next reading goes on.
        """

class RecordingFile:
    """
    An open recording, which its engine may be writing.
    """
    def __init__(self, path: str, part: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Opens one of the recordings in the file. Raises RecordingError for a file that is none, ResourceError if it cannot be read.
        """
    def read(self, begin: typing.SupportsInt | typing.SupportsIndex = 0) -> Recording:
        """
        Reads the events from this position on, which is the end of an earlier reading. If the result begins later, the engine has overwritten what is between.
        """
    @property
    def boot_id(self) -> str: ...
    @property
    def config(self) -> str: ...
    @property
    def has_next(self) -> bool:
        """
        Whether the file has a part after this one: a rank's recording.
        """
    @property
    def pid(self) -> int: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def steady_ns(self) -> int:
        """
        The same moment by the clock of its events.
        """
    @property
    def version(self) -> str: ...
    @property
    def wall_ns(self) -> int:
        """
        When it began, since 1970.
        """

def admission_names() -> list[str]:
    """
    The admission policies, by the users' names for them, the default first.
    """

def ask_for_tier(
    rank_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    pages: str,
) -> tuple[str, int, str]:
    """
    Checks whether `num_ranks` ranks could start now, each with a tier of `rank_bytes` > 0 in `pages` ('auto': the best kind). Returns (kind of pages, bytes of room for all ranks, why the first rank would refuse; empty if it would not). Takes no memory. Raises ConfigError.
    """

def backend_names() -> list[str]:
    """
    The back ends, by the users' names for them, the host first.
    """

def backends() -> dict[str, str]:
    """
    For each back end, why it is not available in this process, in one line; empty if it is. Starts the vendors' drivers, which can hang.
    """

def built_kernels() -> tuple[str, list[str], list[str]]:
    """
    The toolkit and the architectures of this build's GPU kernels: (CUDA toolkit, such as '13.0', or empty; NVIDIA architectures, such as 'sm_80'; AMD architectures, such as 'gfx90a').
    """

def check_numa_node(node: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Raises a ConfigError that lists the machine's nodes, unless `node` is one of them.
    """

def check_shared_tier(
    path: str,
    capacity_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[int, int]:
    """
    Checks whether an engine would accept that path for its shared tier, as far as that is possible without making anything. Returns the bytes that the file still lacks, for all ranks, and the bytes of one of its pages. Raises ConfigError or ResourceError, as the engine would.
    """

def eviction_names() -> list[str]:
    """
    The eviction policies, by the users' names for them, the default first.
    """

def find_devices(backend: str, driver_library: str = "") -> list[dict[str, str]]:
    """
    The devices of a GPU back end, in the order of their ordinals, as their driver describes them: name, architecture, driver, pci_address ('' if unknown), and kernels: those of this build that fit it ('sm_90', 'PTX of sm_100', 'hipRTC', '' if none). Makes no context, but starts the driver, which can hang. Raises DeviceError or ConfigError.
    """

def find_tiers(directory: bytes) -> list[bytes]:
    """
    Paths of the shared tiers directly in that directory that this user can open. All paths are bytes.
    """

def huge_page_pool() -> dict[str, int]:
    """
    The machine's pool of huge pages: page_bytes, num_total, num_free, and num_more, which the kernel can add.
    """

def inspect_tier(path: bytes) -> tuple[dict[str, str], dict[str, int], list[tuple[str, int, bool, int, int]]]:
    """
    Describes the current contents of a shared tier, without joining it (`path`: bytes): (texts, figures, instances as (name, name space, whether it is alive, chunks, weight)). Raises ConfigError or ResourceError.
    """

def memlock_limit_bytes() -> int | None:
    """
    Bytes that this process can lock; None: unlimited.
    """

def memlock_warning(bytes: typing.SupportsInt | typing.SupportsIndex) -> str | None:
    """
    A warning for the user before `bytes` are registered with a GPU; None: there is none.
    """

def memory_limits() -> list[tuple[str, int, str]]:
    """
    The limits on more host memory for this process: (name, bytes that it still allows, how to raise it).
    """

def numa_nodes() -> list[tuple[int, int, int]]:
    """
    The NUMA nodes that this process can use: (number, bytes of memory, processors). Raises ResourceError.
    """

def recorded_keys(
    hashes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    hash_bytes: typing.SupportsInt | typing.SupportsIndex,
    group: typing.SupportsInt | typing.SupportsIndex,
    weights: typing.SupportsInt | typing.SupportsIndex,
) -> list[int]:
    """
    Returns, for each word of a 'hashes' event, the key of its block in a KV cache group under these weights, as other events name it.
    """

def remove_tier(path: bytes) -> None:
    """
    Removes the file of a shared tier. Raises ConfigError, or a ResourceError that names the engines that use it.
    """

def replay_recording(path: str) -> tuple[int, int, tuple[int, str, str, str] | None, str | None]:
    """
    Makes the recorded calls again, of a new scheduler side. Returns the number of calls and of equal events; the first difference as its position, its call, what was recorded and what was replayed, or None; and the error in which the last call ended, or None. Raises RecordingError if the recording cannot be replayed.
    """

def replayed_books(path: str) -> tuple[str, str | None]:
    """
    Replays the recording, and returns what was under way at its end (SchedulerEngine::books(), JSON; of a broken invariant, before the call that found it), and the error in which the last call ended, or None. Raises RecordingError if it cannot be replayed, or decides otherwise.
    """

def shared_tier_shape(
    path: str,
    capacity_bytes: typing.SupportsInt | typing.SupportsIndex,
    num_ranks: typing.SupportsInt | typing.SupportsIndex,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[int, int, int]:
    """
    How a shared tier of `capacity_bytes`, for all `num_ranks` ranks of an engine, is divided: (chunks, bytes of a chunk on one rank, most slots of a chunk). `chunk_bytes`: 0 for a size that depends only on the capacity. Makes nothing. Raises ConfigError.
    """

def slab_geometry(
    tier_bytes: typing.SupportsInt | typing.SupportsIndex,
    slot_bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
) -> tuple[int, list[int]]:
    """
    How a tier of `tier_bytes` is divided for blocks of `slot_bytes` bytes, by slab class: (chunks, slots of each class in a chunk). Raises ConfigError.
    """

__version__: str
