# SPDX-License-Identifier: Apache-2.0
"""How many bytes a block has on each rank, as the engine's configuration tells it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.utils import get_pp_indices
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec


def layer_bytes(spec: "KVCacheSpec") -> int:
    """Bytes of a block in one layer, without the padding behind its page.

    Parameters
    ----------
    spec
        Of a layer with attention or recurrent state, or a uniform group of layers that all have the same size.

    Raises
    ------
    ConfigError
        The layers of a uniform group differ in size. The scheduler's copy of the group names only one of them, so
        that its ranks could not be checked.

    """
    if isinstance(spec, MambaSpec):
        return int(spec.state_content_size_bytes)
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return int(spec.unpadded_page_size_bytes)
    by_size = {layer_bytes(layer): name for name, layer in spec.kv_cache_specs.items()}
    if len(by_size) > 1:
        raise ConfigError(
            "the layers of the KV cache differ in size: "
            + ", ".join(f"{name!r} has {size} bytes per block" for size, name in sorted(by_size.items()))
            + "; allowed is one size for all layers; not supported in this release: start vLLM without "
            "KvFerryConnector for this model"
        )
    return min(by_size)


def has_state(spec: "KVCacheSpec") -> bool:
    """Whether the layers keep recurrent state, and no keys and values."""
    return any(isinstance(layer, MambaSpec) for layer in iter_layer_specs(spec))


def group_bytes(groups: Sequence["KVCacheGroupSpec"]) -> list[int]:
    """Bytes of a block of each group, all layers of a worker's own packed."""
    return [layer_bytes(group.kv_cache_spec) * len(group.layer_names) for group in groups]


class SlabClasses(NamedTuple):
    """Which KV cache groups have blocks, and so slots, of one kind: as many layers of the same size.

    Attributes
    ----------
    of_groups
        The class of each group.
    slot_bytes
        Of each class, the largest first: bytes of a block on each rank, all layers packed.

    """

    of_groups: list[int]
    slot_bytes: list[list[int]]


def slab_classes_of_rank(groups: Sequence["KVCacheGroupSpec"]) -> SlabClasses:
    """Find the classes of a worker's own groups; the sizes are its own only."""
    # Blocks of one size whose layers differ have their bytes elsewhere in a page.
    of_each = [
        (bytes_of_group, layer_bytes(group.kv_cache_spec), has_state(group.kv_cache_spec))
        for bytes_of_group, group in zip(group_bytes(groups), groups, strict=True)
    ]
    kinds = sorted(set(of_each), reverse=True)
    return SlabClasses([kinds.index(kind) for kind in of_each], [[kind[0]] for kind in kinds])


def slab_classes(vllm_config: "VllmConfig", groups: Sequence["KVCacheGroupSpec"]) -> SlabClasses:
    """Find the classes of all ranks.

    Parameters
    ----------
    vllm_config
        Gives ranks (pipeline stages outermost) and vLLM's own division of the layers among pipeline stages.
    groups
        The scheduler's copy of the KV cache groups, which list the layers of rank 0.

    Raises
    ------
    ConfigError
        Pipeline parallel, and the layers of rank 0 are not what the division gives it: those of the other ranks
        cannot be told.

    """
    parallel = vllm_config.parallel_config
    num_stages = parallel.pipeline_parallel_size
    of_rank = slab_classes_of_rank(groups)
    if num_stages == 1:
        return SlabClasses(of_rank.of_groups, [sizes * parallel.world_size for sizes in of_rank.slot_bytes])
    group = max(groups, key=lambda group: len(group.layer_names))
    num_layers = vllm_config.model_config.get_total_num_hidden_layers()
    stages = [get_pp_indices(num_layers, stage, num_stages) for stage in range(num_stages)]
    layers_of_stage = [end - start for start, end in stages]
    if layers_of_stage[0] != len(group.layer_names):
        raise ConfigError(
            f"pipeline_parallel_size is {num_stages} and the first stage has {len(group.layer_names)} KV cache layers "
            f"where the model's division gives it {layers_of_stage[0]}; allowed is one KV cache layer per model layer; "
            "set --pipeline-parallel-size 1"
        )
    # One group has all layers of the stage, so there is no other.
    per_layer = layer_bytes(group.kv_cache_spec)
    ranks_per_stage = parallel.world_size // num_stages
    return SlabClasses([0], [[per_layer * layers for layers in layers_of_stage for _ in range(ranks_per_stage)]])
