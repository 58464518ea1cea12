# SPDX-License-Identifier: Apache-2.0
"""How many bytes a block has on each rank, as the engine's configuration tells it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.utils import get_pp_indices
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


def first_spec(spec: "KVCacheSpec") -> "KVCacheSpec":
    """Return the specification by which both sides know a group: of a uniform group's layers the first one's.

    The scheduler's copy of a group has no other.
    """
    return spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def content_bytes(spec: "KVCacheSpec") -> int:
    """Bytes of a block in one layer, without the padding after them in the layer's page."""
    if isinstance(spec, MambaSpec):
        return int(spec.state_content_size_bytes)
    return int(spec.unpadded_page_size_bytes)


def content_bytes_of_group(group: "KVCacheGroupSpec") -> int:
    """Bytes of a block in all layers of a worker's own group, as the layers' specifications say."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return sum(content_bytes(layer) for layer in spec.kv_cache_specs.values())
    return content_bytes(spec) * len(group.layer_names)


def has_state(spec: "KVCacheSpec") -> bool:
    """Whether the layers keep recurrent state, and no keys and values."""
    return any(isinstance(layer, MambaSpec) for layer in iter_layer_specs(spec))


class Page(NamedTuple):
    """Where the blocks of one layer lie in the pool's memory.

    Attributes
    ----------
    offset, block_stride
        In bytes: of block 0, and from one block to the next one.
    num_bytes
        Of the layer's part of a block, with its padding.
    tensor
        Number of the layer's `KVCacheTensor`: the layers of a group that have the same one have the same specification.

    """

    offset: int
    block_stride: int
    num_bytes: int
    tensor: int


def pages_of_group(group: "KVCacheGroupSpec", kv_cache_config: "KVCacheConfig") -> list[Page]:
    """Find the pages of a group's layers.

    Two layers' pages lie a page apart if blocks are the outer dimension, or a page for each block if layers are.

    Raises
    ------
    ConfigError
        vLLM has no memory for one of the layers.

    """
    pages: dict[str, Page] = {}
    for number, tensor in enumerate(kv_cache_config.kv_cache_tensors):
        is_block_outermost = tensor.block_stride > tensor.layer_stride
        num_bytes = tensor.layer_stride if is_block_outermost else tensor.layer_stride // kv_cache_config.num_blocks
        for i, name in enumerate(tensor.layers):
            pages[name] = Page(tensor.offset + i * tensor.layer_stride, tensor.block_stride, num_bytes, number)
    for name in group.layer_names:
        if name not in pages:
            raise ConfigError(
                f"KV cache layer {name!r} has no place in the engine's KV cache; allowed is memory of its own for "
                "each layer of a group; start vLLM without KvFerryConnector for this model"
            )
    return [pages[name] for name in group.layer_names]


def are_alike(pages: Sequence[Page]) -> bool:
    """Whether the layers of a group have one specification, which the scheduler knows too."""
    return len({page.tensor for page in pages}) == 1


def group_bytes(kv_cache_config: "KVCacheConfig") -> list[int]:
    """Bytes that a block of each group has in a slot, all layers of a worker's own packed.

    The same on both sides, although the scheduler knows one layer's specification only: if layers differ, all of them
    count with their padding.
    """
    found = []
    for group in kv_cache_config.kv_cache_groups:
        pages = pages_of_group(group, kv_cache_config)
        if are_alike(pages):
            found.append(content_bytes(first_spec(group.kv_cache_spec)) * len(pages))
        else:
            found.append(sum(page.num_bytes for page in pages))
    return found


class SlabClasses(NamedTuple):
    """Which KV cache groups have blocks, and so slots, of one kind: layers of the same sizes at the same places.

    Attributes
    ----------
    of_groups
        The class of each group.
    slot_bytes
        Of each class, the largest first: bytes of a block on each rank, all layers packed.

    """

    of_groups: list[int]
    slot_bytes: list[list[int]]


def slab_classes_of_rank(kv_cache_config: "KVCacheConfig") -> SlabClasses:
    """Find the classes of a worker's own groups; the sizes are its own only."""
    # Blocks of one size whose layers differ, in place or in shape, have their bytes elsewhere in a page.
    of_each = []
    for num_bytes, group in zip(group_bytes(kv_cache_config), kv_cache_config.kv_cache_groups, strict=True):
        spec = first_spec(group.kv_cache_spec)
        places = sorted(page[:3] for page in pages_of_group(group, kv_cache_config))
        of_each.append((num_bytes, content_bytes(spec), has_state(spec), getattr(spec, "num_kv_heads", 0), places))
    # In the order of the groups where nothing else tells them apart.
    kinds = sorted({repr(kind): kind for kind in of_each}.values(), key=lambda kind: kind[:4], reverse=True)
    return SlabClasses([kinds.index(kind) for kind in of_each], [[kind[0]] for kind in kinds])


def slab_classes(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> SlabClasses:
    """Find the classes of all ranks.

    Parameters
    ----------
    vllm_config
        Gives ranks (pipeline stages outermost) and vLLM's own division of the layers among pipeline stages.
    kv_cache_config
        The scheduler's copy, whose groups list the layers of rank 0.

    Raises
    ------
    ConfigError
        Pipeline parallel, and the layers of rank 0 are not what the division gives it: those of the other ranks
        cannot be told.

    """
    parallel = vllm_config.parallel_config
    num_stages = parallel.pipeline_parallel_size
    of_rank = slab_classes_of_rank(kv_cache_config)
    if num_stages == 1:
        return SlabClasses(of_rank.of_groups, [sizes * parallel.world_size for sizes in of_rank.slot_bytes])
    group = max(kv_cache_config.kv_cache_groups, key=lambda group: len(group.layer_names))
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
    per_layer = content_bytes(first_spec(group.kv_cache_spec))
    ranks_per_stage = parallel.world_size // num_stages
    return SlabClasses([0], [[per_layer * layers for layers in layers_of_stage for _ in range(ranks_per_stage)]])
