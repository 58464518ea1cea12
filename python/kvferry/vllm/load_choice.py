# SPDX-License-Identifier: Apache-2.0
"""Which loads are worth it: those that do not take longer than the tokens' computation."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

# How many points a line is drawn from at least, and how much one counts beside the next: two hundred at most.
_LEAST_POINTS = 16
_DECAY = 0.995
# Standard errors that a token's cost has to be from 0 to be believed.
_LEAST_CERTAINTY = 5
# A step that took longer was a pause, or tells nothing of a GPU.
_LONGEST_STEP_S = 2.0
# Of the requests whose load is not worth it, one in so many loads all the same: what is measured has to stay true.
_TRIAL = 16


class Fit(NamedTuple):
    """A straight line: how steep, how high at 0, and the standard error of the former."""

    slope: float
    height: float
    error: float


class Line:
    """The straight line closest to points, of which older ones count less."""

    def __init__(self) -> None:
        self.num_points = 0
        self._sums: tuple[float, ...] = (0.0,) * 6  # of the weights, x, y, x * x, x * y, y * y

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self.num_points += 1
        self._sums = tuple(_DECAY * s + v for s, v in zip(self._sums, (1.0, x, y, x * x, x * y, y * y), strict=True))

    def fit(self) -> Fit | None:
        """The line; None: too few points, or all of nearly one x."""
        weight, x, y, xx, xy, yy = self._sums
        spread = weight * xx - x * x
        if self.num_points < _LEAST_POINTS or spread <= 1e-6 * x * x:
            return None
        slope = (weight * xy - x * y) / spread
        residue = max(0.0, weight * yy - y * y - slope * slope * spread)
        return Fit(slope, (y - slope * x) / weight, math.sqrt(residue / spread / weight))


class LoadChoice:
    """Says whether a load is worth it, by how long loads and steps took so far.

    A load takes the time from its allocation to its report; the tokens' computation what they make a step longer. With
    too little measured, everything is loaded. One thread.

    Parameters
    ----------
    min_tokens
        Tokens from which on everything is loaded, and below which nothing is. None: by what is measured.
    is_async
        Whether the engine schedules a step while the one before it runs.
    now
        The clock, in seconds.

    """

    def __init__(self, min_tokens: int | None, *, is_async: bool, now: Callable[[], float] = time.perf_counter) -> None:
        self._fixed = min_tokens
        self._is_async = is_async
        self._now = now
        self._steps = Line()
        self._loads = Line()
        self._began: dict[str, tuple[float, int]] = {}
        self._choices: dict[str, bool] = {}
        self._num_refused = 0
        # The last steps: when they were scheduled, and how many tokens they have.
        self._scheduled_at = -math.inf
        self._num_tokens = (0, 0)

    @property
    def token_seconds(self) -> float | None:
        """Seconds by which a token makes a step longer; None: too little was measured."""
        fit = self._steps.fit()
        # Steps that are nearly alike do not tell what a token costs.
        return fit.slope if fit is not None and fit.slope >= _LEAST_CERTAINTY * fit.error else None

    @property
    def min_tokens(self) -> float:
        """Tokens from which on a load is worth it; infinite if none is."""
        if self._fixed is not None:
            return self._fixed
        computing, loading = self.token_seconds, self._loads.fit()
        if computing is None or loading is None:
            return 0
        slope, height = max(0.0, loading.slope), max(0.0, loading.height)
        gain = computing - slope
        return height / gain if gain > 0 else math.inf

    def is_worth(self, request_id: str, num_tokens: int) -> bool:
        """Whether the request is to load that many tokens: one answer until `forget`."""
        choice = self._choices.get(request_id)
        if choice is None:
            choice = num_tokens >= self.min_tokens
            if not choice and self._fixed is None:
                self._num_refused += 1
                choice = self._num_refused % _TRIAL == 0
            self._choices[request_id] = choice
        return choice

    def forget(self, request_id: str) -> None:
        """Forget the answer: the request's turn has come, or it has ended."""
        self._choices.pop(request_id, None)

    def on_step(self, num_tokens: int, goes_on: bool) -> None:
        """Note that a step is scheduled; `goes_on`: a request of the step before it is in it."""
        now = self._now()
        took = now - self._scheduled_at
        # What is scheduled beside a step that runs waits for that one.
        measured = self._num_tokens[0 if self._is_async else 1]
        if goes_on and measured and took < _LONGEST_STEP_S:
            self._steps.add(measured, took)
        self._scheduled_at = now
        self._num_tokens = (self._num_tokens[1], num_tokens)

    def on_load_begun(self, request_id: str, num_tokens: int) -> None:
        """Note that a load was allocated."""
        if self._fixed is None:
            self._began[request_id] = (self._now(), num_tokens)

    def on_load_ended(self, request_id: str, succeeded: bool) -> None:
        """Note that a load was reported, or that its request has ended; any number of times."""
        began = self._began.pop(request_id, None)
        if began is not None and succeeded:
            self._loads.add(began[1], self._now() - began[0])
