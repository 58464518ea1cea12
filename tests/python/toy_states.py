# SPDX-License-Identifier: Apache-2.0
"""The toy model's recurrent state, kept where vLLM keeps it: its model runner (mamba_utils.py, "align") or its kernels.

A request's running state is in the block of the table's column that its last token is in. Before a step that ends in
another column it is copied there, so that the block it leaves keeps the state of its end. With drafts the states
behind each of a step's last tokens are in as many columns, and where the next step starts is known when they have been
accepted or not: behind the step. If a block ended in between, its state is copied to its block then.

With "all" (vLLM 0.30 and 0.31) a step leaves the state of each boundary that it passes in the block that ends there,
and its last one in the column of its last token, where the next step finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MODULUS = 2**31 - 1
FACTOR = 1_000_003
# What the first token finds; every cell of a state has a salt of its own beside it.
INITIAL = 1


class WrongKvError(AssertionError):
    """A step read KV, or a state, that is not what its tokens give."""


@dataclass
class RunningState:
    """Where a rank has the state of one request.

    Attributes
    ----------
    column
        Of the block table, as of the last step (the first that it wrote); None: the request is new, or resumed.
    num_accepted
        Tokens of the last step that hold: its state is so many columns behind `column`, less one.
    num_running
        Tokens behind which the state of `column` is, if the drafts of the last step have yet to be settled.
    hashes
        The plain running hash that the state stands for, by group and number of tokens, of the last step.

    """

    column: int | None = None
    num_accepted: int = 1
    num_running: int | None = None
    hashes: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StateLayers:
    """Recurrent layers of one KV cache group that are alike.

    Attributes
    ----------
    name
        For messages.
    group
        Their KV cache group.
    bits
        Their states, shape ``(layers, blocks, cells)``, int32, in the engine's memory.
    salts
        What the cells differ by, shape ``(layers, cells)``.

    """

    name: str
    group: int
    bits: Array
    salts: Array

    @classmethod
    def of(cls, numbers: Sequence[int], group: int, bits: Array, rank: int) -> "StateLayers":
        """Make them of layers with those numbers in the model: every cell but the first is another one on each rank."""
        salts = 1009 * np.array(numbers)[:, None] + np.arange(bits.shape[2]) * (7 + 5 * rank)
        return cls(f"recurrent layers {numbers[0]} to {numbers[-1]} of group {group}", group, bits, salts)

    def expected(self, num_tokens: int, hidden: int) -> Array:
        """The states after so many tokens, whose plain running hash `hidden` is."""
        states: Array = (hidden + self.salts * pow(FACTOR, num_tokens, MODULUS)) % MODULUS
        return states

    def hash_of(self, num_tokens: int, first_cell: int) -> int:
        """The plain running hash that the first layer's first cell stands for: the same in every pipeline stage."""
        return int((first_cell - self.salts[0, 0] * pow(FACTOR, num_tokens, MODULUS)) % MODULUS)


def state_after(state: Array, before: int, hidden: int, num_tokens: int) -> Array:
    """A state that many tokens later, where the plain hash is `hidden`; it was `before`.

    What the tokens in between add to a state is the same for all cells.
    """
    factor = pow(FACTOR, num_tokens, MODULUS)
    return (state * factor + (hidden - before * factor) % MODULUS) % MODULUS


