# SPDX-License-Identifier: Apache-2.0
"""Which loads are worthwhile: those that take no longer than the computation of their tokens."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

# A line needs at least this many points.
_LEAST_POINTS = 16
# The weight of a point, relative to the next one: about two hundred points count.
_DECAY = 0.995
# The cost of a token is used only if it is this many standard errors above 0.
_LEAST_CERTAINTY = 5
# A longer step was a pause, or says nothing about a GPU.
_LONGEST_STEP_S = 2.0
# One in this many requests whose load is not worthwhile loads anyway, to keep the measurement current.
_TRIAL = 16


class Fit(NamedTuple):
    """A straight line: its slope, its value at 0, and the standard error of the slope."""

    slope: float
    height: float
    error: float


class Line:
    """A straight line fitted to points, of which older ones count less."""

    def __init__(self) -> None:
        self.num_points = 0
        self._sums: tuple[float, ...] = (0.0,) * 6  # of the weights, x, y, x * x, x * y, y * y

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self.num_points += 1
        self._sums = tuple(_DECAY * s + v for s, v in zip(self._sums, (1.0, x, y, x * x, x * y, y * y), strict=True))

    def fit(self) -> Fit | None:
        """Return the line; None: there are too few points, or all of them have nearly the same x."""
        weight, x, y, xx, xy, yy = self._sums
        spread = weight * xx - x * x
        if self.num_points < _LEAST_POINTS or spread <= 1e-6 * x * x:
            return None
        slope = (weight * xy - x * y) / spread
        residue = max(0.0, weight * yy - y * y - slope * slope * spread)
        return Fit(slope, (y - slope * x) / weight, math.sqrt(residue / spread / weight))


class LoadChoice:
    """Decides whether a load is worthwhile, by the measured times of earlier loads and steps.

    The time of a load lasts from its allocation to its report. The time of a computation is the time that its tokens
    add to a step. Until enough is measured, everything is loaded. Used by one thread.

    Parameters
    ----------
    min_tokens
        Prefixes of this many tokens or more are loaded, shorter ones are not. None: decided by measurement.
    is_async
        Whether the engine schedules a step while the step before it runs.
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
        # When the last step was scheduled, and the numbers of tokens of the last two steps.
        self._scheduled_at = -math.inf
        self._num_tokens = (0, 0)

    @property
    def token_seconds(self) -> float | None:
        """Seconds that a token adds to a step; None: too little was measured."""
        fit = self._steps.fit()
        # Steps of nearly the same size do not show the cost of a token.
        return fit.slope if fit is not None and fit.slope >= _LEAST_CERTAINTY * fit.error else None

    @property
    def min_tokens(self) -> float:
        """Smallest number of tokens whose load is worthwhile; infinite if no load is."""
        if self._fixed is not None:
            return self._fixed
        computing, loading = self.token_seconds, self._loads.fit()
        if computing is None or loading is None:
            return 0
        slope, height = max(0.0, loading.slope), max(0.0, loading.height)
        gain = computing - slope
        return height / gain if gain > 0 else math.inf

    def is_worth(self, request_id: str, num_tokens: int) -> bool:
        """Whether the request should load `num_tokens` tokens. The answer stays the same until `forget`."""
        choice = self._choices.get(request_id)
        if choice is None:
            choice = num_tokens >= self.min_tokens
            if not choice and self._fixed is None:
                self._num_refused += 1
                choice = self._num_refused % _TRIAL == 0
            self._choices[request_id] = choice
        return choice

    def forget(self, request_id: str) -> None:
        """Forget the answer, because the request was allocated or has ended."""
        self._choices.pop(request_id, None)

    def on_step(self, num_tokens: int, goes_on: bool) -> None:
        """Note that a step is scheduled. `goes_on`: it contains a request of the step before it."""
        now = self._now()
        took = now - self._scheduled_at
        # A step that is scheduled while another one runs waits for that one.
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
        """Note that a load was reported, or that its request has ended. Can be called any number of times."""
        began = self._began.pop(request_id, None)
        if began is not None and succeeded:
            self._loads.add(began[1], self._now() - began[0])
