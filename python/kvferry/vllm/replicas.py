# SPDX-License-Identifier: Apache-2.0
"""Which ranks hold the same KV cache and keep one copy of it, according to the engine's configuration."""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec, iter_layer_specs

from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.vllm import topology, versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Executors that place ranks as the configuration says: `local_world_size` ranks on each node, in order. Under Ray, vLLM
# counts all ranks as local, wherever they are.
_EXECUTORS = (None, "uni", "mp")
_LATENT = (MLAAttentionSpec, SlidingWindowMLASpec)


class Replicas(NamedTuple):
    """The arenas of an engine's ranks.

    Attributes
    ----------
    places
        For each rank: how many ranks share its arena, and its index among them.
    num_local_arenas
        The largest number of arenas on one node.
    least_sharing
        The smallest number of ranks that share one arena.

    """

    places: list[tuple[int, int]]
    num_local_arenas: int
    least_sharing: int

    @property
    def most_sharing(self) -> int:
        """The largest number of ranks that share one arena."""
        return max(size for size, _ in self.places)

    def group_of(self, start: str, rank: int) -> str:
        """Name, on this machine, of the ranks of this start of the engine that share an arena with `rank`."""
        return f"{start}/{rank - self.places[rank][1]}"


def groups_of_ranks(world_size: int, num_alike: int, ranks_per_node: int) -> list[range]:
    """Group the ranks that hold the same bytes on one node: `num_alike` consecutive ranks do. Ordered by rank."""
    borders = {*range(0, world_size, num_alike), *range(0, world_size, ranks_per_node), world_size}
    ordered = sorted(borders)
    return [range(first, end) for first, end in pairwise(ordered)]


def replicas_of(config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> Replicas:
    """Find the ranks that share an arena: those of one node that hold the same KV cache.

    The scheduler and every rank come to the same result, and compare it when the engine starts.
    """
    parallel = vllm_config.parallel_config
    num_ranks, per_node = parallel.world_size, parallel.local_world_size
    # Decode context parallelism divides the tokens of a block among ranks.
    is_divided = parallel.decode_context_parallel_size > 1
    is_placed = parallel.distributed_executor_backend in _EXECUTORS
    # In a tier that engines share, each rank shares its part with the same rank of the other engines.
    is_shared = config.share_replicated_kv and config.shared_path is None
    if is_shared and is_placed and not is_divided:
        num_alike = _num_alike(vllm_config, kv_cache_config)
        return _made_of(groups_of_ranks(num_ranks, num_alike, per_node), per_node)
    return _made_of([range(rank, rank + 1) for rank in range(num_ranks)], per_node)


def _num_alike(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> int:
    """Number of consecutive ranks of a stage that hold the same bytes in all layers, as far as the scheduler knows."""
    parallel = vllm_config.parallel_config
    if (told := versions.kv_tp_replicas(kv_cache_config)) is not None:
        # Prefill context parallelism repeats the tensor-parallel ranks, one set after the other.
        is_all = told == parallel.tensor_parallel_size
        return told * parallel.prefill_context_parallel_size if is_all else told
    # The only other layers that an MLA model can have are those of its drafter.
    is_only_latent = vllm_config.model_config.use_mla and vllm_config.speculative_config is None
    is_latent = all(
        isinstance(topology.first_spec(group.kv_cache_spec), _LATENT)
        and (is_only_latent or topology.are_alike(topology.pages_of_group(group, kv_cache_config)))
        for group in kv_cache_config.kv_cache_groups
    )
    return parallel.world_size // parallel.pipeline_parallel_size if is_latent else 1


def refuse_own_layers(kv_cache_config: "KVCacheConfig") -> None:
    """Check that ranks which share an arena have no layers of their own, if the scheduler could not know it.

    Raises
    ------
    ConfigError
        A layer is not an MLA layer.

    """
    if versions.kv_tp_replicas(kv_cache_config) is not None:
        return
    for group in kv_cache_config.kv_cache_groups:
        for spec in iter_layer_specs(group.kv_cache_spec):
            if not isinstance(spec, _LATENT):
                raise ConfigError(
                    f"share_replicated_kv is true, but the model has a layer of {type(spec).__name__} besides MLA, and "
                    "each rank has its own part of that layer; set share_replicated_kv to false"
                )


def _made_of(arenas: Iterable[range], ranks_per_node: int) -> Replicas:
    places = [(len(ranks), index) for ranks in arenas for index in range(len(ranks))]
    # Each arena is counted at its first rank.
    firsts = [rank for rank, (_, index) in enumerate(places) if index == 0]
    nodes = [first // ranks_per_node for first in firsts]
    return Replicas(places, max(map(nodes.count, nodes)), min(size for size, _ in places))
