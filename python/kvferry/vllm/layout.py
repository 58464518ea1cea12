# SPDX-License-Identifier: Apache-2.0
"""Finds the fragments of a block in the engine's KV cache tensors.

A *fragment* is a run of bytes that every block has once: block ``b`` has it at ``address + b * stride_bytes``. The
fragments of all layers, packed in this order, are the content of a slot on one rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from kvferry.errors import ConfigError


class Fragment(NamedTuple):
    """A run of bytes that every block has once.

    Attributes
    ----------
    address
        Address of block 0's run.
    stride_bytes
        Distance from one block's run to the run of the next block.
    num_bytes
        Length of the run.

    """

    address: int
    stride_bytes: int
    num_bytes: int


def fragments_of_groups(
    groups: Sequence[Sequence[str]], kv_caches: Mapping[str, Any], num_blocks: int
) -> list[list[Fragment]]:
    """Find the fragments of a block of each group.

    Parameters
    ----------
    groups
        The layers of each KV cache group, in the engine's order. Groups share the pool's pages: a block belongs to one
        group at a time.
    kv_caches
        The tensors that vLLM registers, by layer name. A layer outside the groups must share the tensor of a layer
        inside (cross-layer KV sharing).
    num_blocks
        Blocks of the engine's pool.

    Returns
    -------
    list[list[Fragment]]
        The fragments of each group, in the order of its layers. Groups with the same fragments have the same order.

    Raises
    ------
    ConfigError
        A layer is missing, unknown, at the same address as another layer of its group, or has an unsupported layout.

    """
    found = [_fragments_of_group(layer_names, kv_caches, num_blocks) for layer_names in groups]
    in_groups = {name for layer_names in groups for name in layer_names}
    addresses = {kv_caches[name].data_ptr() for name in in_groups}
    for name, tensor in kv_caches.items():
        if name not in in_groups and not (isinstance(tensor, torch.Tensor) and tensor.data_ptr() in addresses):
            raise ConfigError(
                f"KV cache layer {name!r} is in no KV cache group and shares no cache with a layer of a group; its "
                "content would be lost; start vLLM without KvFerryConnector for this model"
            )
    # Groups of one slab class share their geometry, so the order of their layers does not matter.
    orders: dict[frozenset[Fragment], list[Fragment]] = {}
    return [orders.setdefault(frozenset(fragments), fragments) for fragments in found]


def num_runs(fragments: Sequence[Fragment]) -> int:
    """Count the contiguous runs of a block, as the core merges its fragments. A copy of one block consists of them."""
    count, last = 0, None
    for fragment in fragments:
        continues = (
            last is not None
            and fragment.address == last.address + last.num_bytes
            and fragment.stride_bytes == last.stride_bytes
            and last.num_bytes + fragment.num_bytes <= last.stride_bytes
        )
        if last is not None and continues:
            last = Fragment(last.address, last.stride_bytes, last.num_bytes + fragment.num_bytes)
        else:
            count, last = count + 1, fragment
    return count


def order_of_group(
    layer_names: Sequence[str],
    kv_caches: Mapping[str, Any],
    num_blocks: int,
    packed: Sequence[Fragment],
) -> list[dict[str, object]]:
    """Describe the order in which a slot has the data of a group's layers.

    Parameters
    ----------
    layer_names
        The group's layers.
    kv_caches, num_blocks
        As for `fragments_of_groups`.
    packed
        The group's fragments, as returned by `fragments_of_groups`.

    Returns
    -------
    list[dict[str, object]]
        For each layer: its name, the result of `order_of_layer`, and for each of its fragments the place in the slot,
        counted in fragments.

    """
    place = {fragment.address: i for i, fragment in enumerate(packed)}
    layers = []
    for name in layer_names:
        tensor = _tensor_of(name, kv_caches)
        places = [place[fragment.address] for fragment in fragments_of_layer(name, tensor, num_blocks)]
        layers.append({"layer": name, "places": places, **order_of_layer(name, tensor, num_blocks)})
    return layers


def _fragments_of_group(layer_names: Sequence[str], kv_caches: Mapping[str, Any], num_blocks: int) -> list[Fragment]:
    layer_at: dict[int, str] = {}
    found: list[Fragment] = []
    for name in layer_names:
        tensor = _tensor_of(name, kv_caches)
        if (other := layer_at.setdefault(tensor.data_ptr(), name)) != name:
            raise ConfigError(
                f"KV cache layers {other!r} and {name!r} have the same address; each layer of a group needs memory of "
                "its own; start vLLM without KvFerryConnector for this model"
            )
        found += fragments_of_layer(name, tensor, num_blocks)
    return found


def _tensor_of(name: str, kv_caches: Mapping[str, Any]) -> torch.Tensor:
    tensor = kv_caches.get(name)
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(
            f"KV cache layer {name!r} was registered as {type(tensor).__name__}; allowed is one tensor per layer; "
            "start vLLM without KvFerryConnector for this model"
        )
    return tensor


def fragments_of_layer(name: str, tensor: torch.Tensor, num_blocks: int) -> Iterator[Fragment]:
    """Find the fragments of one layer.

    Parameters
    ----------
    name
        Name of the layer, for messages.
    tensor
        Shape ``(num_blocks, ...)``, ``(2, num_blocks, ...)`` (separate K and V), or ``(num_blocks * k, ...)`` (`k`
        kernel blocks next to each other in a block). Dimensions that are outside the block dimension in memory, such as
        heads in vLLM's ``LHBNC``, give one fragment for each index. The last dimension must be dense.
    num_blocks
        Blocks of the engine's pool.

    Raises
    ------
    ConfigError
        The tensor has another layout. The message names layer, shape and strides.

    """
    runs = _runs_of(name, tensor, num_blocks)
    for index in product(*(range(dim.size) for dim in runs.outer)):
        offset = sum(i * dim.stride_bytes for i, dim in zip(index, runs.outer, strict=True))
        yield Fragment(tensor.data_ptr() + offset, runs.block_stride_bytes, runs.num_bytes)


def order_of_layer(name: str, tensor: torch.Tensor, num_blocks: int) -> dict[str, object]:
    """Describe the order in which a slot has one layer's data of a block. Only equal orders have equal descriptions.

    The tensor's address and the number of blocks are left out, because they differ between engines that share.

    Parameters
    ----------
    name, tensor, num_blocks
        As for `fragments_of_layer`.

    Returns
    -------
    dict[str, object]
        In JSON's types: the elements' type; the shape of a block; the dimensions that give a fragment for each index,
        as (dimension, size), the outermost first; and those within a fragment, as (dimension, size, stride in bytes).

    Raises
    ------
    ConfigError
        As `fragments_of_layer`.

    """
    runs = _runs_of(name, tensor, num_blocks)
    return {
        "dtype": str(tensor.dtype),
        "shape": list(runs.shape),
        "fragments": [[dim.number, dim.size] for dim in runs.outer],
        "within": [[dim.number, dim.size, dim.stride_bytes] for dim in runs.inner],
        "bytes": runs.num_bytes,
    }


class _Dim(NamedTuple):
    """A dimension of a block: its number, its size, and the distance between two indices."""

    number: int
    size: int
    stride_bytes: int


class _Runs(NamedTuple):
    """The dense runs of bytes that a layer keeps for each block: one for each index of the dimensions `outer`."""

    block_stride_bytes: int
    num_bytes: int
    shape: tuple[int, ...]
    outer: list[_Dim]
    inner: list[_Dim]


def _runs_of(name: str, tensor: torch.Tensor, num_blocks: int) -> _Runs:
    by_block = _blocks_first(tensor, num_blocks)
    if by_block is None:
        raise _bad_layout(name, tensor, f"no dimension counts the {num_blocks} blocks")
    item = tensor.element_size()
    shape, strides = tuple(by_block.shape[1:]), by_block.stride()[1:]
    dims = [_Dim(i, shape[i], strides[i] * item) for i in range(len(shape)) if shape[i] > 1]
    dims.sort(key=lambda dim: dim.stride_bytes, reverse=True)
    block_stride, inner, run = by_block.stride(0) * item, list[_Dim](), item
    while dims and dims[-1].stride_bytes == run:
        inner.append(dims.pop())
        run *= inner[-1].size
    if by_block.shape[-1] > 1 and not 0 < by_block.stride(-1) * item < run:
        raise _bad_layout(name, tensor, "the last dimension is not dense")
    if not _are_disjoint([(num_blocks, block_stride), *((dim.size, dim.stride_bytes) for dim in dims)], run):
        raise _bad_layout(name, tensor, "blocks overlap")
    return _Runs(block_stride, run, shape, dims, inner)


def _blocks_first(tensor: torch.Tensor, num_blocks: int) -> torch.Tensor | None:
    """View `tensor` with one index of dimension 0 for each block; None if it has no dimension of blocks."""
    if tensor.dim() < 2:
        return None
    if tensor.shape[0] == num_blocks:
        return tensor
    if tensor.shape[0] == 2 and tensor.shape[1] == num_blocks and tensor.dim() > 2:
        return tensor.movedim(1, 0)
    if tensor.shape[0] > 0 and tensor.shape[0] % num_blocks == 0:
        return tensor.unflatten(0, (num_blocks, -1))
    return None


def _are_disjoint(dims: list[tuple[int, int]], num_bytes: int) -> bool:
    """Whether runs of `num_bytes` at every index of `dims`, (size, stride in bytes), share no byte."""
    extent = num_bytes
    for size, stride in sorted(dims, key=lambda dim: dim[1]):
        if size > 1 and stride < extent:
            return False
        extent += (size - 1) * stride
    return True


def _bad_layout(name: str, tensor: torch.Tensor, reason: str) -> ConfigError:
    return ConfigError(
        f"KV cache layer {name!r} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: {reason}; allowed is "
        "(blocks, ...) or (2, blocks, ...) with a dense last dimension; start vLLM without KvFerryConnector for this "
        "model"
    )
