# SPDX-License-Identifier: Apache-2.0
"""A line a minute in the engine's log: where the tokens of the prompts were found."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

PERIOD_S = 60.0


@dataclass
class _Counts:
    """Numbers of tokens since the last line."""

    asked: int = 0
    on_gpu: int = 0
    in_tier: int = 0
    loaded: int = 0


class HitReport:
    """Counts the tokens of prompts, and where they were found.

    A request counts once, when it gets its first blocks. What it finds in the tier counts when its load has ended, or
    at once if nothing is loaded. Used by one thread.

    Parameters
    ----------
    token_seconds
        Returns the measured seconds of computing one token, or None.
    view
        Returns the tier's figures.
    now
        The clock, in seconds.

    """

    def __init__(
        self,
        token_seconds: Callable[[], float | None],
        view: Callable[[], Mapping[str, float]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token_seconds = token_seconds
        self._view = view
        self._now = now
        self._counts = _Counts()
        self._since: float | None = None
        self._looked_up: dict[str, tuple[int, int]] = {}
        self._counted: set[str] = set()
        self._loading: dict[str, tuple[int, int]] = {}

    def on_lookup(self, request_id: str, num_on_gpu: int, num_in_tier: int) -> None:
        """Note how many tokens of a waiting request the engine's own cache has, and how many more the tier has."""
        if request_id not in self._counted:
            self._looked_up[request_id] = num_on_gpu, num_in_tier

    def on_allocated(self, request: "Request", num_loading: int) -> None:
        """Note that a request got blocks, and how many tokens will be loaded into them."""
        request_id = request.request_id
        found = self._looked_up.pop(request_id, None)
        if found is None:
            return
        on_gpu, in_tier = found
        if self._since is None:
            self._since = self._now()
        self._counted.add(request_id)
        self._counts.asked += request.num_prompt_tokens
        self._counts.on_gpu += on_gpu
        if num_loading:
            self._loading[request_id] = in_tier, num_loading
        else:
            self._counts.in_tier += in_tier

    def on_load_ended(self, request_id: str, succeeded: bool) -> None:
        """Note that a request's load has ended; can be called any number of times."""
        in_tier, num_loaded = self._loading.pop(request_id, (0, 0))
        self._counts.in_tier += in_tier
        self._counts.loaded += num_loaded if succeeded else 0

    def on_finished(self, request_id: str) -> None:
        """Forget a request."""
        self.on_load_ended(request_id, succeeded=False)
        self._looked_up.pop(request_id, None)
        self._counted.discard(request_id)

    def take_line(self, at_once: bool = False) -> str | None:
        """Take the line if there was traffic and a minute has passed; `at_once`: even before that."""
        if self._since is None:
            return None
        passed = self._now() - self._since
        if passed < PERIOD_S and not at_once:
            return None
        counts, self._counts, self._since = self._counts, _Counts(), None

        def share(num_tokens: int) -> str:
            return f"{100 * num_tokens / counts.asked:.0f} %" if counts.asked else "0 %"

        line = (
            f"{passed:.0f} s: {counts.asked:,} prompt tokens: {share(counts.on_gpu)} found in the GPU's cache, "
            f"{share(counts.loaded)} loaded from the tier"
        )
        seconds = self._token_seconds()
        if counts.loaded and seconds is not None:
            line += f" (about {counts.loaded * seconds:.1f} s of prefill saved)"
        if counts.in_tier > counts.loaded:
            line += f", {share(counts.in_tier - counts.loaded)} found there and not loaded"
        view = self._view()
        if view["num_slots"]:
            line += f"; tier {100 * (1 - view['num_free'] / view['num_slots']):.0f} % full"
        return line
