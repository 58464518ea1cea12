# SPDX-License-Identifier: Apache-2.0
"""How the tier is divided among the blocks of an engine's KV cache groups."""

from typing import TYPE_CHECKING, NamedTuple

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.vllm import preflight, replicas, shared_tier, topology

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec


class TierPlan(NamedTuple):
    """The tier of one engine.

    Attributes
    ----------
    groups
        The engine's KV cache groups.
    sizes
        Tokens of their blocks.
    reaches
        How far back their tokens see, as `preflight.reach_of_group` says it.
    classes
        The slab class of every group, one that is left out included, and the bytes of a class's slots by rank.
    sharing
        Which ranks share an arena.
    shared
        The tier that engines share, if the configuration names one.
    tier_bytes
        Of one arena.
    max_chunks, slots_per_chunk
        Chunks that there will be, the same on every rank, and slots of each class in one of them.

    """

    groups: list["KVCacheGroupSpec"]
    sizes: preflight.BlockSizes
    reaches: list[tuple[str, int]]
    classes: topology.SlabClasses
    sharing: replicas.Replicas
    shared: shared_tier.SharedTier | None
    tier_bytes: int
    max_chunks: int
    slots_per_chunk: list[int]

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest block, on the rank that has most of it."""
        return max(self.classes.slot_bytes[0])

    @property
    def max_slots(self) -> int:
        """Slots of the largest blocks, if they had all of the tier."""
        return self.max_chunks * self.slots_per_chunk[0]

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of those groups whose slots `max_slots` counts."""
        of_groups = self.classes.of_groups
        kept = [number for number, group in enumerate(self.groups) if preflight.is_kept(group)]
        return max(self.sizes.block_tokens(number) for number in kept if of_groups[number] == 0)

    @property
    def num_arenas(self) -> int:
        """Arenas of all ranks."""
        return sum(index == 0 for _, index in self.sharing.places)


def plan_tier(config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> TierPlan:
    """Divide the tier; makes nothing.

    Parameters
    ----------
    config
        Of the connector.
    vllm_config, kv_cache_config
        Of the engine; the scheduler's copy of the latter.

    Raises
    ------
    ConfigError
        The tier holds no block, or the engine is one that kvferry refuses.

    """
    groups = preflight.check_kv_cache(kv_cache_config)
    sizes = preflight.block_sizes(vllm_config, kv_cache_config)
    kept = preflight.kept_part(kv_cache_config)
    of_kept = topology.slab_classes(vllm_config, kept)
    classes_of_kept = iter(of_kept.of_groups)
    # A group that is left out has no slots, and any class.
    of_groups = [next(classes_of_kept) if preflight.is_kept(group) else 0 for group in groups]
    classes = topology.SlabClasses(of_groups, of_kept.slot_bytes)
    sharing = replicas.replicas_of(config, vllm_config, kept)
    tier_bytes = config.tier_bytes(max(classes.slot_bytes[0]), sharing.num_local_arenas, sharing.least_sharing)
    shared = shared_tier.shared_tier_of(config, vllm_config, [max(sizes) for sizes in classes.slot_bytes])
    if shared is None:
        # A slot id means the same block on every rank, so the rank with the fewest slots bounds them all.
        max_chunks, slots_per_chunk = _core.slab_geometry(tier_bytes, classes.slot_bytes)
    else:
        max_chunks, slots_per_chunk = shared.num_chunks, shared.slots_per_chunk
    reaches = [preflight.reach_of_group(group, vllm_config.num_speculative_tokens) for group in groups]
    return TierPlan(groups, sizes, reaches, classes, sharing, shared, tier_bytes, max_chunks, slots_per_chunk)
