# SPDX-License-Identifier: Apache-2.0
"""The user's configuration: the keys of vLLM's ``kv_connector_extra_config``."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from kvferry import _core, settings
from kvferry.config_readers import (
    WHERE,
    HostLink,
    complaint,
    read_host_link,
    read_rate,
    read_retention,
    read_seconds,
    read_share,
    read_size,
    read_size_or_zero,
    read_tier_size,
    read_tokens,
    refuse_fixed_contradictions,
)
from kvferry.settings import (
    absolute_path,
    key,
    known_keys,
    one_of,
    read_values,
    refuse_shared_contradictions,
    refuse_unknown_keys,
)
from kvferry.sizes import format_size

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

BACKENDS = ("auto", *_core.backend_names())
VERIFICATIONS = ("off", "sampled", "all")
COPY_PATHS = ("auto", "per_run", "batch", "kernel", "staged")
PAGES = ("auto", "normal", "transparent", "huge")
EVICTIONS = tuple(_core.eviction_names())
ADMISSIONS = tuple(_core.admission_names())
# "engine", or as vLLM names its layouts (VLLM_KV_CACHE_LAYOUT).
KV_CACHE_LAYOUTS = ("engine", "LBNHC", "LBHNC", "BLNHC", "BLHNC", "LHBNC", "BHLNC")
MAX_RANKS = 64
"""Of one node."""

# A rank gives up a transfer, and its error arrives, before the scheduler gives up the rank.
_RANK_GRACE_S = 60.0

_ENGINE: str | int = "engine"
_read_flag = settings.flag(WHERE, "leave it out for the default")


class Side(enum.Enum):
    """A side of the connector. Each side has an engine in the core, with its own options."""

    WORKER = enum.auto()
    SCHEDULER = enum.auto()


WORKER, SCHEDULER = Side


@dataclass(frozen=True, kw_only=True)
class KvFerryConfig:
    """The validated configuration of one connector.

    Attributes
    ----------
    cpu_bytes_to_use
        Host memory of the tier on one node, in bytes, split evenly over the node's ranks. Ranks that share one copy of
        the KV cache (`share_replicated_kv`) count as one.
    cpu_bytes_to_use_per_rank
        Bytes of one rank, instead of the even split. Ranks that share one copy add up their bytes.
    cpu_bytes_limit
        Largest `cpu_bytes_to_use` that ``kvferry tier resize`` can set while the engine serves, in bytes. None:
        `cpu_bytes_to_use`.
    memory_margin
        Bytes that should stay free on the machine and in each cgroup of the engine. While less is free, the tier
        shrinks; later it grows again. None: the tier does not check free memory.
    allow_smaller_tier
        Whether an engine starts with less memory if the machine has less. Otherwise that is an error.
    numa_node
        The NUMA node of the tier's memory. None: next to the rank's device.
    pages
        Pages of the tier's memory: ``"huge"`` (from the machine's pool of huge pages), ``"transparent"``, ``"normal"``,
        or ``"auto"`` for the best available.
    pinned_piece_bytes
        Size of the pieces in which the tier becomes ready, and is registered with the device, while the engine serves.
    pinning_bandwidth_limit
        Highest rate at which the tier becomes ready. None: as fast as possible, and gently while the engine serves.
    staging_bytes
        Device memory of one rank's staging ring, in bytes. None: one full step of KV, at most 1 GiB.
    max_in_flight_bytes
        Most bytes that are on the link at the same time, per rank and direction.
    transfer_timeout_s
        If no copy of a rank in one direction ends for this many seconds, the device counts as hung. That is a fatal
        error of the worker. Time in the queue and stops of the process do not count.
    load_timeout_s
        Seconds after which a load fails if a rank has not begun it. Its request is computed, or fails.
    load_staging_bytes
        Device memory of one rank through which loads of small fragments go, in bytes, at least two blocks; 0: no loads
        do. None: twice `max_in_flight_bytes`, but at least two blocks.
    store_bandwidth_limit
        Highest rate at which one rank stores. None: as fast as the link allows.
    copy_path
        How loads cross the link. ``"auto"``: chosen by the shape of the load and the measured times of earlier copies;
        otherwise this path for all loads.
    verify
        Which loaded blocks are compared with what was stored: none (``"off"``), some (``"sampled"``) or all
        (``"all"``).
    scrub_bandwidth
        Rate at which each rank reads stored blocks again while its link is idle, to find damage before a load does.
        None: it reads none. Needs `verify`, and a tier of this engine's own.
    recorder_bytes
        Size of the ring in shared memory in which the scheduler side records its inputs and decisions, for ``kvferry
        why``: at least 64 KiB, rounded up to a power of two. Each rank records its plans and copies in a ring of an
        eighth of this. 0: nothing is recorded.
    backend
        ``"auto"``: chosen by the device of the KV cache; otherwise the name of a back end.
    kv_cache_layout
        The layout of the engine's KV cache, by vLLM's name; ``"engine"``: the engine chooses.
    eviction
        The rule that chooses which blocks leave a full tier. ``"adaptive"``: whichever rule would have hit most on
        recent traffic.
    admission
        Which blocks a full tier stores: all (``"always"``), those that were offered before (``"second_offer"``), or by
        ``"adaptive"``, the rule that would have hit most on recent traffic. A tier with free slots stores all blocks.
    retention
        Which blocks of sliding windows and chunks are stored. ``"engine"``: those that the engine's own cache retains,
        and those before the end of a prefix that requests share in the tier. A number of tokens: also those that a load
        needs to end at a multiple of that number. ``"dense"``: all.
    store_prompt_only
        Whether only blocks of prompts are stored, and no block with decoded tokens.
    max_awaited_share
        Largest share of the tier, from 0 to 1, that is kept for queued requests; 0: none.
    max_promised_share
        Largest share of the tier, from 0 to 1, that clients' hints can keep in the tier, or make leave early; 0: hints
        are ignored.
    min_load_tokens
        A prefix with fewer tokens is computed, not loaded. None: the measured break-even, so that no load takes longer
        than the computation.
    share_loads
        Whether a request waits, for a second at most, while another request loads the same prefix. Ignored as a child
        of ``MultiConnector``, where no request waits.
    share_replicated_kv
        Whether tensor-parallel ranks of one node that hold the same KV cache (MLA) keep one copy together.
    weights_run
        Name of the training run whose weight versions vLLM is told (``update_weight_version``). Blocks of each version
        are kept in case it returns. Engines of one shared tier with the same name here must have the same weights under
        the same version. None: versions are ignored, and a reset of the cache forgets everything.
    shared_path
        File in shared memory, such as ``/dev/shm/kvferry/tier``. All engines of this node that name the same file share
        one tier; the first engine makes the file. `cpu_bytes_to_use` is then the size for all engines together. It must
        be the same for all of them, as must the number of their ranks. None: the tier belongs to this engine only.
    shared_keep
        Whether the file is kept when the last engine has ended, so that the next engine finds its blocks.
    shared_weight
        This engine's share of the shared tier when there is not enough for all, in proportion to the other engines'
        weights.
    shared_bytes_limit
        Most bytes of the shared tier that this engine takes, for all ranks together. None: no limit.
    shared_multimodal
        Whether requests with images, audio or video use a shared tier. vLLM identifies the content of an item by the
        client's UUID, so set this only if no client of these engines gives the same UUID to two contents.
    shared_chunk_bytes
        Size of the parts of a rank's memory that change owner between engines; the same for all engines. None: chosen
        by `cpu_bytes_to_use`.
    host_link
        The simulated link of the host back end: ``h2d_gb_s``, ``d2h_gb_s`` (1e9 bytes per second), ``latency_us``,
        ``jitter_us``, ``stall_us``, ``order``, ``fail_nth``, ``fail_probability``, ``seed``; ``inject_probability`` and
        ``inject_log``, with which blocks are damaged on purpose. None: copies run at memory speed.

    """

    cpu_bytes_to_use: int = key(read_tier_size, default=8 * GIB)
    cpu_bytes_to_use_per_rank: int | None = key(read_tier_size, default=None)
    cpu_bytes_limit: int | None = key(read_tier_size, default=None)
    memory_margin: int | None = key(read_size, default=None)
    allow_smaller_tier: bool = key(_read_flag, WORKER, default=False)
    numa_node: int | None = key(
        settings.numa_node(WHERE, "leave it out for the node next to the device; numactl -H lists them"),
        WORKER,
        default=None,
    )
    pages: str = key(one_of(WHERE, PAGES, "leave the key out for the best available"), WORKER, default="auto")
    pinned_piece_bytes: int = key(read_size, WORKER, default=64 * MIB)
    pinning_bandwidth_limit: int | None = key(read_rate, WORKER, default=None)
    staging_bytes: int | None = key(read_size, default=None)
    max_in_flight_bytes: int = key(read_size, WORKER, default=32 * MIB)
    load_staging_bytes: int | None = key(read_size_or_zero, default=None)
    store_bandwidth_limit: int | None = key(read_rate, WORKER, default=None)
    copy_path: str = key(one_of(WHERE, COPY_PATHS, "leave the key out"), WORKER, default="auto")
    verify: str = key(one_of(WHERE, VERIFICATIONS, "leave the key out: nothing is checked"), WORKER, default="off")
    scrub_bandwidth: int | None = key(read_rate, WORKER, default=None)
    transfer_timeout_s: float = key(read_seconds, WORKER, default=300.0)
    load_timeout_s: float = key(read_seconds, SCHEDULER, default=30.0)
    recorder_bytes: int = key(read_size_or_zero, default=64 * MIB)
    backend: str = key(one_of(WHERE, BACKENDS, "leave the key out: the device of the KV cache decides"), default="auto")
    kv_cache_layout: str = key(
        one_of(WHERE, KV_CACHE_LAYOUTS, "leave the key out: the engine chooses"), default="engine"
    )
    eviction: str = key(one_of(WHERE, EVICTIONS, "leave the key out for 'adaptive'"), SCHEDULER, default="adaptive")
    admission: str = key(one_of(WHERE, ADMISSIONS, "leave the key out for 'adaptive'"), SCHEDULER, default="adaptive")
    retention: str | int = key(read_retention, SCHEDULER, default=_ENGINE)
    store_prompt_only: bool = key(_read_flag, SCHEDULER, default=False)
    max_awaited_share: float = key(read_share, SCHEDULER, default=0.25)
    max_promised_share: float = key(read_share, SCHEDULER, default=0.25)
    min_load_tokens: int | None = key(read_tokens, default=None)
    share_loads: bool = key(_read_flag, default=True)
    share_replicated_kv: bool = key(_read_flag, default=True)
    weights_run: str | None = key(
        settings.name(WHERE, "leave it out if vLLM is told no versions of the weights"), default=None
    )
    shared_path: str | None = key(
        absolute_path(WHERE, "the absolute path of a file in shared memory", "'/dev/shm/kvferry/tier'"),
        WORKER,
        SCHEDULER,
        default=None,
    )
    shared_keep: bool = key(_read_flag, WORKER, SCHEDULER, default=False)
    shared_weight: int = key(settings.weight(WHERE), SCHEDULER, default=1)
    shared_bytes_limit: int | None = key(read_size, default=None)
    shared_multimodal: bool = key(_read_flag, default=False)
    shared_chunk_bytes: int | None = key(read_size, WORKER, SCHEDULER, default=None)
    host_link: HostLink | None = key(read_host_link, WORKER, default=None)

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, object]) -> "KvFerryConfig":
        """Read and check ``kv_connector_extra_config``.

        Raises
        ------
        ConfigError
            An unknown key, or a value that is not allowed; the message names the key, the value, what is allowed and
            what to do.

        """
        refuse_unknown_keys(WHERE, extra_config, known_keys(cls))
        refuse_shared_contradictions(WHERE, extra_config, "pages")
        config = cls(**read_values(cls, extra_config))
        refuse_fixed_contradictions(config)
        return config

    @property
    def is_resizable(self) -> bool:
        """Whether the configuration allows a tier whose memory can return to the machine in parts."""
        return self.shared_path is None and self.pages != "huge"

    def told_to(self, side: Side) -> dict[str, object]:
        """Return the values that a side's engine gets unchanged; its other options are computed from these."""
        return {each.name: getattr(self, each.name) for each in fields(self) if side in each.metadata["sides"]}

    @property
    def rank_timeout_s(self) -> float:
        """Seconds of steps after which a silent rank is lost: longer than the rank needs to report a hang itself."""
        return self.transfer_timeout_s + _RANK_GRACE_S

    def bytes_per_arena(self, num_local_arenas: int, num_sharing: int = 1) -> int:
        """Bytes of the tier in each of the `num_local_arenas` arenas of a node, of `num_sharing` ranks each."""
        if self.cpu_bytes_to_use_per_rank is not None:
            return self.cpu_bytes_to_use_per_rank * num_sharing
        return self.most_bytes // num_local_arenas

    @property
    def most_bytes(self) -> int:
        """Largest possible size of the tier: on one node, or for each rank if it is configured per rank."""
        return self.cpu_bytes_to_use_per_rank or self.cpu_bytes_limit or self.cpu_bytes_to_use

    def start_chunks(self, num_chunks: int) -> int:
        """Number of chunks with which a tier starts that can have `num_chunks`."""
        if self.cpu_bytes_limit is None:
            return num_chunks
        return max(num_chunks * self.cpu_bytes_to_use // self.cpu_bytes_limit, 1)

    def shared_capacity(self, num_ranks: int) -> int:
        """Bytes of a shared tier, for all ranks together."""
        return self.bytes_per_arena(num_ranks) * num_ranks

    def num_arenas_in_budget(self, num_local_arenas: int) -> int:
        """Number of arenas on one node for which the first one checks the machine's memory.

        Bytes per rank are for nodes on which the number of local ranks is unknown (under Ray vLLM counts all ranks as
        local), so each rank then asks for itself. In any case, memory that was granted to others is not granted again.
        If a smaller tier is allowed, the memory is divided, because otherwise the first rank would take it all.
        """
        if self.cpu_bytes_to_use_per_rank is not None and not self.allow_smaller_tier:
            return 1
        return num_local_arenas

    def tier_bytes(
        self, slot_bytes: int, num_local_arenas: int, num_sharing: int = 1, least: str = "one block of the KV cache"
    ) -> int:
        """Bytes of the arena that holds one rank's tier.

        Parameters
        ----------
        slot_bytes
            Bytes of the largest block on this rank, all layers packed; or of the unit named by `least`.
        num_local_arenas
            Number of arenas among which the node's budget is divided.
        num_sharing
            Number of ranks that share one arena.
        least
            Name of the smallest unit that the arena has to hold, for messages.

        Raises
        ------
        ConfigError
            The budget does not hold even one block.

        """
        budget = self.bytes_per_arena(num_local_arenas, num_sharing)
        start = min(budget, self.cpu_bytes_to_use // num_local_arenas) if self.cpu_bytes_limit else budget
        if start >= slot_bytes:
            return budget
        if self.cpu_bytes_to_use_per_rank is not None:
            raise complaint(
                "cpu_bytes_to_use_per_rank",
                self.cpu_bytes_to_use_per_rank,
                f"at least {least}, {slot_bytes} bytes ({format_size(slot_bytes)}) on this rank",
                f"set it to {-(-slot_bytes // num_sharing)} or more, or leave it out and set cpu_bytes_to_use",
            )
        raise complaint(
            "cpu_bytes_to_use",
            self.cpu_bytes_to_use,
            f"at least {least} per rank, {slot_bytes} bytes ({format_size(slot_bytes)}) for each of "
            f"{num_local_arenas} local ranks"
            + ("" if num_sharing == 1 else f" or groups of {num_sharing} ranks that share one copy"),
            f"set it to {slot_bytes * num_local_arenas} or more",
        )

    def ring_bytes(self, group_bytes: Sequence[int], block_tokens: Sequence[int], max_num_batched_tokens: int) -> int:
        """Bytes of one rank's staging ring.

        Parameters
        ----------
        group_bytes
            Bytes of one block on this rank, all layers packed, for each KV cache group. Each group has its own blocks
            for the same tokens.
        block_tokens
            Tokens per block, for each group.
        max_num_batched_tokens
            Most tokens that one step of the engine computes.

        Raises
        ------
        ConfigError
            `staging_bytes` is set and does not hold even one block.

        """
        slot_bytes = max(group_bytes)
        if self.staging_bytes is None:
            step_bytes = sum(
                -(-max_num_batched_tokens // tokens) * num_bytes
                for tokens, num_bytes in zip(block_tokens, group_bytes, strict=True)
            )
            return max(slot_bytes, min(step_bytes, GIB))
        if self.staging_bytes < slot_bytes:
            raise complaint(
                "staging_bytes",
                self.staging_bytes,
                f"at least one block of the KV cache, {slot_bytes} bytes ({format_size(slot_bytes)}) on this rank",
                "raise it, or leave it out for one full step of KV",
            )
        return self.staging_bytes

    def load_ring_bytes(self, slot_bytes: int) -> int:
        """Bytes of device memory through which one rank's loads of small fragments go; 0: no loads do.

        Parameters
        ----------
        slot_bytes
            Bytes of one block on this rank, all layers packed.

        Raises
        ------
        ConfigError
            `load_staging_bytes` is set and does not hold even two blocks, or is 0 with `copy_path` ``"staged"``.

        """
        # One half is filled from the link while the other half is scattered.
        least = 2 * slot_bytes
        if self.load_staging_bytes is None:
            return max(2 * self.max_in_flight_bytes, least)
        if self.load_staging_bytes >= least:
            return self.load_staging_bytes
        if self.load_staging_bytes == 0 and self.copy_path != "staged":
            return 0
        raise complaint(
            "load_staging_bytes",
            self.load_staging_bytes,
            f"at least two blocks of the KV cache, {least} bytes ({format_size(least)}) on this rank"
            + ("" if self.copy_path == "staged" else ", or 0"),
            "raise it, or leave it out",
        )
