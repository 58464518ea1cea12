# SPDX-License-Identifier: Apache-2.0
"""What a toy engine without connector gives: the truth that lives of clients are held against."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import ToyEngine, ToySpec


class Reference:
    """An engine of the same model without connector, with room for everything, that does one thing at a time.

    Parameters
    ----------
    folder
        For the model's configuration.
    spec
        Of the engine that is tested.

    """

    def __init__(self, folder: Path, spec: ToySpec) -> None:
        plain = replace(
            spec,
            extra_config=None,
            num_blocks=512,
            world_size=1,
            async_scheduling=False,
            num_drafts=0,
            policy="fcfs",
            kv_events=False,
        )
        self._engine = ToyEngine(folder, plain)
        self._known: dict[tuple[int, ...], list[int]] = {}

    def next_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What follows a prompt; the engine's own choice, so that a shorter answer is the beginning of a longer one."""
        key = tuple(prompt)
        known = self._known.get(key, [])
        if len(known) < num_tokens:
            request_id = f"{len(self._known)}-{num_tokens}"
            known = self._engine.generate({request_id: key}, num_tokens)[request_id]
            self._known[key] = known
            self._engine.requests.clear()
            self._engine.finished.clear()
        return known[:num_tokens]

    def close(self) -> None:
        """End the engine."""
        self._engine.close()
