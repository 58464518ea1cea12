# SPDX-License-Identifier: Apache-2.0
"""The toy model: KV cells and tokens that depend on the whole prefix, on CPU tensors of vLLM's making."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from toy_config import VOCABULARY, ToySpec
from toy_layers import BAD_CELL, NULL_BLOCK, Share, ToyLayers, toy_layers
from toy_states import FACTOR, INITIAL, MODULUS, RunningState, ToyStates, WrongKvError
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig

Array = npt.NDArray[Any]


@dataclass
class ToyRequest:
    """What a rank knows of a request: one block table per KV cache group, its tokens, the model's hash after each."""

    tables: list[list[int]]
    tokens: list[int]
    hidden: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    running: RunningState = field(default_factory=RunningState)
    num_prompt: int = 0
    # Where the engine has it compute a window of a hit again; what hits have is left alone there.
    replay_start: int = 0
    # Of the model: what it computes of any token depends on it.
    weights: int = 0

    def take_back(self, num_output: int) -> None:
        """Forget output tokens that the engine did not take: it computes again what they came from."""
        del self.tokens[self.num_prompt + num_output :]
        self.hidden = self.hidden[: len(self.tokens)]

    def compute_hidden(self, end: int) -> None:
        """Extend `hidden` to `end` tokens: each depends on all tokens before it."""
        states = []
        state = int(self.hidden[-1]) if len(self.hidden) else INITIAL
        tokens = self.tokens[len(self.hidden) : end]
        if tokens and not len(self.hidden):
            tokens[0] += self.weights
        for token in tokens:
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
    told
        By request the tokens that the last pipeline stage has sampled in this step, on the others.
    drafts
        Proposes tokens: of a request, from a position on, so many.
    num_accepted, num_rejected
        Drafts, since the start.
    weights
        A number for the weights; see `load_weights`.

    """

    def __init__(
        self, kv_caches: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, rank: int, spec: ToySpec, share: Share
    ) -> None:
        self.check_kv = True
        self.bad_blocks: set[int] = set()
        self.misled: set[str] = set()
        self.told: dict[str, Iterator[int]] | None = None
        self.drafts: Callable[[str, int, int], list[int]] = lambda request_id, position, num_drafts: [0] * num_drafts
        self.num_accepted = self.num_rejected = 0
        self.weights = 0
        self._sizes = [int(group.kv_cache_spec.block_size) for group in kv_cache_config.kv_cache_groups]
        numbers = {name: number for number, name in enumerate(spec.layer_specs()) if name in kv_caches}
        self._layers_in = partial(
            toy_layers,
            numbers=numbers,
            kv_cache_config=kv_cache_config,
            rank=rank,
            num_ranks=spec.num_tensor_ranks,
            share=share,
        )
        self._requests: dict[str, ToyRequest] = {}
        self._asked = ToyRequest([], [])
        self._has_all_states = spec.mamba_cache_mode == "all"
        self.take_kv_caches(kv_caches)

    def take_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Compute in these tensors from here on."""
        self._layers, states = self._layers_in(kv_caches)
        for layers in self._layers:
            self._sizes[layers.group] = layers.block_size
        # Of each group those that keep most states: every pipeline stage has some.
        self._sampled = {
            layers.group: layers
            for layers in sorted(self._layers, key=lambda of: of.spec.tokens_per_state, reverse=True)
        }
        state_size = next((self._sizes[layers.group] for layers in states), 1)
        self._states = ToyStates(states, state_size, has_all=self._has_all_states)
        self._replay_tokens = max((layers.replay_tokens for layers in self._layers), default=0)

    def load_weights(self, weights: int) -> None:
        """Compute all tokens by other weights from here on; what is in the KV cache stays what it was."""
        self.weights = weights
        for request in self._requests.values():
            request.weights, request.hidden = weights, request.hidden[:0]
        self._asked = ToyRequest([], [], weights=weights)

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
            tables = [list(blocks) for blocks in new.block_ids]
            request = ToyRequest(tables, _told_apart(new, list(tokens)), weights=self.weights)
            request.num_prompt = len(new.prompt_token_ids)
            request.replay_start = getattr(new, "replay_start", 0)  # vLLM 0.32 and newer
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
        self._copy_blocks(output)
        return computed

    def _copy_blocks(self, output: SchedulerOutput) -> None:
        """Copy whole blocks, as vLLM's model runner does for requests that go on in the middle of a shared one."""
        for copy in output.kv_cache_block_copies or ():
            for layers in self._layers:
                layers.cells[:, copy.dst_block_id] = layers.cells[:, copy.src_block_id]
            self._states.copy_block(copy.src_block_id, copy.dst_block_id)
            if copy.src_block_id in self.bad_blocks:
                self.bad_blocks.add(copy.dst_block_id)
            else:
                self.bad_blocks.discard(copy.dst_block_id)

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
        self._states.compute(
            request_id,
            request.running,
            request.tables,
            request.hidden,
            start,
            end,
            num_drafts,
            check=self.check_kv and not is_misled,
        )
        for layers in self._layers:
            self._compute_layers(request_id, layers, start, end, is_misled=is_misled)
        if self.bad_blocks:
            for left in self._states.written(request.running, request.tables):
                self._note_written(np.array(left), np.zeros(len(left)), is_misled)

    def _compute_layers(self, request_id: str, layers: ToyLayers, start: int, end: int, *, is_misled: bool) -> None:
        request = self._requests[request_id]
        first_read = layers.first_read(start)
        if layers.replay_tokens:
            # What is before was not computed again, and is not read.
            first_read = max(first_read, min(request.replay_start, start))
        elif layers.is_cached and 0 < request.replay_start <= start < request.replay_start + self._replay_tokens:
            # The engine does not write again what it took from its cache, or from the tier.
            start = min(end, request.replay_start + self._replay_tokens)
        if self.check_kv and not is_misled:
            self._check(request_id, layers, layers.own_states(*layers.states_between(first_read, start)))
        first, last = layers.states_before(start), layers.states_before(end)
        if layers.is_ring:
            first = max(first, last - layers.num_states)
        states = layers.own_states(first, last)
        blocks, offsets = self._places(request_id, layers, states)
        layers.cells[:, blocks, :, offsets] = BAD_CELL if is_misled else layers.cells_of(request.hidden, states)
        self._note_written(blocks, offsets, is_misled)

    def _check(self, request_id: str, layers: ToyLayers, states: Array) -> None:
        """Compare some of this rank's states with what they have to be."""
        if not len(states):
            return
        blocks, offsets = self._places(request_id, layers, states)
        cells = layers.cells_of(self._requests[request_id].hidden, states)
        if (is_wrong := layers.cells[:, blocks, :, offsets] != cells).any():
            state, layer, head, _ = np.argwhere(is_wrong)[0].tolist()
            raise WrongKvError(
                f"{request_id}: layer {layers.numbers[layer]}, head {head}: wrong KV at {is_wrong.sum()} of "
                f"{is_wrong.size} cells, first at state {states[state]} (block {blocks[state]})"
            )

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
        for layers in self._layers:
            if not self.bad_blocks.isdisjoint(layers.blocks_read(request.tables[layers.group], start)):
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
        request = ToyRequest(tables, list(tokens), weights=self.weights)
        request.compute_hidden(end)
        for layers in self._layers:
            states = layers.own_states(layers.states_before(start), layers.states_before(end))
            blocks, offsets = layers.places(tables[layers.group], states)
            kept = blocks != NULL_BLOCK
            cells = layers.cells_of(request.hidden, states)
            layers.cells[:, blocks[kept], :, offsets[kept]] = cells[kept] if is_right else BAD_CELL
            if is_right:
                self.bad_blocks.difference_update(blocks[kept].tolist())
            else:
                self.bad_blocks.update(blocks[kept].tolist())

    def has(self, group: int, block: int, tokens: list[int], index: int) -> bool:
        """Whether a block holds the KV of the `index`-th block of these tokens, in all layers of its group.

        For groups of recurrent state: the state behind it. If the tokens end in the block, what is after them is not
        looked at.
        """
        end = min((index + 1) * self._sizes[group], len(tokens))
        hidden = self._hidden_of(tokens)
        for layers in self._layers:
            if layers.group != group:
                continue
            states = layers.own_states_of_block(index)
            cells = layers.cells_of(hidden, states[states < layers.states_before(end)])
            if (layers.cells[:, block, :, : len(cells)] != cells.transpose(1, 2, 0, 3)).any():
                return False
        return self._states.has(group, block, end, int(hidden[end - 1]))

    def _hidden_of(self, tokens: list[int]) -> Array:
        """The running hash after each of these tokens, or of more: the next question is often of a longer text."""
        known = self._asked.tokens
        num_common = min(len(known), len(tokens))
        if known[:num_common] != tokens[:num_common]:
            self._asked = ToyRequest([], list(tokens), weights=self.weights)
        else:
            known.extend(tokens[num_common:])
        self._asked.compute_hidden(len(self._asked.tokens))
        return self._asked.hidden

    def memory_of(self, group: int) -> list[Array]:
        """The memory of a group's layers, of those together that are alike: ``(layers, blocks, ...)``."""
        found = [layers.cells for layers in self._layers if layers.group == group]
        return found + self._states.memory_of(group)

    def _sample(self, request_id: str, end: int) -> int:
        """Next token, from all cells that the last token attends to in one layer of each group.

        What other ranks have of them is taken as right: if theirs is not, they sample another token.
        """
        if self.told is not None:
            return next(self.told[request_id])
        request = self._requests[request_id]
        total = self._states.sum_of(request.running, end)
        for layers in self._sampled.values():
            first, last = layers.states_between(layers.first_read(end - 1), end)
            states, own = np.arange(first, last), layers.own_states(first, last)
            hashes = layers.hidden_of(request.hidden, states)
            hashes[own - first] = layers.hashes_at(*self._places(request_id, layers, own))
            total += int((hashes * (states + 1)).sum())
        return total % VOCABULARY

    def _places(self, request_id: str, layers: ToyLayers, states: Array) -> tuple[Array, Array]:
        """Blocks and offsets of some states of some layers."""
        blocks, offsets = layers.places(self._requests[request_id].tables[layers.group], states)
        if NULL_BLOCK in blocks:
            missing = states[int(np.argmax(blocks == NULL_BLOCK))]
            raise WrongKvError(f"{request_id}: {layers.name}: no block for state {missing}")
        return blocks, offsets


def _told_apart(new: NewRequestData, tokens: list[int]) -> list[int]:
    """Tokens that stand for all that a request's KV depends on: its adapter, and what lies behind placeholders."""
    if new.lora_request is not None:
        tokens[0] += zlib.crc32(new.lora_request.lora_path.encode())
    for feature in new.mm_features:
        start = feature.mm_position.offset
        for position in range(start, start + feature.mm_position.length):
            tokens[position] += zlib.crc32(feature.identifier.encode())
    return tokens
