# SPDX-License-Identifier: Apache-2.0
"""How a rank divides its part of the tier, and what the first pipeline stage tells the ranks of other stages about it.

A plan names a slot by its class and number, so a chunk must have the same number of slots of each class on every rank.
The bytes of a block differ between stages. vLLM gives every process the KV cache of its own rank, and the scheduler the
one of rank 0. So the first stage decides, because the scheduler knows its figures too, and tells the others its result.
"""

from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.parallel_state import get_pp_group

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.vllm import preflight, replicas, shared_tier, topology

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class RankTier(NamedTuple):
    """The tier of a rank.

    Attributes
    ----------
    classes
        The slab classes of the KV cache groups that are kept.
    sharing
        Which ranks share an arena.
    shared
        The tier that engines share, if the configuration names one.
    tier_bytes
        Bytes of the rank's arena.
    num_chunks
        Chunks that it can have.
    start_chunks
        Chunks with which it starts.
    slots_per_chunk
        Slots of each class in a chunk, the same on every rank.

    """

    classes: topology.SlabClasses
    sharing: replicas.Replicas
    shared: shared_tier.SharedTier | None
    tier_bytes: int
    num_chunks: int
    start_chunks: int
    slots_per_chunk: list[int]

    @property
    def largest_slot(self) -> int:
        """Bytes of the largest block."""
        return max(self.classes.slot_bytes)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk: those of its slots, for the class whose slots take most."""
        return _chunk_bytes(self.slots_per_chunk, self.classes.slot_bytes)


def tier_of_rank(config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> RankTier:
    """Divide the tier of this process's rank. With several pipeline stages all ranks have to call it at the same time.

    Parameters
    ----------
    config
        The connector's configuration.
    vllm_config, kv_cache_config
        The engine's configuration, as this worker has it.

    Raises
    ------
    ConfigError
        The tier is too small for one block, or kvferry refuses the engine.

    """
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return divide(config, vllm_config, kv_cache_config)
    stages = get_pp_group()
    first: RankTier | None = None
    if not stages.is_first_rank:
        first = stages.broadcast_object(None, src=0)
        if first is None:
            raise ConfigError("the first pipeline stage refuses to start; its own error says why and what to do")
        return divide_as(first, stages.rank_in_group, config, vllm_config, kv_cache_config)
    try:
        first = divide(config, vllm_config, kv_cache_config)
    finally:
        # Always, even after an error, because the others wait for it.
        stages.broadcast_object(first, src=0)
    return first


def divide(config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> RankTier:
    """Divide the tier of a rank of the first stage; otherwise like `tier_of_rank`."""
    kept = _kept_part(vllm_config, kv_cache_config, 0)
    classes = topology.slab_classes(kept, vllm_config.parallel_config.pipeline_parallel_size)
    sharing = replicas.replicas_of(config, vllm_config, kept)
    tier_bytes = config.tier_bytes(max(classes.slot_bytes), sharing.num_local_arenas, sharing.least_sharing)
    shared = shared_tier.shared_tier_of(config, vllm_config, classes.slot_bytes)
    if shared is None:
        num_chunks, slots_per_chunk = _core.slab_geometry(tier_bytes, classes.slot_bytes)
    else:
        num_chunks, slots_per_chunk = shared.num_chunks, shared.slots_per_chunk
    start = config.start_chunks(num_chunks)
    return RankTier(classes, sharing, shared, tier_bytes, num_chunks, start, slots_per_chunk)


def divide_as(
    first: RankTier, stage: int, config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig"
) -> RankTier:
    """Divide the tier of a rank of a later stage; otherwise like `tier_of_rank`.

    Parameters
    ----------
    first
        The first stage's tier.
    stage
        Number of this stage.
    config, vllm_config, kv_cache_config
        As for `tier_of_rank`.

    """
    kept = _kept_part(vllm_config, kv_cache_config, stage)
    sharing = replicas.replicas_of(config, vllm_config, kept)
    if sharing != first.sharing:
        raise ConfigError(
            f"pipeline stage {stage} has KV cache layers that {sharing.most_sharing} ranks hold alike, but in the "
            f"first stage {first.sharing.most_sharing} do; allowed is one number for all stages; set "
            "share_replicated_kv to false"
        )
    sizes = topology.group_bytes(kept)
    of_class = dict(zip(first.classes.of_groups, sizes, strict=True))
    classes = topology.SlabClasses(first.classes.of_groups, [of_class[i] for i in range(len(of_class))])
    chunk_bytes = _chunk_bytes(first.slots_per_chunk, classes.slot_bytes)
    tier_bytes = config.tier_bytes(
        chunk_bytes, sharing.num_local_arenas, sharing.least_sharing, f"a chunk of blocks of pipeline stage {stage}"
    )
    num_chunks = min(first.num_chunks, tier_bytes // chunk_bytes)
    start = config.start_chunks(num_chunks)
    return RankTier(classes, sharing, None, tier_bytes, num_chunks, start, first.slots_per_chunk)


def _chunk_bytes(slots_per_chunk: list[int], slot_bytes: list[int]) -> int:
    return max(number * size for number, size in zip(slots_per_chunk, slot_bytes, strict=True))


def _kept_part(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", stage: int) -> "KVCacheConfig":
    """Return the groups that are kept, after a check that each of them has a layer on this rank."""
    preflight.check_kv_cache(kv_cache_config)
    kept = preflight.kept_part(kv_cache_config)
    for group in kept.kv_cache_groups:
        if not group.layer_names:
            spec = topology.first_spec(group.kv_cache_spec)
            raise ConfigError(
                f"pipeline stage {stage} of {vllm_config.parallel_config.pipeline_parallel_size} has no layer of a KV "
                f"cache group ({type(spec).__name__}); allowed are stages with a layer of each group; set "
                "--pipeline-parallel-size to fewer stages, or VLLM_PP_LAYER_PARTITION to another division of the layers"
            )
    return kept
