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
        How far back their tokens see, from `preflight.reach_of_group`.
    of_groups
        The slab class of every group, including groups that are left out.
    stages
        How a rank of each pipeline stage divides its memory, as far as known: the scheduler knows only the first stage.

    """

    groups: list["KVCacheGroupSpec"]
    sizes: preflight.BlockSizes
    reaches: list[tuple[str, int]]
    of_groups: list[int]
    stages: list[RankTier]

    @property
    def first(self) -> RankTier:
        """The tier of a rank of the first stage."""
        return self.stages[0]

    @property
    def slot_bytes(self) -> list[int]:
        """Bytes of a block by slab class, on the rank where they are most."""
        return [max(sizes) for sizes in zip(*(stage.classes.slot_bytes for stage in self.stages), strict=True)]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk on the rank where they are most."""
        return max(stage.chunk_bytes for stage in self.stages)

    @property
    def num_chunks(self) -> int:
        """Chunks that every rank can have."""
        return min(stage.num_chunks for stage in self.stages)

    @property
    def start_chunks(self) -> int:
        """Chunks with which every rank starts."""
        return min(stage.start_chunks for stage in self.stages)

    @property
    def max_slots(self) -> int:
        """Slots for the largest blocks, if they had all of the memory with which the tier starts."""
        return self.start_chunks * self.first.slots_per_chunk[0]

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the groups whose slots `max_slots` counts."""
        kept = [number for number, group in enumerate(self.groups) if preflight.is_kept(group)]
        return max(self.sizes.block_tokens(number) for number in kept if self.of_groups[number] == 0)

    @property
    def num_arenas(self) -> int:
        """Number of arenas of all ranks."""
        return sum(index == 0 for _, index in self.first.sharing.places)


def plan_tier(
    config: KvFerryConfig,
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    later_stages: "Sequence[KVCacheConfig]" = (),
) -> TierPlan:
    """Plan the tier, without allocating anything.

    Parameters
    ----------
    config
        The connector's configuration.
    vllm_config, kv_cache_config
        The engine's configuration; of the KV cache the scheduler's copy.
    later_stages
        The KV caches of the other pipeline stages' ranks, if they are known.

    Raises
    ------
    ConfigError
        The tier is too small for one block, or kvferry refuses the engine.

    """
    groups = preflight.check_kv_cache(kv_cache_config)
    sizes = preflight.block_sizes(vllm_config, kv_cache_config)
    first = rank_tier.divide(config, vllm_config, kv_cache_config)
    stages = [first]
    for number, of_stage in enumerate(later_stages, 1):
        stages.append(rank_tier.divide_as(first, number, config, vllm_config, of_stage))
    classes_of_kept = iter(first.classes.of_groups)
    # A group that is left out has no slots, so its class does not matter.
    of_groups = [next(classes_of_kept) if preflight.is_kept(group) else 0 for group in groups]
    reaches = [preflight.reach_of_group(group, vllm_config.num_speculative_tokens) for group in groups]
    return TierPlan(groups, sizes, reaches, of_groups, stages)


def warn_of_small_tier(num_slots: int, block_tokens: int, max_model_len: int) -> None:
    """Warn if the tier cannot hold one request of the maximum length."""
    num_tokens = num_slots * block_tokens
    if num_tokens < max_model_len:
        logger.warning(
            "kvferry's tier holds %d tokens (%d blocks of %d), less than one request of max_model_len %d tokens: it "
            "cannot hold long prefixes whole; raise cpu_bytes_to_use",
            num_tokens,
            num_slots,
            block_tokens,
            max_model_len,
        )
