# SPDX-License-Identifier: Apache-2.0
"""What an engine's recording says about the last seconds: rates, loads under way, and the slowest loads."""

import dataclasses
from collections import deque

from kvferry import _core
from kvferry.block_history import FAILED, halves
from kvferry.recordings import configured_number, named
from kvferry.story import id_of

_KINDS = ["request", "finished", "load begun", "load ended", "store ended", "left", "came", "skipped"]
_EVICTED = 0
_MOST_SLOWEST = 5


@dataclasses.dataclass(frozen=True)
class LoadTime:
    """A load that has ended, and how long it took from its allocation to its last rank's report."""

    request: str
    num_tokens: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Activity:
    """Figures of an engine for some time.

    Attributes
    ----------
    seconds
        How long that is: less than was asked for, if the recording does not go back so far.
    num_requests, num_loads, loaded_tokens, failed_loads, stored_blocks, evicted_blocks, skipped_blocks
        What happened in that time.
    num_running
        Requests that arrived and have not finished.
    num_loads_under_way
        Loads that have begun and not ended.
    readable_blocks
        Blocks in the tier; None: the recording has lost its beginning, so it is not known.
    slowest
        The slowest loads of that time, the slowest first.

    """

    seconds: float
    num_requests: int
    num_running: int
    num_loads: int
    loaded_tokens: int
    failed_loads: int
    num_loads_under_way: int
    stored_blocks: int
    evicted_blocks: int
    skipped_blocks: int
    readable_blocks: int | None
    slowest: tuple[LoadTime, ...]


class ActivityReader:
    """Follows the recording of one engine.

    Raises
    ------
    RecordingError
        The file is no recording.
    ResourceError
        It cannot be read.

    """

    def __init__(self, path: str, span_s: float) -> None:
        self._file = _core.RecordingFile(path)
        self._span_ns = int(span_s * 1e9)
        self._hash_tokens = configured_number(named(self._file.config), "hash_tokens", 1)
        self._at = 0
        self._began_ns: int | None = None
        self._now_ns = self._file.steady_ns
        self._requests: dict[int, str] = {}
        # By transfer: the request's number, tokens, and when it began.
        self._loads: dict[int, tuple[int, int, int]] = {}
        self._readable: int | None = 0
        # What happened, with its time and its number.
        self._happened: deque[tuple[int, str, int]] = deque()
        self._ended: deque[tuple[int, LoadTime]] = deque()

    def read(self, now_ns: int | None = None) -> Activity:
        """Read what is new, and return the figures of the last seconds before now (by the steady clock)."""
        events = self._file.read(self._at)
        if events.begin > self._at:
            self._lose_track()
        self._at = events.end
        chosen = events.select(_KINDS)
        times = events.times([event.position for event in chosen])
        for event, at_ns in zip(chosen, times, strict=True):
            at_ns = at_ns or self._now_ns
            self._began_ns = at_ns if self._began_ns is None else self._began_ns
            self._now_ns = max(self._now_ns, at_ns)
            self._take(event, at_ns)
        return self._sum(self._now_ns if now_ns is None else now_ns)

    def _lose_track(self) -> None:
        self._requests.clear()
        self._loads.clear()
        self._readable = None
        self._began_ns = None

    def _take(self, event: _core.RecordedEvent, at_ns: int) -> None:
        kind, words = event.kind, event.words
        if kind == "request":
            self._requests[event.number] = id_of(words)
            self._happened.append((at_ns, "requests", 1))
        elif kind == "finished":
            self._requests.pop(event.number, None)
        elif kind == "load begun" and not event.flags & FAILED:
            first, end = halves(words[1])
            tokens = (end - first) * self._hash_tokens
            self._loads[words[0]] = (event.number, tokens, at_ns)
            self._happened.append((at_ns, "loads", 1))
            self._happened.append((at_ns, "tokens", tokens))
        elif kind == "load ended":
            self._end_load(event, at_ns)
        elif kind == "store ended":
            num_stored, _ = halves(words[1])
            self._happened.append((at_ns, "stored", num_stored))
            if self._readable is not None:
                self._readable += num_stored
        elif kind == "skipped":
            self._happened.append((at_ns, "skipped", len(words)))
        elif kind in {"left", "came"}:
            number = len(words) // 2
            if kind == "left" and event.flags == _EVICTED:
                self._happened.append((at_ns, "evicted", number))
            if self._readable is not None:
                self._readable += number if kind == "came" else -number

    def _end_load(self, event: _core.RecordedEvent, at_ns: int) -> None:
        begun = self._loads.pop(event.words[0], None)
        if event.flags == FAILED:
            self._happened.append((at_ns, "failed", 1))
        if begun is not None:
            number, tokens, begun_ns = begun
            name = self._requests.get(number, f"number {number}")
            self._ended.append((at_ns, LoadTime(name, tokens, (at_ns - begun_ns) / 1e9)))

    def _sum(self, now_ns: int) -> Activity:
        since_ns = now_ns - self._span_ns
        while self._happened and self._happened[0][0] < since_ns:
            self._happened.popleft()
        while self._ended and self._ended[0][0] < since_ns:
            self._ended.popleft()
        sums: dict[str, int] = {}
        for _, what, number in self._happened:
            sums[what] = sums.get(what, 0) + number
        known_ns = now_ns - (self._began_ns if self._began_ns is not None else now_ns)
        slowest = sorted((load for _, load in self._ended), key=lambda load: -load.seconds)
        return Activity(
            seconds=min(self._span_ns, max(known_ns, 1)) / 1e9,
            num_requests=sums.get("requests", 0),
            num_running=len(self._requests),
            num_loads=sums.get("loads", 0),
            loaded_tokens=sums.get("tokens", 0),
            failed_loads=sums.get("failed", 0),
            num_loads_under_way=len(self._loads),
            stored_blocks=sums.get("stored", 0),
            evicted_blocks=sums.get("evicted", 0),
            skipped_blocks=sums.get("skipped", 0),
            readable_blocks=self._readable,
            slowest=tuple(slowest[:_MOST_SLOWEST]),
        )
