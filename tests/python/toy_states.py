# SPDX-License-Identifier: Apache-2.0
"""The toy model's recurrent state, kept where vLLM's model runner keeps it (mamba_utils.py, "align").

A request's running state is in the block of the table's column that its last token is in. Before a step that ends in
another column it is copied there, so that the block it leaves keeps the state of its end. With drafts the states
behind each of a step's last tokens are in as many columns, and where the next step starts is known when they have been
accepted or not: behind the step. If a block ended in between, its state is copied to its block then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MODULUS = 2**31 - 1
FACTOR = 1_000_003
NUM_CELLS = 16
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
        Of the block table, as of the last step; None: the request is new, or resumed.
    num_accepted
        Tokens of the last step that hold: its state is so many columns behind `column`, less one.
    num_running
        Tokens behind which the state of `column` is, if the drafts of the last step have yet to be settled.
    cells
        First cell of the state by layer and number of tokens, of the last step.

    """

    column: int | None = None
    num_accepted: int = 1
    num_running: int | None = None
    cells: dict[tuple[str, int], int] = field(default_factory=dict)


class ToyStates:
    """The recurrent layers of one rank.

    Parameters
    ----------
    layers
        Layer name to its number in the model and its KV cache group.
    bits
        Layer name to its states, shape ``(blocks, NUM_CELLS)``, int32.
    block_size
        Tokens.
    rank
        Every cell but the first is another one on another rank.

    """

    def __init__(
        self, layers: Mapping[str, tuple[int, int]], bits: Mapping[str, Array], block_size: int, rank: int
    ) -> None:
        self._groups = {name: group for name, (_, group) in layers.items()}
        self._bits = bits
        self._block_size = block_size
        numbers = np.arange(NUM_CELLS)
        self._salts = {name: 31 * index + numbers * (7 + 5 * rank) for name, (index, _) in layers.items()}

    def compute(
        self,
        request_id: str,
        running: RunningState,
        tables: list[list[int]],
        tokens: list[int],
        start: int,
        end: int,
        num_drafts: int,
        hidden: Array | None,
    ) -> None:
        """Compute the states of ``tokens[start:end]``, of which the last `num_drafts` may be taken back.

        `hidden`: the plain running hash behind each token, to check what is read with; None: do not.
        """
        column = -(-end // self._block_size) - 1
        previous = (start - 1) // self._block_size if running.column is None else running.column
        offset = running.num_accepted - 1
        running.cells.clear()
        for name, group in self._groups.items():
            table, bits = tables[group], self._bits[name]
            at = column + offset
            if previous not in (-1, column):
                bits[table[column]] = bits[table[previous + offset]]
                at = column
            state = INITIAL + self._salts[name]
            if start > 0:
                state = bits[table[at]].astype(np.int64)
                if hidden is not None:
                    self._check(request_id, name, start, state, int(hidden[start - 1]), table[at])
            for position in range(start, end):
                state = (state * FACTOR + tokens[position] + 1) % MODULUS
                if (ahead := position + 1 - (end - num_drafts)) >= 0:
                    bits[table[column + ahead]] = state
                    running.cells[name, position + 1] = int(state[0])
        running.column = column
        running.num_accepted = 1
        running.num_running = end - num_drafts if num_drafts else None

    @property
    def groups(self) -> set[int]:
        """KV cache groups of recurrent state."""
        return set(self._groups.values())

    def written(self, running: RunningState, tables: list[list[int]]) -> list[list[int]]:
        """Blocks that the last step may have left a state in, by group."""
        return [tables[group][running.column or 0 :] for group in self.groups]

    def settle(self, running: RunningState, tables: list[list[int]]) -> None:
        """Behind a step with drafts: put the state of the block that it ended in its place."""
        if running.num_running is None or running.column is None:
            return
        num_ended = (running.num_running + running.num_accepted - 1) // self._block_size * self._block_size
        if num_ended >= running.num_running:
            column = num_ended // self._block_size - 1
            for name, group in self._groups.items():
                table, bits = tables[group], self._bits[name]
                bits[table[column]] = bits[table[running.column + num_ended - running.num_running]]
            if column == running.column:
                running.num_accepted = 1
        running.num_running = None

    def sum_of(self, running: RunningState, num_tokens: int) -> int:
        """What the next token is drawn from: the first cell behind `num_tokens` in the first layer of each group."""
        first_layers = {group: name for name, group in reversed(self._groups.items())}
        return sum(running.cells[name, num_tokens] for name in first_layers.values())

    def has(self, group: int, block: int, num_tokens: int, hidden: int) -> bool:
        """Whether a block holds the states behind `num_tokens` tokens in all layers of that group, if it has any."""
        return all(
            bool((self._bits[name][block].astype(np.int64) == self._expected(name, num_tokens, hidden)).all())
            for name, its_group in self._groups.items()
            if its_group == group
        )

    def _expected(self, name: str, num_tokens: int, hidden: int) -> Array:
        expected: Array = (hidden + self._salts[name] * pow(FACTOR, num_tokens, MODULUS)) % MODULUS
        return expected

    def _check(self, request_id: str, name: str, num_tokens: int, state: Array, hidden: int, block: int) -> None:
        if (state != self._expected(name, num_tokens, hidden)).any():
            raise WrongKvError(f"{request_id}: layer {name}: wrong state behind {num_tokens} tokens (block {block})")
