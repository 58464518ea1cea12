# SPDX-License-Identifier: Apache-2.0
"""Lines in the engine's log while the tier's memory becomes ready. The last one says that it is, and what it holds."""

from collections.abc import Iterator

from kvferry import _core
from kvferry.sizes import format_size


class GrowthReport:
    """Reports each further tenth of the tier that is ready on every rank.

    Parameters
    ----------
    planned_slots
        Slots that the tier should have.
    planned_bytes
        Host memory that it should have, on all ranks.
    planned_tokens
        Tokens that it holds then, of prompts of the maximum length.
    engine_tokens
        Tokens that the engine's own KV cache holds, of the same prompts; 0: not known.

    Attributes
    ----------
    num_slots
        Slots that were ready at the last call of `lines`.

    """

    def __init__(self, planned_slots: int, planned_bytes: int, planned_tokens: int, engine_tokens: int) -> None:
        self._planned_slots = planned_slots
        self._planned_bytes = planned_bytes
        self._planned_tokens = planned_tokens
        self._engine_tokens = engine_tokens
        self.num_slots = 0

    def lines(self, num_slots: int, max_slots: int) -> Iterator[str]:
        """Yield what is new.

        Parameters
        ----------
        num_slots
            Slots that are ready on every rank.
        max_slots
            Slots that the tier will have.

        """
        before, self.num_slots = self.num_slots, num_slots
        if num_slots == before:
            return
        if before == 0 and max_slots < self._planned_slots:
            yield f"kvferry: the tier will hold {max_slots} blocks: some rank has no memory for more"
        tenths = 10 * num_slots // max_slots
        if tenths <= 10 * before // max_slots:
            return
        yield self._ready() if tenths == 10 else f"kvferry: {10 * tenths} % of the tier is ready, {num_slots} blocks"

    def _ready(self) -> str:
        num_bytes = self._planned_bytes * self.num_slots // self._planned_slots
        num_tokens = self._planned_tokens * self.num_slots // self._planned_slots
        times = f", {times_of(num_tokens, self._engine_tokens)}" if self._engine_tokens else ""
        return f"kvferry {_core.__version__} ready: {format_size(num_bytes)} = {num_tokens:,} tokens{times}"


def times_of(num_tokens: int, engine_tokens: int) -> str:
    """Compare the tokens of the tier with those of the engine's own cache, more than none."""
    return f"{num_tokens / engine_tokens:.1f} times the GPU's cache"
