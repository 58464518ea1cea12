# SPDX-License-Identifier: Apache-2.0
"""The toy model: KV cells and tokens that depend on the whole prefix, on CPU tensors of vLLM's making."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from toy_config import NUM_KV_HEADS, VOCABULARY, ToySpec
from toy_states import FACTOR, INITIAL, MODULUS, RunningState, ToyStates, WrongKvError
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

_HEAD_SALTS = np.arange(2 * NUM_KV_HEADS) * 7
_NULL_BLOCK = 0
# What no right cell holds.
BAD_CELL = -7

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ToyLayer:
    """A layer: its number in the model, its KV cache group, and vLLM's specification of its cache."""

    index: int
    group: int
    spec: KVCacheSpec

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.spec.block_size)

    def first_read(self, position: int) -> int:
        """First position that a token at `position` attends to."""
        if isinstance(self.spec, SlidingWindowSpec):
            return max(0, position - int(self.spec.sliding_window) + 1)
        if isinstance(self.spec, ChunkedLocalAttentionSpec):
            return position - position % int(self.spec.attention_chunk_size)
        return 0

    def salt(self, rank: int) -> int:
        """What tells a rank's cells from another one's: nothing where every rank holds all heads' latent vector."""
        return 0 if isinstance(self.spec, MLAAttentionSpec) else 5 * rank


@dataclass
class ToyRequest:
    """What a rank knows of a request: one block table per KV cache group, its tokens, the model's hash after each."""

    tables: list[list[int]]
    tokens: list[int]
    hidden: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    running: RunningState = field(default_factory=RunningState)
    num_prompt: int = 0

    def take_back(self, num_output: int) -> None:
        """Forget output tokens that the engine did not take: it computes again what they came from."""
        del self.tokens[self.num_prompt + num_output :]
        self.hidden = self.hidden[: len(self.tokens)]

    def compute_hidden(self, end: int) -> None:
        """Extend `hidden` to `end` tokens: each depends on all tokens before it."""
        states = []
        state = int(self.hidden[-1]) if len(self.hidden) else INITIAL
        for token in self.tokens[len(self.hidden) : end]:
            state = (state * FACTOR + token + 1) % MODULUS
            states.append(state)
        if states:
            self.hidden = np.concatenate((self.hidden, np.array(states, dtype=np.int64)))


