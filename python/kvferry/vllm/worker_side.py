# SPDX-License-Identifier: Apache-2.0
"""The worker side of one rank: translates each of vLLM's hooks to one call of the core's WorkerEngine."""

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from kvferry import _core
from kvferry.config import WORKER, KvFerryConfig
from kvferry.errors import ConfigError, Error, ProtocolError, ResourceError, TopologyError
from kvferry.sizes import format_size
from kvferry.vllm import fingerprint, kv_device, preflight, rank_tier, recorder, replicas, topology
from kvferry.vllm.layout import Fragment, fragments_of_groups, num_runs
from kvferry.vllm.metadata import KvFerryMetadata, KvFerryWorkerMetadata
from kvferry.vllm.ring_room import choose_ring
from kvferry.vllm.stats import RANK_KEYS, KvFerryStats, StatsSource

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvferry")


class WorkerSide:
    """Executes plans on one rank, and reports; used only by the worker's engine thread.

    Before `register`, only `register` and `close` can be called.

    Parameters
    ----------
    config
        The connector's configuration.
    vllm_config, kv_cache_config
        The engine's configuration, as this worker has it.

    Raises
    ------
    ConfigError
        The tier or the staging ring is too small for one block, or kvferry refuses the engine.

    """

    def __init__(self, config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        self._config = config
        # This comes first, because the ranks of other pipeline stages wait for it.
        self._tier = rank_tier.tier_of_rank(config, vllm_config, kv_cache_config)
        left_out = (group for group in kv_cache_config.kv_cache_groups if not preflight.is_kept(group))
        self._left_out = frozenset(name for group in left_out for name in group.layer_names)
        kv_cache_config = preflight.kept_part(kv_cache_config)
        self._groups = list(kv_cache_config.kv_cache_groups)
        self._num_blocks = kv_cache_config.num_blocks
        parallel = vllm_config.parallel_config
        self._rank = parallel.rank
        self._world_size = parallel.world_size
        sharing, self._shared = self._tier.sharing, self._tier.shared
        if sharing.places[self._rank][0] > 1:
            replicas.refuse_own_layers(kv_cache_config)
        # Only a shared tier needs it, to keep the blocks of different engines apart.
        self._probe_of = partial(fingerprint.probe_of_rank, vllm_config, kv_cache_config) if self._shared else None
        # An engine_id alone may be a user's, and the same at the next start: ranks would join what an engine that
        # still ends has published, and have other memory than the ranks that come later.
        self._start = fingerprint.start_of(vllm_config)
        self._num_arenas_in_budget = config.num_arenas_in_budget(sharing.num_local_arenas)
        self._ring_bytes = config.ring_bytes(
            topology.group_bytes(kv_cache_config),
            [preflight.block_tokens(vllm_config, group) for group in self._groups],
            vllm_config.scheduler_config.max_num_batched_tokens,
        )
        self._load_ring_bytes = config.load_ring_bytes(self._tier.largest_slot)
        cache = vllm_config.cache_config
        self._utilization = None if cache.kv_cache_memory_bytes else float(cache.gpu_memory_utilization)
        # The engine has not allocated its KV cache yet.
        self._profiled_bytes = kv_device.profiled_bytes()
        self._recorder = recorder.RankRecorder(config.recorder_bytes, self._rank, recorder.start_mark(vllm_config))
        self.engine: _core.WorkerEngine | None = None
        self._kv_caches: dict[str, torch.Tensor] = {}
        # Whether `pump` has anything to do. It is checked in every layer of every step.
        self.is_waiting = False

    def register(self, kv_caches: Mapping[str, "torch.Tensor"]) -> None:
        """Take the engine's KV cache and start.

        Parameters
        ----------
        kv_caches
            The tensor of each layer, by name; kept alive until `close`.

        Raises
        ------
        ConfigError
            The tensors are on a device without a back end, or have an unsupported layout.
        TopologyError
            Their size differs from the engine's configuration.
        ResourceError
            The machine does not have the host memory.
        TimeoutError
            Several ranks share an arena, and the rank that makes it did not do so in time.

        """
        if self.engine is not None:
            raise ProtocolError("register_kv_caches was called twice; the tier belongs to the first KV cache")
        kv_caches = {name: tensor for name, tensor in kv_caches.items() if name not in self._left_out}
        of_groups, fragments = self._fragments_of(kv_caches)
        tier = self._tier
        num_replicas, replica_index = tier.sharing.places[self._rank]
        device = kv_device.find(kv_caches.values(), self._config.backend)
        ring_bytes = self._ring_that_fits(device)
        try:
            self.engine = engine = _core.WorkerEngine(
                **self._config.told_to(WORKER),
                **(self._shared.options if self._shared else {}),
                backend=device.backend,
                device_ordinal=device.ordinal,
                driver_library=device.driver_library,
                rank=self._rank,
                world_size=self._world_size,
                num_blocks=self._num_blocks,
                fragments=fragments,
                num_chunks=tier.num_chunks,
                start_chunks=tier.start_chunks,
                slots_per_chunk=tier.slots_per_chunk,
                slot_bytes=tier.classes.slot_bytes,
                budget_group=self._start,
                num_local_arenas=self._num_arenas_in_budget,
                replica_group=tier.sharing.group_of(self._start, self._rank),
                num_replicas=num_replicas,
                replica_index=replica_index,
                probe=self._probe_of(kv_caches, of_groups) if self._probe_of else 0,
                staging_bytes=ring_bytes,
                load_staging_bytes=self._load_ring_bytes,
                recorder=self._recorder.begin(),
            )
        except ResourceError as error:
            raise ResourceError(
                f"rank {self._rank} cannot get its share of cpu_bytes_to_use, "
                f"{format_size(tier.start_chunks * tier.chunk_bytes)}, or its staging rings: {error}"
            ) from error
        logger.info(
            "kvferry: rank %d has %d slots of %s (%s; by slab class %s), staging rings of %s for stores and %s for "
            "loads, on %s",
            self._rank,
            engine.max_slots,
            format_size(tier.classes.slot_bytes[0]),
            format_size(engine.max_slots // tier.slots_per_chunk[0] * tier.chunk_bytes),
            ", ".join(map(format_size, tier.classes.slot_bytes)),
            format_size(ring_bytes),
            format_size(engine.stats()["load_staging_size_bytes"]),
            engine.device,
        )
        logger.info(
            "kvferry: rank %d: a block is %s contiguous run(s) of device memory, by slab class",
            self._rank,
            ", ".join(str(num_runs(of_class)) for of_class in fragments),
        )
        logger.info("kvferry: rank %d: %s", self._rank, engine.copy_paths())
        logger.info("kvferry: rank %d: %s", self._rank, engine.arena())
        self._stats = StatsSource(self._figures, RANK_KEYS, engine.is_busy, str(self._rank), engine.take_timings)
        for warning in engine.arena_warnings():
            logger.warning("kvferry: rank %d: %s", self._rank, warning)
        self._compute_stream = device.compute_stream
        self._bind = engine.bind
        self._waits = engine.waiting
        self._pump = engine.pump
        self._save = engine.save
        self._take_report = engine.take_report
        self._collect = engine.collect
        self.hurry_stats = self._stats.hurry
        self._kv_caches = kv_caches
        # This runs even if the process ends without `close`, before Python and PyTorch shut the device down.
        self._end = weakref.finalize(self, _end, os.getpid(), engine, kv_caches)

    def unregister(self) -> None:
        """Wait until no copy touches the KV cache, and free the device memory of the staging rings; idempotent.

        The host memory of the tier stays, with the stored blocks. A load that ends here fails, because the engine
        discards the blocks that it filled.

        Raises
        ------
        TimeoutError
            A copy does not end within ``transfer_timeout_s``. Nothing has changed.
        DeviceError
            The device is lost.

        """
        if self.engine is None or self.engine.is_asleep:
            return
        self.engine.sleep()
        self.is_waiting = False
        logger.info("kvferry: rank %d has released the KV cache and its staging rings", self._rank)

    def restore(self) -> None:
        """Take the KV cache again, at its current addresses, and allocate the staging rings again; idempotent.

        Raises
        ------
        ResourceError
            The device does not have the memory. Nothing has changed, and the call can be repeated.
        ConfigError, TopologyError
            The tensors have another layout or size than before.

        """
        if self.engine is None or not self.engine.is_asleep:
            return
        kv_device.find(self._kv_caches.values(), self._config.backend)
        _, fragments = self._fragments_of(self._kv_caches)
        try:
            self.engine.wake(fragments, self._num_blocks)
        except ResourceError as error:
            raise ResourceError(
                f"rank {self._rank} cannot get the device memory of its staging rings again: {error}; free device "
                "memory and wake the engine up again, or start it with smaller staging_bytes and load_staging_bytes"
            ) from error
        logger.info("kvferry: rank %d has the KV cache and its staging rings again", self._rank)

    def _fragments_of(
        self, kv_caches: Mapping[str, "torch.Tensor"]
    ) -> tuple[list[list[Fragment]], list[list[Fragment]]]:
        """Find the fragments of a block, for each group and for each slab class."""
        groups = [group.layer_names for group in self._groups]
        of_groups = fragments_of_groups(groups, kv_caches, self._num_blocks)
        return of_groups, self._fragments_of_classes(of_groups)

    def _fragments_of_classes(self, of_groups: Sequence[list[Fragment]]) -> list[list[Fragment]]:
        """Find the fragments of a block for each slab class, and check them against the engine's specification."""
        of_classes: dict[int, list[Fragment]] = {}
        for group, slab_class, fragments in zip(self._groups, self._tier.classes.of_groups, of_groups, strict=True):
            layers = group.layer_names
            found = sum(fragment.num_bytes for fragment in fragments)
            expected = topology.content_bytes_of_group(group)
            if found != expected:
                raise TopologyError(
                    f"rank {self._rank}: a block of the registered KV cache has {found} bytes in {len(layers)} layers, "
                    f"and {expected} by the engine's KV cache specification"
                )
            if of_classes.setdefault(slab_class, fragments) != fragments:
                raise ConfigError(
                    f"the KV cache group of layer {layers[0]!r} has blocks of {found} bytes at other places of a page "
                    "than another group with blocks of that size; allowed are groups that share the pool's pages, all "
                    "with one layout; start vLLM with --disable-hybrid-kv-cache-manager or without KvFerryConnector"
                )
        return [of_classes[slab_class] for slab_class in range(len(self._tier.slots_per_chunk))]

    def _ring_that_fits(self, device: kv_device.KvDevice) -> int:
        """Bytes of the staging ring: the wanted size, or what the engine leaves of the device's memory.

        Raises
        ------
        ResourceError
            Not even one block fits.

        """
        if self._config.staging_bytes is not None:
            return self._ring_bytes
        memory = device.memory(self._utilization, self._profiled_bytes)
        if memory is None:
            return self._ring_bytes
        try:
            choice = choose_ring(memory, self._ring_bytes, self._tier.largest_slot, self._load_ring_bytes)
        except ResourceError as error:
            raise ResourceError(f"rank {self._rank}: {error}") from error
        if choice.warning:
            logger.warning("kvferry: rank %d: %s", self._rank, choice.warning)
        return choice.ring_bytes

    @recorder.kept_on_error
    def bind(self, metadata: KvFerryMetadata) -> None:
        """Begin a step. Its loads wait for the work that the compute stream has now."""
        self._bind(metadata.plan, self._compute_stream())
        self.is_waiting = self._waits()

    @recorder.kept_on_error
    def pump(self) -> None:
        """Gather the blocks for which earlier steps had no room, if there is room now."""
        self._pump(self._compute_stream())
        self.is_waiting = self._waits()

    @recorder.kept_on_error
    def save(self) -> None:
        """Gather the blocks that this step stores, in the order of the compute stream. Does not wait."""
        self._save(self._compute_stream())
        self.is_waiting = self._waits()

    @recorder.kept_on_error
    def collect(self) -> list[str]:
        """Take note of the transfers that have ended. Returns the requests whose load has failed."""
        return self._collect()

    def take_metadata(self) -> KvFerryWorkerMetadata | None:
        """Take this rank's report; None if there is none."""
        report = self._take_report()
        return KvFerryWorkerMetadata([report]) if report else None

    def take_stats(self) -> KvFerryStats | None:
        """Take this rank's figures, if it is time."""
        return self._stats.take()

    def _figures(self) -> dict[str, float]:
        assert self.engine is not None
        return {**self.engine.stats(), **self.engine.arena_figures()}

    @recorder.kept_on_error
    def close(self) -> None:
        """End: wait until no copy touches the KV cache, then release it; idempotent.

        Raises
        ------
        TimeoutError
            A copy does not end. Then the KV cache is kept alive.

        """
        if self.engine is not None:
            self.engine.close()
            self._end.detach()
        self._recorder.close()


def _end(owner: int, engine: _core.WorkerEngine, kv_caches: "Mapping[str, torch.Tensor]") -> None:
    """Close an engine that was not closed before. Until then `kv_caches` are kept alive.

    A forked child leaves its parent's engine alone.
    """
    if os.getpid() != owner:
        return
    try:
        engine.close()
    except Error as error:
        logger.error("kvferry: a transfer is still under way at the end of the process: %s", error)