class ToyStates:
    """The recurrent layers of one rank.

    Parameters
    ----------
    layers
        All of them.
    block_size
        Tokens.
    has_all
        Whether every block keeps the state of its end.

    """

    def __init__(self, layers: Sequence[StateLayers], block_size: int, *, has_all: bool) -> None:
        self._layers = layers
        self._block_size = block_size
        self._has_all = has_all

    def compute(
        self,
        request_id: str,
        running: RunningState,
        tables: list[list[int]],
        hidden: Array,
        start: int,
        end: int,
        num_drafts: int,
        *,
        check: bool,
    ) -> None:
        """Compute the states of the tokens ``[start, end)``, of which the last `num_drafts` may be taken back.

        Parameters
        ----------
        hidden
            The plain running hash after each token.
        check
            Whether to compare what is read with it.

        """
        running.hashes.clear()
        if self._has_all:
            self._compute_all(request_id, running, tables, hidden, start, end, check=check)
            return
        column = -(-end // self._block_size) - 1
        previous = (start - 1) // self._block_size if running.column is None else running.column
        offset = running.num_accepted - 1
        for layers in self._layers:
            table, bits = tables[layers.group], layers.bits
            at = column + offset
            if previous not in (-1, column):
                bits[:, table[column]] = bits[:, table[previous + offset]]
                at = column
            state, before = self._read(request_id, layers, table[at], hidden, start, check=check)
            for ahead in range(num_drafts + 1):
                position = end - num_drafts + ahead
                after = state_after(state, before, int(hidden[position - 1]), position - start)
                bits[:, table[column + ahead]] = after
                running.hashes.setdefault((layers.group, position), layers.hash_of(position, int(after[0, 0])))
        running.column = column
        running.num_accepted = 1
        running.num_running = end - num_drafts if num_drafts else None

    def _compute_all(
        self,
        request_id: str,
        running: RunningState,
        tables: list[list[int]],
        hidden: Array,
        start: int,
        end: int,
        *,
        check: bool,
    ) -> None:
        """Do the same if every block keeps the state of its end; nothing is taken back."""
        running.column = start // self._block_size
        boundaries = range((running.column + 1) * self._block_size, end, self._block_size)
        for layers in self._layers:
            table, bits = tables[layers.group], layers.bits
            block = table[max(start - 1, 0) // self._block_size]
            state, before = self._read(request_id, layers, block, hidden, start, check=check)
            for position in (*boundaries, end):
                after = state_after(state, before, int(hidden[position - 1]), position - start)
                bits[:, table[(position - 1) // self._block_size]] = after
            running.hashes[layers.group, end] = layers.hash_of(end, int(after[0, 0]))

    def _read(
        self, request_id: str, layers: StateLayers, block: int, hidden: Array, start: int, *, check: bool
    ) -> tuple[Array, int]:
        """The state from which token `start` goes on, in `block` unless it is the first, and the plain hash there."""
        if start == 0:
            return INITIAL + layers.salts, INITIAL
        state, before = layers.bits[:, block].astype(np.int64), int(hidden[start - 1])
        if check:
            self._check(request_id, layers, start, state, before, block)
        return state, before

    @property
    def groups(self) -> set[int]:
        """KV cache groups of recurrent state."""
        return {layers.group for layers in self._layers}

    def memory_of(self, group: int) -> list[Array]:
        """The states of a group's layers, those that are alike together."""
        return [layers.bits for layers in self._layers if layers.group == group]

    def written(self, running: RunningState, tables: list[list[int]]) -> list[list[int]]:
        """Blocks that the last step may have left a state in, by group."""
        return [tables[group][running.column or 0 :] for group in self.groups]

    def settle(self, running: RunningState, tables: list[list[int]]) -> None:
        """Put the state of the block that a step with drafts ended in its place, after that step."""
        if running.num_running is None or running.column is None:
            return
        num_ended = (running.num_running + running.num_accepted - 1) // self._block_size * self._block_size
        if num_ended >= running.num_running:
            column = num_ended // self._block_size - 1
            for layers in self._layers:
                table = tables[layers.group]
                source = table[running.column + num_ended - running.num_running]
                layers.bits[:, table[column]] = layers.bits[:, source]
            if column == running.column:
                running.num_accepted = 1
        running.num_running = None

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the states of a block."""
        for layers in self._layers:
            layers.bits[:, destination] = layers.bits[:, source]

    def sum_of(self, running: RunningState, num_tokens: int) -> int:
        """What the next token is drawn from: the state after `num_tokens` in the first layer of each group."""
        return sum(running.hashes[group, num_tokens] for group in self.groups)

    def has(self, group: int, block: int, num_tokens: int, hidden: int) -> bool:
        """Whether a block holds the states after `num_tokens` tokens in all layers of that group, if it has any."""
        return all(
            bool((layers.bits[:, block].astype(np.int64) == layers.expected(num_tokens, hidden)).all())
            for layers in self._layers
            if layers.group == group
        )

    def _check(
        self, request_id: str, layers: StateLayers, num_tokens: int, state: Array, hidden: int, block: int
    ) -> None:
        if (state != layers.expected(num_tokens, hidden)).any():
            raise WrongKvError(f"{request_id}: {layers.name}: wrong state behind {num_tokens} tokens (block {block})")
