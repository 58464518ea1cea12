# SPDX-License-Identifier: Apache-2.0
"""How the tier is divided among the blocks of an engine's KV cache groups."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vllm.logger import init_logger

from kvferry.config import KvFerryConfig
from kvferry.vllm import preflight, rank_tier
from kvferry.vllm.rank_tier import RankTier

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

logger = init_logger("vllm.kvferry")


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
    of_groups
        The slab class of every group, one that is left out included.
    stages
        How a rank of each pipeline stage divides its memory, as far as that is known: the scheduler knows the first.

    """

    groups: list["KVCacheGroupSpec"]
    sizes: preflight.BlockSizes
    reaches: list[tuple[str, int]]
    of_groups: list[int]
    stages: list[RankTier]

    @property
    def first(self) -> RankTier:
        """The first stage's."""
        return self.stages[0]

    @property
    def slot_bytes(self) -> list[int]:
        """Bytes of a block by slab class, on the rank that has most of it."""
        return [max(sizes) for sizes in zip(*(stage.classes.slot_bytes for stage in self.stages), strict=True)]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk on the rank that has most of it."""
        return max(stage.chunk_bytes for stage in self.stages)

    @property
    def num_chunks(self) -> int:
        """Chunks that every rank can have."""
        return min(stage.num_chunks for stage in self.stages)

    @property
    def start_chunks(self) -> int:
        """Chunks that every rank begins with."""
        return min(stage.start_chunks for stage in self.stages)

    @property
    def max_slots(self) -> int:
        """Slots of the largest blocks, if they had all that the tier begins with."""
        return self.start_chunks * self.first.slots_per_chunk[0]

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of those groups whose slots `max_slots` counts."""
        kept = [number for number, group in enumerate(self.groups) if preflight.is_kept(group)]
        return max(self.sizes.block_tokens(number) for number in kept if self.of_groups[number] == 0)

    @property
    def num_arenas(self) -> int:
        """Arenas of all ranks."""
        return sum(index == 0 for _, index in self.first.sharing.places)


def plan_tier(
    config: KvFerryConfig,
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    later_stages: "Sequence[KVCacheConfig]" = (),
) -> TierPlan:
    """Divide the tier; makes nothing.

    Parameters
    ----------
    config
        Of the connector.
    vllm_config, kv_cache_config
        Of the engine; the scheduler's copy of the latter.
    later_stages
        The KV caches of the other pipeline stages' ranks, if they are known.

    Raises
    ------
    ConfigError
        The tier holds no block, or the engine is one that kvferry refuses.

    """
    groups = preflight.check_kv_cache(kv_cache_config)
    sizes = preflight.block_sizes(vllm_config, kv_cache_config)
    first = rank_tier.divide(config, vllm_config, kv_cache_config)
    stages = [first]
    for number, of_stage in enumerate(later_stages, 1):
        stages.append(rank_tier.divide_as(first, number, config, vllm_config, of_stage))
    classes_of_kept = iter(first.classes.of_groups)
    # A group that is left out has no slots, and any class.
    of_groups = [next(classes_of_kept) if preflight.is_kept(group) else 0 for group in groups]
    reaches = [preflight.reach_of_group(group, vllm_config.num_speculative_tokens) for group in groups]
    return TierPlan(groups, sizes, reaches, of_groups, stages)


def warn_of_small_tier(num_slots: int, block_tokens: int, max_model_len: int) -> None:
    """Warn of a tier that cannot hold one request of the maximum length."""
    num_tokens = num_slots * block_tokens
    if num_tokens < max_model_len:
        logger.warning(
            "kvferry's tier holds %d tokens (%d blocks of %d), less than one request of max_model_len %d tokens: long "
            "prefixes will not be found whole; raise cpu_bytes_to_use",
            num_tokens,
            num_slots,
            block_tokens,
            max_model_len,
        )
