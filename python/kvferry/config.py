# SPDX-License-Identifier: Apache-2.0
"""What a user can set: the keys of vLLM's ``kv_connector_extra_config``."""

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
COPY_PATHS = ("auto", "per_run", "batch", "kernel", "staged")
PAGES = ("auto", "normal", "transparent", "huge")
EVICTIONS = tuple(_core.eviction_names())
ADMISSIONS = tuple(_core.admission_names())
# "engine", or as vLLM names its layouts (VLLM_KV_CACHE_LAYOUT).
KV_CACHE_LAYOUTS = ("engine", "LBNHC", "LBHNC", "BLNHC", "BLHNC", "LHBNC", "BHLNC")
MAX_RANKS = 64
"""Of one node."""

# For a rank to give up a transfer, and for its error to arrive, before the scheduler gives up the rank.
_RANK_GRACE_S = 60.0

_ENGINE: str | int = "engine"
_read_flag = settings.flag(WHERE, "leave it out for the default")


class Side(enum.Enum):
    """A side of the connector, whose engine in the core has options."""

    WORKER = enum.auto()
    SCHEDULER = enum.auto()


WORKER, SCHEDULER = Side


@dataclass(frozen=True, kw_only=True)
class KvFerryConfig:
    """The validated configuration of one connector.

    Attributes
    ----------
    cpu_bytes_to_use
        Host memory of the tier on one node, in bytes, split evenly over the node's arenas: one for each rank, or for
        ranks that share one.
    cpu_bytes_to_use_per_rank
        Bytes of one rank; takes the place of the even split. Ranks that share an arena put theirs together.
    cpu_bytes_limit
        Most bytes that the tier may be made while the engine serves, counted as `cpu_bytes_to_use`. None: that.
    memory_margin
        Bytes that the machine, and each cgroup of the engine, is to keep free: while less is free the tier is made
        smaller, and larger again later. None: the tier does not look.
    allow_smaller_tier
        Whether to go on with less than that, if the machine has less; else it is an error.
    numa_node
        Where the tier's memory is to lie. None: next to the rank's device.
    pages
        ``"huge"``: of the machine's pool of huge pages; ``"transparent"``, ``"normal"``; ``"auto"``: the best one.
    pinned_piece_bytes
        Bytes of the tier that become ready, and are registered with the device, at a time while the engine serves.
    pinning_bandwidth_limit
        Bytes per second of the tier that become ready at most. None: as fast as they come, gently while it serves.
    staging_bytes
        Device memory of one rank's staging ring, in bytes. None: one full step of KV, at most 1 GiB.
    max_in_flight_bytes
        Bytes that may be under way on the link at once, per rank and direction.
    transfer_timeout_s
        Seconds in which none of the copies ends that a rank has submitted in one direction, after which the device
        hangs: a fatal error of its worker. Neither waiting for one's turn nor a stop of the process counts.
    load_timeout_s
        Seconds after which a load that some rank has not begun fails: its request is computed, or fails.
    load_staging_bytes
        Device memory of one rank through which loads of small fragments go, in bytes, two blocks or more; 0: none do.
        None: twice `max_in_flight_bytes`, but no less than two blocks.
    store_bandwidth_limit
        Bytes per second that one rank stores at most. None: as fast as the link goes.
    copy_path
        How loads cross the link: ``"auto"``: by shape, and by how long copies took so far; else one for all.
    backend
        ``"auto"``: by the device of the KV cache; else the name of a back end.
    kv_cache_layout
        How the engine lays its KV cache out, by vLLM's name; ``"engine"``: as the engine chooses.
    eviction
        The policy by which blocks leave a full tier, one of `EVICTIONS`; ``"adaptive"``: the rule that would have hit
        most.
    admission
        The policy by which a full tier stores blocks, one of `ADMISSIONS`; ``"adaptive"``: as the rule says that would
        have hit most. A tier with free slots stores all.
    retention
        Which blocks of sliding windows and chunks are stored: ``"engine"``: those that the engine's own cache retains,
        and those before the end of a prefix that requests share in the tier; a number of tokens: also what a prefix
        needs that ends at a multiple of so many; ``"dense"``: all.
    store_prompt_only
        Whether only blocks of prompts are stored, and none that has decoded tokens.
    max_awaited_share
        Share of the tier, from 0 to 1, that is kept for queued requests at most; 0: nothing is.
    max_promised_share
        Share of the tier, from 0 to 1, that clients' hints may keep from leaving, or make leave early, at most; 0: no
        hint is followed.
    min_load_tokens
        Tokens below which a request's prefix is computed and not loaded. None: measured, so that no load takes longer
        than the computation.
    share_loads
        Whether a request waits, for a second at most, for another one's load of the same prefix. As a child of
        ``MultiConnector`` none does.
    share_replicated_kv
        Whether tensor-parallel ranks of one node that all hold the same KV cache (MLA) keep one copy of it.
    weights_run
        Name of the training whose versions of the weights vLLM is told (``update_weight_version``): blocks of each
        version are kept for its return. Engines of one shared tier with one name here have the same weights under the
        same version. None: versions mean nothing, and a reset of the cache forgets everything.
    shared_path
        File in shared memory, such as ``/dev/shm/kvferry/tier``, of a tier that all engines of this node share that
        name it; the first one makes it. `cpu_bytes_to_use` is the size of it then, for all engines together, and the
        same for all of them, as the number of their ranks. None: the tier is this engine's own.
    shared_keep
        Whether the file stays behind when the last engine has ended, for the next one to find its blocks in.
    shared_weight
        Part of the shared tier that is this engine's when there is not enough for all, in proportion to the others'.
    shared_bytes_limit
        Most bytes of the shared tier that this engine takes, all ranks together. None: all of it.
    shared_multimodal
        Whether requests with images, audio or video use a shared tier. vLLM takes a client's UUID of an item for its
        content: for engines none of whose clients gives one UUID to two contents.
    shared_chunk_bytes
        Bytes of a rank's memory that change hands between engines at a time; the same for all of them. None: by
        `cpu_bytes_to_use`.
    host_link
        The simulated link of the host back end: ``h2d_gb_s``, ``d2h_gb_s`` (1e9 bytes per second), ``latency_us``,
        ``jitter_us``, ``stall_us``, ``order``, ``fail_nth``, ``fail_probability``, ``seed``. None: copies run at memory
        speed.

    """

    cpu_bytes_to_use: int = key(read_size, default=8 * GIB)
    cpu_bytes_to_use_per_rank: int | None = key(read_size, default=None)
    cpu_bytes_limit: int | None = key(read_size, default=None)
    memory_margin: int | None = key(read_size, default=None)
    allow_smaller_tier: bool = key(_read_flag, WORKER, default=False)
    numa_node: int | None = key(
        settings.numa_node(WHERE, "leave it out for the node next to the device; numactl -H lists them"),
        WORKER,
        default=None,
    )
    pages: str = key(one_of(WHERE, PAGES, "leave the key out for the best there are"), WORKER, default="auto")
    pinned_piece_bytes: int = key(read_size, WORKER, default=64 * MIB)
    pinning_bandwidth_limit: int | None = key(read_rate, WORKER, default=None)
    staging_bytes: int | None = key(read_size, default=None)
    max_in_flight_bytes: int = key(read_size, WORKER, default=32 * MIB)
    load_staging_bytes: int | None = key(read_size_or_zero, default=None)
    store_bandwidth_limit: int | None = key(read_rate, WORKER, default=None)
    copy_path: str = key(one_of(WHERE, COPY_PATHS, "leave the key out"), WORKER, default="auto")
    transfer_timeout_s: float = key(read_seconds, WORKER, default=300.0)
    load_timeout_s: float = key(read_seconds, SCHEDULER, default=30.0)
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
        """Whether the configuration allows a tier that goes back to the machine in parts."""
        return self.shared_path is None and self.pages != "huge"

    def told_to(self, side: Side) -> dict[str, object]:
        """Return what a side's engine of the core is told as it is here; the rest of its options is worked out."""
        return {each.name: getattr(self, each.name) for each in fields(self) if side in each.metadata["sides"]}

    @property
    def rank_timeout_s(self) -> float:
        """Seconds of steps after which a rank that says nothing is lost: longer than it may take to say so itself."""
        return self.transfer_timeout_s + _RANK_GRACE_S

    def bytes_per_arena(self, num_local_arenas: int, num_sharing: int = 1) -> int:
        """Bytes of the tier in each of the `num_local_arenas` arenas of a node, of `num_sharing` ranks each."""
        if self.cpu_bytes_to_use_per_rank is not None:
            return self.cpu_bytes_to_use_per_rank * num_sharing
        return self.most_bytes // num_local_arenas

    @property
    def most_bytes(self) -> int:
        """What the tier can be made: on one node, or for each rank if that is how it was told."""
        return self.cpu_bytes_to_use_per_rank or self.cpu_bytes_limit or self.cpu_bytes_to_use

    def start_chunks(self, num_chunks: int) -> int:
        """Chunks that a tier begins with, which can have `num_chunks`."""
        if self.cpu_bytes_limit is None:
            return num_chunks
        return max(num_chunks * self.cpu_bytes_to_use // self.cpu_bytes_limit, 1)

    def shared_capacity(self, num_ranks: int) -> int:
        """Bytes of a shared tier, of all ranks together."""
        return self.bytes_per_arena(num_ranks) * num_ranks

    def num_arenas_in_budget(self, num_local_arenas: int) -> int:
        """Arenas of one node for all of which the first one checks the machine's memory.

        Bytes per rank are for nodes that the number of local ranks is not known of (vLLM takes all ranks for local
        under Ray), so that each rank asks for itself then; what others were granted is not granted again either way.
        A smaller tier is divided, because the first rank would leave nothing.
        """
        if self.cpu_bytes_to_use_per_rank is not None and not self.allow_smaller_tier:
            return 1
        return num_local_arenas

    def tier_bytes(
        self, slot_bytes: int, num_local_arenas: int, num_sharing: int = 1, least: str = "one block of the KV cache"
    ) -> int:
        """Bytes of the arena in which one rank's tier is.

        Parameters
        ----------
        slot_bytes
            Bytes of the largest block on this rank, all layers packed; or of what is the `least` that it has to hold.
        num_local_arenas
            Among which the node's budget is divided.
        num_sharing
            Ranks of one arena.
        least
            What that is.

        Raises
        ------
        ConfigError
            The budget holds not even one block.

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
            Bytes of one block on this rank, all layers packed, of each KV cache group: each has blocks of its own for
            the same tokens.
        block_tokens
            Tokens of a block of each group.
        max_num_batched_tokens
            Tokens that one step of the engine computes at most.

        Raises
        ------
        ConfigError
            `staging_bytes` is set and holds not even one block.

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
        """Bytes of device memory through which one rank's loads of small fragments go; 0: none do.

        Parameters
        ----------
        slot_bytes
            Bytes of one block on this rank, all layers packed.

        Raises
        ------
        ConfigError
            `load_staging_bytes` is set and holds not even two blocks, or is 0 with `copy_path` ``"staged"``.

        """
        # One is filled from the link while the other is scattered.
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
