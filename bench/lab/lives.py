# SPDX-License-Identifier: Apache-2.0
"""Lives of long requests, the same for every connector, which take turns."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from hook_clock import Cost
from rigs import LONG_TOKENS, Rig

_VOCABULARY = 1000

Progress = Callable[[str], None]


class BrokenRunError(Exception):
    """A connector did not do what the scenario measures, so its figures mean nothing."""


@dataclass
class Samples:
    """The costs of one connector in one scenario, one for each sample."""

    costs: list[Cost] = field(default_factory=list)

    @property
    def ns(self) -> list[float]:
        """Nanoseconds of each sample."""
        return [cost.ns for cost in self.costs]

    @property
    def median_ns(self) -> float:
        """Median nanoseconds."""
        return median(self.ns)

    @property
    def worst(self) -> tuple[float, str]:
        """The median over samples of a sample's most expensive call, and the hook that most often was that call."""
        hooks = [cost.worst_hook for cost in self.costs]
        return median(cost.worst_ns for cost in self.costs), max(set(hooks), key=hooks.count)

    def by_hook(self) -> dict[str, float]:
        """The median nanoseconds of each hook."""
        hooks = {hook for cost in self.costs for hook in cost.by_hook}
        return {hook: median(cost.by_hook.get(hook, 0.0) for cost in self.costs) for hook in sorted(hooks)}


Results = dict[str, dict[str, Samples]]
"""Scenario to connector to samples."""


class Lives(ABC):
    """Engines that run the same requests.

    Parameters
    ----------
    num_rounds
        Number of samples of each scenario.
    num_residents
        Number of 128k-token requests that the tier holds before anything is measured.
    progress
        Called with a text about the current work.

    Attributes
    ----------
    results
        The measured costs.

    """

    # Tokens at the end of a prompt that a full hit can lack.
    _most_missed = 0

    def __init__(self, num_rounds: int, num_residents: int, progress: Progress) -> None:
        self._num_rounds = num_rounds
        self._progress = progress
        self._rng = np.random.default_rng(0)
        self._residents = [self._prompt(LONG_TOKENS) for _ in range(num_residents)]
        self.results: Results = {}

    def run(self) -> None:
        """Run everything. Python's garbage collector works between samples only."""
        gc.disable()
        rigs: list[Rig] = []
        try:
            self._progress("starting the engines")
            self._start(rigs)
            self._fill(rigs)
            gc.collect()
            gc.freeze()
            self._measure(rigs)
        finally:
            for rig in rigs:
                rig.close()
            gc.unfreeze()
            gc.enable()

    @abstractmethod
    def _start(self, rigs: list[Rig]) -> None:
        """Start an engine for each connector."""

    @abstractmethod
    def _measure(self, rigs: Sequence[Rig]) -> None:
        """Take the samples."""

    def _prompt(self, num_tokens: int) -> list[int]:
        return [int(token) for token in self._rng.integers(0, _VOCABULARY, num_tokens)]

    def _note(self, scenario: str, rig: Rig, cost: Cost) -> None:
        self.results.setdefault(scenario, {}).setdefault(rig.kind.name, Samples()).costs.append(cost)

    def _turns(self, rigs: Sequence[Rig], what: str) -> Iterable[list[Rig]]:
        """Yield the rigs once in each round, beginning with a different one each time."""
        for turn in range(self._num_rounds):
            self._progress(f"{what}, round {turn + 1} of {self._num_rounds}")
            for rig in rigs:
                rig.clock.take()
                rig.clock.calibrate()
            first = turn % len(rigs)
            yield [*rigs[first:], *rigs[:first]]
            gc.collect()

    def _fill(self, rigs: Sequence[Rig]) -> None:
        """Store the resident requests, and warm up."""
        for i, prompt in enumerate([*self._residents, self._prompt(LONG_TOKENS)]):
            self._progress(f"filling the tiers, request {i + 1} of {len(self._residents) + 1}")
            for rig in rigs:
                rig.life(prompt)
        for rig in rigs:
            self._hit(rig, self._residents[0])

    def _hit(self, rig: Rig, prompt: Sequence[int]) -> Cost:
        rig.drop_gpu_cache()
        before = rig.hit_tokens
        cost = rig.life([*prompt, 0])  # The last token is always computed, so this hit is the whole prompt.
        if not LONG_TOKENS - self._most_missed <= rig.hit_tokens - before <= LONG_TOKENS:
            raise BrokenRunError(f"{rig.kind.name} hit {rig.hit_tokens - before} of {LONG_TOKENS} tokens")
        return cost

    def _lives(self, rigs: Sequence[Rig]) -> None:
        for turn, order in enumerate(self._turns(rigs, "lives of 128k-token requests")):
            prompt = self._prompt(LONG_TOKENS)
            resident = self._residents[turn % len(self._residents)]
            for rig in order:
                self._note("miss", rig, rig.life(prompt))
                self._note("hit", rig, self._hit(rig, resident))
