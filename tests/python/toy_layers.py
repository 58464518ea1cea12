# SPDX-License-Identifier: Apache-2.0
"""The toy model's attention layers: which cells they keep for which tokens, where, and how far back a token sees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from kvferry.vllm import versions
from toy_states import StateLayers
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

NULL_BLOCK = 0
# What no right cell holds.
BAD_CELL = np.uint32(2**32 - 7)

Array = npt.NDArray[Any]


class Share(NamedTuple):
    """Which tokens of a block a rank has, if several ranks divide them (decode context parallelism).

    Attributes
    ----------
    num_ranks, place
        How many ranks divide a block, and which of them it is.
    interleaving
        Tokens in a row that one of them has.

    """

    num_ranks: int = 1
    place: int = 0
    interleaving: int = 1

    def own(self, states: Array) -> Array:
        """Those of some states that the rank has."""
        is_own = states // self.interleaving % self.num_ranks == self.place
        return states[is_own] if self.num_ranks > 1 else states

    def offset(self, in_block: Any) -> Any:
        """Where the rank has what is so many states behind the beginning of a block."""
        run = self.interleaving
        return in_block // (run * self.num_ranks) * run + in_block % run


@dataclass(frozen=True, eq=False)
class ToyLayers:
    """Layers of one KV cache group that are alike.

    For every `tokens_per_state` tokens a layer keeps one state, which depends on all tokens up to its last one; it is
    written when that one is computed. For most kinds that is each token.

    Attributes
    ----------
    numbers
        Of the layers, in the model.
    group
        Their KV cache group.
    spec
        vLLM's specification of each.
    cells
        Shape ``(layers, blocks, heads, states of a block, cells)``, uint32, in the engine's memory.
    salts
        What each cell adds to the running hash of its token, shape ``(layers, heads, cells)``.
    open_tokens
        Of a circular buffer: a token reads what is there since the last multiple of so many.
    share
        Which of a block's tokens are here.

    """

    numbers: Sequence[int]
    group: int
    spec: KVCacheSpec
    cells: Array
    salts: Array
    open_tokens: int
    share: Share

    @property
    def block_size(self) -> int:
        """Tokens of a block, of all ranks that divide it."""
        return int(self.spec.block_size) * self.share.num_ranks

    @property
    def num_states(self) -> int:
        """States of a block."""
        return int(self.cells.shape[3])

    @property
    def is_ring(self) -> bool:
        """Whether a request has one block, around which it writes."""
        return isinstance(self.spec, CircularBufferSpec)

    @property
    def replay_tokens(self) -> int:
        """Tokens at the end of a hit that the engine computes again to have them here (bounded replay)."""
        return int(getattr(self.spec, "prefix_replay_tokens", 0))  # vLLM 0.32 and newer

    @property
    def is_cached(self) -> bool:
        """Whether hits have what is here."""
        return bool(self.spec.prefix_cacheable)

    def first_read(self, position: int) -> int:
        """First position that a token at `position` attends to."""
        if isinstance(self.spec, SlidingWindowSpec):
            return max(0, position - int(self.spec.sliding_window) + 1)
        if isinstance(self.spec, ChunkedLocalAttentionSpec):
            return position - position % int(self.spec.attention_chunk_size)
        if self.is_ring:
            return position - position % self.open_tokens
        return 0

    def states_before(self, position: int) -> int:
        """How many states are whole before the token at `position`."""
        return int(position // self.spec.tokens_per_state)

    def states_between(self, first: int, position: int) -> tuple[int, int]:
        """First state of those that hold tokens of ``[first, position)`` only, and the one after the last."""
        return int(-(-first // self.spec.tokens_per_state)), self.states_before(position)

    def blocks_read(self, table: list[int], position: int) -> list[int]:
        """Blocks that hold what a token at `position` attends to."""
        first = self.first_read(position)
        if self.is_ring:
            return table if first < position else []
        return table[first // self.block_size : -(-position // self.block_size)]

    def own_states(self, first: int, end: int) -> Array:
        """Those of the states ``[first, end)`` that this rank has."""
        return self.share.own(np.arange(first, end))

    def own_states_of_block(self, index: int) -> Array:
        """Those that this rank has in the `index`-th block of a request, in the order in which they lie there."""
        num_states = self.num_states * self.share.num_ranks
        return self.own_states(index * num_states, (index + 1) * num_states)

    def places(self, table: list[int], states: Array) -> tuple[Array, Array]:
        """Blocks, and offsets in them, of some of this rank's states."""
        if self.is_ring:
            return np.full(len(states), table[0], dtype=np.int64), states % self.num_states
        num_states = self.num_states * self.share.num_ranks
        base = int(states[0]) // num_states if len(states) else 0
        end = int(states[-1]) // num_states + 1 if len(states) else 0
        blocks = np.array(table[base:end], dtype=np.int64)[states // num_states - base]
        return blocks, self.share.offset(states % num_states)

    def hidden_of(self, hidden: Array, states: Array) -> Array:
        """The running hashes of these states, of those after each token."""
        ratio = Fraction(self.spec.tokens_per_state)
        of_states: Array = hidden[-(-(states + 1) * ratio.numerator // ratio.denominator) - 1]
        return of_states

    def cells_of(self, hidden: Array, states: Array) -> Array:
        """What these states have to be, shape ``(states, layers, heads, cells)``; `hidden`: by token."""
        cells: Array = self.hidden_of(hidden, states).astype(np.uint32)[:, None, None, None] + self.salts
        return cells

    def hashes_at(self, blocks: Array, offsets: Array) -> Array:
        """The running hashes that the first cells of the first layer stand for: the same on every rank."""
        cells = self.cells[0, blocks, 0, offsets, 0]
        hashes: Array = np.where(cells == BAD_CELL, cells, cells - self.salts[0, 0, 0])
        return hashes.astype(np.int64)

    @property
    def name(self) -> str:
        """For messages."""
        kind = type(self.spec).__name__.removesuffix("Spec")
        return f"layers {self.numbers[0]} to {self.numbers[-1]} of group {self.group} ({kind})"


@dataclass(frozen=True)
class _Alike:
    """Layers of one group with one specification, evenly spaced in memory: numbers in the model, and their cells."""

    numbers: Sequence[int]
    group: int
    spec: KVCacheSpec
    cells: Array


def toy_layers(
    kv_caches: Mapping[str, torch.Tensor],
    numbers: Mapping[str, int],
    kv_cache_config: KVCacheConfig,
    rank: int,
    num_ranks: int,
    share: Share,
) -> tuple[list[ToyLayers], list[StateLayers]]:
    """Find the attention layers and the recurrent ones, those together that are alike, in the order of the model.

    Parameters
    ----------
    kv_caches, numbers
        Layer name to tensor and to number in the model.
    kv_cache_config
        Of the rank.
    rank, num_ranks
        Tensor-parallel, of the pipeline stage. Its cells differ from those of ranks that have another part of a
        layer's heads.
    share
        Which tokens it has in layers that are divided.

    """
    attention, states = list[ToyLayers](), list[StateLayers]()
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(group.kv_cache_spec)]
    ratios = {int(spec.tokens_per_state) for spec in specs}
    for found in sorted(_alike(kv_caches, numbers, kv_cache_config), key=lambda alike: alike.numbers[0]):
        spec, cells = found.spec, found.cells
        if isinstance(spec, MambaSpec):
            states.append(StateLayers.of(found.numbers, found.group, cells[:, :, 0, 0].view(np.int32), rank))
            continue
        salts = _salts(found.numbers, cells.shape[2], cells.shape[4], _shard(spec, rank, num_ranks))
        # What is still being compressed into a state is what a circular buffer is for.
        open_tokens = max((ratio for ratio in ratios if 0 < ratio < spec.block_size), default=1)
        of_layers = share if versions.is_divided(spec) else Share()
        assert of_layers.num_ranks == 1 or spec.tokens_per_state == 1, spec
        attention.append(ToyLayers(found.numbers, found.group, spec, cells, salts, open_tokens, of_layers))
    return attention, states


def _shard(spec: AttentionSpec, rank: int, num_ranks: int) -> int:
    """Which part of a layer's heads a rank has: consecutive ranks share one if there are fewer parts than ranks."""
    num_shards = getattr(spec, "max_tp_shards", None)  # vLLM 0.31 and newer
    if num_shards is None:
        # A latent vector has no values apart, and is of all heads.
        num_shards = 1 if spec.head_size_v == 0 else num_ranks
    return rank // max(1, num_ranks // num_shards)


def _alike(
    kv_caches: Mapping[str, torch.Tensor], numbers: Mapping[str, int], kv_cache_config: KVCacheConfig
) -> Iterator[_Alike]:
    for group_number, group in enumerate(kv_cache_config.kv_cache_groups):
        # vLLM may have given the group larger blocks than its layers asked for.
        of_each = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        by_spec: dict[KVCacheSpec, list[str]] = {}
        for name in group.layer_names:
            by_spec.setdefault(of_each.get(name, group.kv_cache_spec), []).append(name)
        for spec, names in by_spec.items():
            for alike in _evenly_spaced(names, kv_caches):
                cells = _cells_of_all([kv_caches[name] for name in alike])
                yield _Alike([numbers[name] for name in alike], group_number, spec, cells)


def _salts(numbers: Sequence[int], num_heads: int, num_cells: int, rank: int) -> Array:
    assert num_heads <= 128, num_heads
    assert num_cells <= 1024, num_cells
    layer, head, cell = np.meshgrid(numbers, np.arange(num_heads), np.arange(num_cells), indexing="ij")
    salts: Array = ((layer << 22) + (head << 15) + (cell << 5) + rank).astype(np.uint32)
    return salts


def _evenly_spaced(names: Sequence[str], kv_caches: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Cut a list of layers where the distance of their memory changes."""
    addresses = {name: kv_caches[name].data_ptr() for name in names}
    ordered = sorted(names, key=addresses.__getitem__)
    steps = [addresses[b] - addresses[a] for a, b in pairwise(ordered)]
    if len(set(steps)) <= 1:
        return [ordered]
    return [[name] for name in ordered]


def _cells_of_all(tensors: Sequence[torch.Tensor]) -> Array:
    """View the tensors of layers that lie evenly spaced as one array, as what the cells are, whatever their type is."""
    words = tensors[0].view(torch.int32)
    step = (tensors[1].data_ptr() - tensors[0].data_ptr()) // 4 if len(tensors) > 1 else 0
    whole = torch.as_strided(words, (len(tensors), *words.shape), (step, *words.stride()))
    cells: Array = whole.numpy().view(np.uint32)
    return cells