class ToyModel:
    """One rank's shard of the model, and the requests that it runs.

    Attributes
    ----------
    check_kv
        Compare every cell that a step reads with what it has to be; otherwise wrong KV gives wrong tokens only.
    bad_blocks
        Blocks that hold wrong KV by nobody's fault that is tested: another connector's load failed, or vLLM set a hash
        too early (`toy_hashes`). A request that reads one computes wrong KV from there on, and writes it.
    misled
        Requests that did so; an id that is used again is taken out.
    drafts
        Proposes tokens: of a request, from a position on, so many.
    num_accepted, num_rejected
        Drafts, since the start.

    """

    def __init__(
        self, kv_caches: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, spec: ToySpec, rank: int
    ) -> None:
        self.check_kv = True
        self.bad_blocks: set[int] = set()
        self.misled: set[str] = set()
        self.drafts: Callable[[str, int, int], list[int]] = lambda request_id, position, num_drafts: [0] * num_drafts
        self.num_accepted = self.num_rejected = 0
        layers = _layers(kv_cache_config, spec)
        self._sizes = [int(group.kv_cache_spec.block_size) for group in kv_cache_config.kv_cache_groups]
        # As what the cells are, whatever the cache's own type is.
        self._bits: dict[str, Array] = {name: kv_caches[name].view(torch.int32).numpy() for name in layers}
        states = {name: layer for name, layer in layers.items() if isinstance(layer.spec, MambaSpec)}
        self._layers = {name: layer for name, layer in layers.items() if name not in states}
        self._states = ToyStates(
            {name: (layer.index, layer.group) for name, layer in states.items()},
            {name: self._bits[name][:, 0, 0] for name in states},
            next((layer.block_size for layer in states.values()), spec.block_size),
            rank,
        )
        self._rank = rank
        self._requests: dict[str, ToyRequest] = {}

    def update(self, output: SchedulerOutput) -> dict[str, int]:
        """Take the step's requests and block tables over; return how many tokens of each are computed."""
        for request in self._requests.values():
            self._states.settle(request.running, request.tables)
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
        computed = {}
        for new in output.scheduled_new_reqs:
            # Model runner v2 gets a resumed request as a new one, with the tokens that it has generated.
            tokens = new.prompt_token_ids if new.prefill_token_ids is None else new.prefill_token_ids
            request = ToyRequest([list(blocks) for blocks in new.block_ids], _told_apart(new, list(tokens)))
            request.num_prompt = len(new.prompt_token_ids)
            self._requests[new.req_id] = request
            self.misled.discard(new.req_id)
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            request, blocks = self._requests[request_id], cached.new_block_ids[i]
            if request_id in cached.resumed_req_ids:
                request.tables = [list(group) for group in blocks]
                request.running = RunningState()
                self.misled.discard(request_id)
                if all_tokens := cached.all_token_ids.get(request_id):
                    request.take_back(0)
                    request.tokens.extend(all_tokens[request.num_prompt :])
            elif blocks is not None:
                for table, group in zip(request.tables, blocks, strict=True):
                    table.extend(group)
            computed[request_id] = cached.num_computed_tokens[i]
            request.take_back(cached.num_output_tokens[i])
        return computed

    def forward(self, output: SchedulerOutput, computed: dict[str, int]) -> list[list[int]]:
        """Compute the step; return each request's new tokens, in the order of ``num_scheduled_tokens``."""
        sampled: list[list[int]] = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            start = computed[request_id]
            tokens = self._requests[request_id].tokens
            if drafts := output.scheduled_spec_decode_tokens.get(request_id):
                sampled.append(self._verify(request_id, num_tokens - len(drafts), len(drafts)))
                continue
            end = start + num_tokens
            self._compute(request_id, start, end)
            sampled.append([self._sample(request_id, end)] if end >= len(tokens) else [])
            tokens.extend(sampled[-1])
        return sampled

    def _verify(self, request_id: str, num_known: int, num_drafts: int) -> list[int]:
        """Compute a decode's last tokens and its drafts; return what comes behind them as far as the drafts hold.

        The KV of drafts that do not stays where it is.
        """
        request = self._requests[request_id]
        known = len(request.tokens)  # with asynchronous scheduling the engine counts drafts in flight as computed
        start = known - num_known
        request.tokens.extend(self.drafts(request_id, known, num_drafts))
        self._compute(request_id, start, known + num_drafts, num_drafts)
        accepted: list[int] = []
        for position in range(known, known + num_drafts + 1):
            accepted.append(self._sample(request_id, position))
            if position == known + num_drafts or request.tokens[position] != accepted[-1]:
                break
        self.num_rejected += num_drafts + 1 - len(accepted)
        self.num_accepted += len(accepted) - 1
        request.running.num_accepted = len(accepted)
        del request.tokens[known:]
        request.hidden = request.hidden[:known]
        request.tokens.extend(accepted)
        return accepted

    def _compute(self, request_id: str, start: int, end: int, num_drafts: int = 0) -> None:
        """Check the KV that tokens from `start` on attend to, and write that of ``[start, end)``."""
        request = self._requests[request_id]
        request.compute_hidden(end)
        is_misled = self._is_misled(request_id, start)
        if is_misled:
            self.misled.add(request_id)
        hidden = request.hidden if self.check_kv and not is_misled else None
        self._states.compute(
            request_id, request.running, request.tables, request.tokens, start, end, num_drafts, hidden
        )
        places: dict[int, tuple[Array, Array]] = {}
        for name, layer in self._layers.items():
            first = layer.first_read(start) if self.check_kv else start
            num_read = start - first
            if layer.group not in places:
                places[layer.group] = self._cells(request_id, layer, first, end)
            blocks, offsets = places[layer.group]
            cells = self._cells_of(name, layer, request.hidden[first:end])
            bits = self._bits[name]
            if num_read and not is_misled:
                is_wrong = (bits[blocks[:num_read], :, offsets[:num_read]] != cells[:num_read]).any(axis=2)
                if is_wrong.any():
                    position, head = np.argwhere(is_wrong)[0].tolist()
                    raise WrongKvError(
                        f"{request_id}: layer {layer.index}, head {head}: wrong KV at {is_wrong.sum()} of "
                        f"{is_wrong.size} cells, first at position {first + position} (block {blocks[position]})"
                    )
            bits[blocks[num_read:], :, offsets[num_read:]] = BAD_CELL if is_misled else cells[num_read:]
        for blocks, offsets in places.values():
            num_read = len(blocks) - (end - start)
            self._note_written(blocks[num_read:], offsets[num_read:], is_misled)
        if self.bad_blocks:
            for left in self._states.written(request.running, request.tables):
                self._note_written(np.array(left), np.zeros(len(left)), is_misled)

    def _cells_of(self, name: str, layer: ToyLayer, hidden: Array) -> Array:
        """What a layer's cells have to be behind tokens of that running hash."""
        salts = _HEAD_SALTS[: self._bits[name].shape[1]] + (31 * layer.index + layer.salt(self._rank))
        cells: Array = ((hidden[:, None] + salts) % MODULUS).astype(np.int32)[:, :, None]
        return cells

    def _is_misled(self, request_id: str, start: int) -> bool:
        """Whether tokens from `start` on attend to a block that is known to be bad, or go on from a state that is."""
        if not self.bad_blocks or not self.check_kv:
            return False
        request = self._requests[request_id]
        if self._states.groups:
            groups = self._states.groups if start > 0 else ()
            found = [request.tables[group][(start - 1) // self._sizes[group]] for group in groups]
            if request.running.column is not None:
                return request_id in self.misled  # its state goes on
            if not self.bad_blocks.isdisjoint(found):
                return True
        for layer in self._layers.values():
            size = layer.block_size
            read = request.tables[layer.group][layer.first_read(start) // size : -(-start // size)]
            if not self.bad_blocks.isdisjoint(read):
                return True
        return False

    def _note_written(self, blocks: Array, offsets: Array, is_misled: bool) -> None:
        if is_misled:
            self.bad_blocks.update(blocks.tolist())
        elif self.bad_blocks:
            self.bad_blocks.difference_update(blocks[offsets == 0].tolist())

    def put(self, tables: list[list[int]], tokens: list[int], start: int, end: int, is_right: bool = True) -> None:
        """Write the KV of the tokens ``[start, end)``, as another connector's load does; or that of a failed one.

        Recurrent state is not written.
        """
        request = ToyRequest(tables, list(tokens))
        request.compute_hidden(end)
        positions = np.arange(start, end)
        for name, layer in self._layers.items():
            size = layer.block_size
            table = np.array(tables[layer.group], dtype=np.int64)
            blocks, offsets = table[positions // size], positions % size
            kept = blocks != _NULL_BLOCK
            cells = self._cells_of(name, layer, request.hidden[start:end])
            self._bits[name][blocks[kept], :, offsets[kept]] = cells[kept] if is_right else BAD_CELL
            if is_right:
                self.bad_blocks.difference_update(blocks[kept].tolist())
            else:
                self.bad_blocks.update(blocks[kept].tolist())

    def has(self, group: int, block: int, tokens: list[int], index: int) -> bool:
        """Whether a block holds the KV of the `index`-th block of these tokens, in all layers of its group.

        For groups of recurrent state: the state behind it.
        """
        request = ToyRequest([], list(tokens))
        size = self._sizes[group]
        end = (index + 1) * size
        request.compute_hidden(end)
        for name, layer in self._layers.items():
            if layer.group != group:
                continue
            cells = self._cells_of(name, layer, request.hidden[index * size : end])
            if (self._bits[name][block, :, :size] != cells.transpose(1, 0, 2)).any():
                return False
        return self._states.has(group, block, end, int(request.hidden[end - 1]))

    def _sample(self, request_id: str, end: int) -> int:
        """Next token, from all cells that the last token attends to in the first layer of each group."""
        total, groups = self._states.sum_of(self._requests[request_id].running, end), set()
        for name, layer in self._layers.items():
            if layer.group in groups:
                continue
            groups.add(layer.group)
            first = layer.first_read(end - 1)
            blocks, offsets = self._cells(request_id, layer, first, end)
            cells = self._bits[name][blocks, 0, offsets, 0].astype(np.int64)
            cells[cells == BAD_CELL] += layer.salt(self._rank)
            # Every rank finds the same token, though it holds other cells.
            total += int(((cells - layer.salt(self._rank)) * np.arange(first + 1, end + 1)).sum())
        return total % VOCABULARY

    def _cells(self, request_id: str, layer: ToyLayer, first: int, end: int) -> tuple[Array, Array]:
        """Blocks and offsets of the positions ``[first, end)`` in a layer."""
        size = layer.block_size
        table = self._requests[request_id].tables[layer.group]
        base = first // size
        blocks = np.array(table[base : -(-end // size)], dtype=np.int64)
        if _NULL_BLOCK in blocks:
            missing = int(np.argmax(blocks == _NULL_BLOCK))
            raise WrongKvError(f"{request_id}: layer {layer.index}: no block at position {(base + missing) * size}")
        positions = np.arange(first, end)
        return blocks[positions // size - base], positions % size


def _told_apart(new: NewRequestData, tokens: list[int]) -> list[int]:
    """Tokens that stand for all that a request's KV depends on: its adapter, and what lies behind placeholders."""
    if new.lora_request is not None:
        tokens[0] += zlib.crc32(new.lora_request.lora_path.encode())
    for feature in new.mm_features:
        start = feature.mm_position.offset
        for position in range(start, start + feature.mm_position.length):
            tokens[position] += zlib.crc32(feature.identifier.encode())
    return tokens


def _layers(kv_cache_config: KVCacheConfig, spec: ToySpec) -> dict[str, ToyLayer]:
    index_of = {name: index for index, name in enumerate(spec.layer_specs())}
    layers = {}
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        # vLLM may have given the group larger blocks.
        of_each = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        for name in group.layer_names:
            layers[name] = ToyLayer(index_of[name], number, of_each.get(name, group.kv_cache_spec))
    return {name: layers[name] for name in index_of}
