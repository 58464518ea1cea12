# SPDX-License-Identifier: Apache-2.0
"""How many bytes a block has on a rank, according to the engine's configuration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import ParallelConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


def first_spec(spec: "KVCacheSpec") -> "KVCacheSpec":
    """Return the specification of a group that both sides know; for a uniform group that of its first layer.

    The scheduler's copy of a group has no other specification.
    """
    return spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def content_bytes(spec: "KVCacheSpec") -> int:
    """Bytes of a block in one layer, without the padding at the end of the layer's page."""
    if isinstance(spec, MambaSpec):
        return int(spec.state_content_size_bytes)
    return int(spec.unpadded_page_size_bytes)


def content_bytes_of_group(group: "KVCacheGroupSpec") -> int:
    """Bytes of a block in all layers of a worker's own group, from the layers' specifications."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return sum(content_bytes(layer) for layer in spec.kv_cache_specs.values())
    return content_bytes(spec) * len(group.layer_names)


def has_state(spec: "KVCacheSpec") -> bool:
    """Whether the layers keep recurrent state instead of keys and values."""
    return any(isinstance(layer, MambaSpec) for layer in iter_layer_specs(spec))


class Page(NamedTuple):
    """Where the blocks of one layer are in the pool's memory.

    Attributes
    ----------
    offset, block_stride
        Offset of block 0, and distance from one block to the next, in bytes.
    num_bytes
        Bytes of the layer's part of a block, with its padding.
    tensor
        Number of the layer's `KVCacheTensor`. Layers of a group with the same number have the same specification.

    """

    offset: int
    block_stride: int
    num_bytes: int
    tensor: int


def pages_of_group(group: "KVCacheGroupSpec", kv_cache_config: "KVCacheConfig") -> list[Page]:
    """Find the pages of a group's layers.

    If blocks are the outer dimension, the pages of two layers are one page apart. If layers are the outer dimension,
    they are one page for each block apart.

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
                f"KV cache layer {name!r} has no memory in the engine's KV cache; each layer of a group needs memory "
                "of its own; start vLLM without KvFerryConnector for this model"
            )
    return [pages[name] for name in group.layer_names]


def are_alike(pages: Sequence[Page]) -> bool:
    """Whether all layers of a group have the same specification, which the scheduler knows too."""
    return len({page.tensor for page in pages}) == 1


def group_bytes(kv_cache_config: "KVCacheConfig") -> list[int]:
    """Bytes of a slot for a block of each group, with all of the worker's layers packed.

    Both sides get the same result, although the scheduler knows the specification of only one layer: if layers differ,
    all of them count with their padding.
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
    """The slab classes: KV cache groups whose slots are interchangeable have the same class.

    Attributes
    ----------
    of_groups
        The class of each group.
    slot_bytes
        For each class: bytes of a block on this rank, with all layers packed.

    """

    of_groups: list[int]
    slot_bytes: list[int]


def slab_classes(kv_cache_config: "KVCacheConfig", num_stages: int) -> SlabClasses:
    """Find the classes of a rank's groups, the largest first.

    Groups whose layers have the same sizes at the same places share a class. With several pipeline stages no groups
    share one, because no rank knows whether two groups are alike on the other stages.

    Parameters
    ----------
    kv_cache_config
        The rank's configuration, or the scheduler's, whose groups list the layers of rank 0.
    num_stages
        Number of pipeline stages of the engine.

    """
    # Blocks of the same size have their bytes at other places of a page if their layers differ in place or in shape.
    of_each = []
    for number, num_bytes in enumerate(group_bytes(kv_cache_config)):
        group = kv_cache_config.kv_cache_groups[number]
        spec = first_spec(group.kv_cache_spec)
        places = sorted(page[:3] for page in pages_of_group(group, kv_cache_config))
        of_each.append(
            (
                num_bytes,
                content_bytes(spec),
                has_state(spec),
                getattr(spec, "num_kv_heads", 0),
                places,
                number if num_stages > 1 else 0,
            )
        )
    # Kinds that this does not order stay in the order of their groups.
    kinds = sorted({repr(kind): kind for kind in of_each}.values(), key=lambda kind: kind[:4], reverse=True)
    return SlabClasses([kinds.index(kind) for kind in of_each], [kind[0] for kind in kinds])


def bytes_by_rank(classes: SlabClasses, parallel: "ParallelConfig") -> list[list[int]]:
    """Bytes of a block by class and rank, for the core's SchedulerEngine; 0 for ranks of later stages."""
    ranks_per_stage = parallel.world_size // parallel.pipeline_parallel_size
    others = [0] * (parallel.world_size - ranks_per_stage)
    return [[size] * ranks_per_stage + others for size in classes.slot_bytes]
