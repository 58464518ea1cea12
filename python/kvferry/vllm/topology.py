# SPDX-License-Identifier: Apache-2.0
"""How many bytes a block has on a rank, as the engine's configuration tells it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import ParallelConfig
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
    """Which KV cache groups have slots of one kind.

    Attributes
    ----------
    of_groups
        The class of each group.
    slot_bytes
        By class: bytes of a block on this rank, all layers packed.

    """

    of_groups: list[int]
    slot_bytes: list[int]


def slab_classes(kv_cache_config: "KVCacheConfig", num_stages: int) -> SlabClasses:
    """Find the classes of a rank's groups, the largest first.

    Groups whose layers have the same sizes at the same places share one, unless there are several pipeline stages: no
    rank can tell whether two groups are alike on the others.

    Parameters
    ----------
    kv_cache_config
        Of the rank, or the scheduler's, whose groups list the layers of rank 0.
    num_stages
        Of the engine's pipeline.

    """
    # Blocks of one size whose layers differ, in place or in shape, have their bytes elsewhere in a page.
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
    # In the order of the groups where nothing else tells them apart.
    kinds = sorted({repr(kind): kind for kind in of_each}.values(), key=lambda kind: kind[:4], reverse=True)
    return SlabClasses([kinds.index(kind) for kind in of_each], [kind[0] for kind in kinds])


def bytes_by_rank(classes: SlabClasses, parallel: "ParallelConfig") -> list[list[int]]:
    """Bytes of a block by class and rank, as the core's SchedulerEngine takes them: 0 for those of later stages."""
    ranks_per_stage = parallel.world_size // parallel.pipeline_parallel_size
    others = [0] * (parallel.world_size - ranks_per_stage)
    return [[size] * ranks_per_stage + others for size in classes.slot_bytes]
