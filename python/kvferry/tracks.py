# SPDX-License-Identifier: Apache-2.0
"""The rows of a timeline: spans that have begun and not ended, and Chrome's trace events of those that have.

A span takes the first row that is free, so that spans of one row never overlap: there are as many rows as there were
spans at once.
"""

import dataclasses
import heapq
from collections.abc import Collection, Iterator
from typing import Any

from kvferry import _core
from kvferry.story import Fate

# Perfetto takes a thread with its process's number for the main thread.
_ROWS_OF_A_PROCESS = 1000

UNDER_WAY = Fate.UNDER_WAY.value
"""How a span ended that has not."""

Traced = dict[str, Any]
"""A trace event."""


@dataclasses.dataclass
class Span:
    """Something that has begun. `stages`: those that are over, with their begin and end."""

    name: str
    row: int
    begun_ns: int
    args: dict[str, Any]
    stage: str = ""
    stage_ns: int = 0
    stages: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)

    def enter(self, stage: str, at_ns: int) -> None:
        """End the stage that it is in, and begin one; empty: none."""
        if stage == self.stage:
            return
        if self.stage:
            self.stages.append((self.stage, self.stage_ns, at_ns))
        self.stage, self.stage_ns = stage, at_ns


def with_times(
    file: _core.RecordingFile, kinds: list[str], timed: Collection[str]
) -> Iterator[tuple[int, _core.RecordedEvent]]:
    """Yield a recording's events of these kinds, each with the newest time that was recorded up to it.

    Parameters
    ----------
    file
        The recording.
    kinds
        The kinds of events.
    timed
        Those of the kinds whose first word is a time.

    """
    recording = file.read()
    now_ns = file.steady_ns
    if recording.begin > 0:
        now_ns = recording.times([recording.begin])[0] or now_ns
    for event in recording.each(kinds):
        if event.kind in timed:
            now_ns = max(now_ns, event.words[0])
        yield now_ns, event


class Track:
    """Spans of one kind, by number, in rows.

    Parameters
    ----------
    process
        The process of the timeline to which the rows belong.
    steady_ns
        When the timeline begins, by the clock of its recordings.

    """

    def __init__(self, process: int, steady_ns: int) -> None:
        self._process = process
        self._steady_ns = steady_ns
        self._free: list[int] = []
        self._num_rows = 0
        self.open: dict[int, Span] = {}

    def begin(self, number: int, name: str, at_ns: int, args: dict[str, Any], stage: str = "") -> Iterator[Traced]:
        """Begin a span, in a stage if there is one."""
        if self._free:
            row = heapq.heappop(self._free)
        else:
            self._num_rows += 1
            row = self._row(self._num_rows)
            yield _label("thread_name", self._process, row, {"name": f"{self._num_rows}"})
            yield _label("thread_sort_index", self._process, row, {"sort_index": row})
        self.open[number] = Span(name, row, at_ns, args, stage, at_ns)

    def end(self, number: int, at_ns: int, **args: Any) -> Iterator[Traced]:
        """End a span, if it has begun."""
        span = self.open.pop(number, None)
        if span is None:
            return
        heapq.heappush(self._free, span.row)
        span.enter("", at_ns)
        yield self._span(span.name, span.row, span.begun_ns, at_ns, {**span.args, **args})
        for name, begun_ns, ended_ns in span.stages:
            yield self._span(name, span.row, begun_ns, ended_ns, {})

    def end_all(self, at_ns: int) -> Iterator[Traced]:
        """End what is under way when the recording ends."""
        for number in list(self.open):
            yield from self.end(number, at_ns, ended=UNDER_WAY)

    def mark(self, name: str, at_ns: int, args: dict[str, Any]) -> Traced:
        """Return a mark that is seen in all rows of all processes."""
        at = (at_ns - self._steady_ns) / 1e3
        return {"name": name, "ph": "i", "s": "g", "pid": self._process, "tid": self._row(1), "ts": at, "args": args}

    def _row(self, number: int) -> int:
        return self._process * _ROWS_OF_A_PROCESS + number

    def _span(self, name: str, row: int, begun_ns: int, ended_ns: int, args: dict[str, Any]) -> Traced:
        return {
            "name": name, "ph": "X", "pid": self._process, "tid": row, "ts": (begun_ns - self._steady_ns) / 1e3,
            "dur": (ended_ns - begun_ns) / 1e3, "args": args,
        }  # fmt: skip


def name_process(process: int, name: str) -> Iterator[Traced]:
    """Yield what gives a process its name, and its place among the others."""
    yield _label("process_name", process, 0, {"name": name})
    yield _label("process_sort_index", process, 0, {"sort_index": process})


def _label(what: str, process: int, row: int, args: dict[str, Any]) -> Traced:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": args}
