# SPDX-License-Identifier: Apache-2.0
"""An engine's recording as a timeline: Chrome's trace-event JSON, which ui.perfetto.dev opens.

Requests, loads, stores and steps are the timeline's processes. Each has rows, and a span takes the first row that is
free, so that spans of one row never overlap: there are as many rows as there were requests at once. Only what has begun
and not ended is kept in memory.
"""

import dataclasses
import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from kvferry import _core
from kvferry.block_history import FAILED, halves
from kvferry.errors import ConfigError, ResourceError
from kvferry.recordings import configured_number, named
from kvferry.story import FATES, PENDING, Fate, id_of, text_of

_KINDS = [
    "request", "lookup", "found", "load begun", "told", "scheduled", "preempted", "finished",
    "load", "load ended", "store", "aborted", "store ended",
    "plan", "planned", "fold", "reset", "weights", "threw", "broken invariant", "time", "allocated",
]  # fmt: skip
_REQUESTS, _LOADS, _STORES, _STEPS = 1, 2, 3, 4
_NAMES = {_REQUESTS: "requests", _LOADS: "loads", _STORES: "stores", _STEPS: "steps"}
_MARKS = {"reset": "reset", "weights": "other weights", "threw": "error", "broken invariant": "broken invariant"}
_WAITS, _LOADING, _RUNS = "waits", "loads", "runs"
_MOST_ANSWERS = 8
_BEFORE = "before the recording"
_UNDER_WAY = Fate.UNDER_WAY.value

_Traced = dict[str, Any]


@dataclasses.dataclass
class _Span:
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


class _Track:
    """Spans of one kind, by number, in rows."""

    def __init__(self, process: int, steady_ns: int) -> None:
        self._process = process
        self._steady_ns = steady_ns
        self._free: list[int] = []
        self._num_rows = 0
        self.open: dict[int, _Span] = {}

    def begin(self, number: int, name: str, at_ns: int, args: dict[str, Any], stage: str = "") -> Iterator[_Traced]:
        if self._free:
            row = heapq.heappop(self._free)
        else:
            self._num_rows += 1
            row = self._num_rows
            yield _label("thread_name", self._process, row, {"name": f"{row}"})
            yield _label("thread_sort_index", self._process, row, {"sort_index": row})
        self.open[number] = _Span(name, row, at_ns, args, stage, at_ns)

    def end(self, number: int, at_ns: int, **args: Any) -> Iterator[_Traced]:
        """End a span, if it has begun."""
        span = self.open.pop(number, None)
        if span is None:
            return
        heapq.heappush(self._free, span.row)
        span.enter("", at_ns)
        yield self._span(span.name, span.row, span.begun_ns, at_ns, {**span.args, **args})
        for name, begun_ns, ended_ns in span.stages:
            yield self._span(name, span.row, begun_ns, ended_ns, {})

    def end_all(self, at_ns: int) -> Iterator[_Traced]:
        for number in list(self.open):
            yield from self.end(number, at_ns, ended=_UNDER_WAY)

    def _span(self, name: str, row: int, begun_ns: int, ended_ns: int, args: dict[str, Any]) -> _Traced:
        return {
            "name": name, "ph": "X", "pid": self._process, "tid": row, "ts": (begun_ns - self._steady_ns) / 1e3,
            "dur": (ended_ns - begun_ns) / 1e3, "args": args,
        }  # fmt: skip


class Timeline:
    """The spans of a recording, as Chrome's trace events. Times are microseconds since the recording began."""

    def __init__(self, file: _core.RecordingFile) -> None:
        self._file = file
        self._hash_tokens = configured_number(named(file.config), "hash_tokens", 1)
        self._requests = _Track(_REQUESTS, file.steady_ns)
        self._loads = _Track(_LOADS, file.steady_ns)
        self._stores = _Track(_STORES, file.steady_ns)
        self._steps = _Track(_STEPS, file.steady_ns)
        # An id that is used again ends the request that had it. The request by its id's digest, and the other way.
        self._by_digest: dict[int, int] = {}
        self._digests: dict[int, int] = {}
        self._now_ns = file.steady_ns
        self._num_scheduled = 0
        self._num_tokens = 0

    def events(self) -> Iterator[_Traced]:
        """Yield the trace events. To be called once."""
        for process, name in _NAMES.items():
            yield _label("process_name", process, 0, {"name": name})
            yield _label("process_sort_index", process, 0, {"sort_index": process})
        recording = self._file.read()
        if recording.begin > 0:
            self._now_ns = recording.times([recording.begin])[0] or self._now_ns
        for event in recording.each(_KINDS):
            if event.kind in _TIMED:
                self._now_ns = max(self._now_ns, event.words[0])
            take = _TAKEN_BY.get(event.kind)
            if take is not None:
                yield from take(self, event)
        for track in (self._requests, self._loads, self._stores, self._steps):
            yield from track.end_all(self._now_ns)

    # ---- requests ----

    def _arrive(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        digest = event.words[2]
        if (before := self._by_digest.get(digest)) is not None:
            yield from self._end_request(before, ended="its id was used again")
        self._by_digest[digest] = event.number
        self._digests[event.number] = digest
        args = {"number": event.number}
        yield from self._requests.begin(event.number, id_of(event.words), self._now_ns, args, _WAITS)

    def _end_request(self, number: int, **args: Any) -> Iterator[_Traced]:
        self._by_digest.pop(self._digests.pop(number, 0), None)
        return self._requests.end(number, self._now_ns, **args)

    def _of_request(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        number, kind = event.number, event.kind
        if number == 0:
            return
        if number not in self._requests.open:
            if kind not in {"lookup", "scheduled"}:
                return
            args = {"number": number, "arrived": _BEFORE}
            yield from self._requests.begin(number, f"number {number}", self._now_ns, args, _WAITS)
        span = self._requests.open[number]
        if kind == "scheduled":
            span.enter(_RUNS, self._now_ns)
        elif kind == "preempted":
            span.enter(_WAITS, self._now_ns)
        elif kind == "load begun":
            span.enter(_LOADING, self._now_ns)
        elif kind == "told" and span.stage == _LOADING:
            span.enter(_WAITS, self._now_ns)
        elif kind == "lookup":
            local, tokens = halves(event.words[1])
            span.args["asked"] = {"local_tokens": local, "tokens": tokens}
        elif kind == "found":
            self._answer(span, event)
        elif kind == "finished":
            yield from self._end_request(number)

    @staticmethod
    def _answer(span: _Span, event: _core.RecordedEvent) -> None:
        found: int | str = "ask again" if event.flags & PENDING else event.words[0] & 0xFFFFFFFF
        answer = {**span.args.pop("asked", {}), "found_tokens": found}
        answers = span.args.setdefault("lookups", [])
        if len(answers) < _MOST_ANSWERS and answers[-1:] != [answer]:
            answers.append(answer)
        span.args["num_lookups"] = span.args.get("num_lookups", 0) + 1

    def _schedule(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        self._num_scheduled += 1
        self._num_tokens += halves(event.words[0])[1]
        return self._of_request(event)

    # ---- transfers ----

    def _begin_load(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        yield from self._of_request(event)
        if event.flags & FAILED:
            return
        first, end = halves(event.words[1])
        args = {"request": self._name(event.number), "tokens": (end - first) * self._hash_tokens}
        transfer = event.words[0]
        yield from self._loads.begin(transfer, f"load {transfer}", self._now_ns, args, "waits for a plan")

    def _plan_load(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        if span := self._loads.open.get(event.words[0]):
            span.enter("on the ranks", self._now_ns)
        yield from ()

    def _end_load(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        return self._loads.end(event.words[0], self._now_ns, ended=FATES[event.flags].value)

    def _store(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        transfer, counts = event.words[:2]
        args = {"request": self._name(event.number), "class": halves(counts)[0], "blocks": halves(counts)[1]}
        yield from self._stores.begin(transfer, f"store {transfer}", self._now_ns, args)

    def _abort(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        for transfer in event.words:
            if span := self._stores.open.get(transfer):
                span.args["is_aborted"] = True
        yield from ()

    def _end_store(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        num_stored, num_skipped = halves(event.words[1])
        ended = "failed" if event.flags & FAILED else "ended"
        return self._stores.end(
            event.words[0], self._now_ns, ended=ended, stored_blocks=num_stored, skipped_blocks=num_skipped
        )

    def _name(self, number: int) -> str:
        span = self._requests.open.get(number)
        return span.name if span else f"number {number}" if number else "several"

    # ---- steps ----

    def _plan(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        yield from self._end_step(event)
        args = {"requests": self._num_scheduled, "tokens": self._num_tokens}
        self._num_scheduled = self._num_tokens = 0
        yield from self._steps.begin(0, f"step {event.number}", self._now_ns, args)

    def _end_plan(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        if span := self._steps.open.get(0):
            span.args["stores"], span.args["loads"] = halves(event.words[0])
        yield from ()

    def _end_step(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        return self._steps.end(0, self._now_ns)

    def _mark(self, event: _core.RecordedEvent) -> Iterator[_Traced]:
        text = text_of(event.words) if event.kind in {"threw", "broken invariant"} else ""
        at = (self._now_ns - self._file.steady_ns) / 1e3
        args = {"text": text} if text else {}
        yield {"name": _MARKS[event.kind], "ph": "i", "s": "g", "pid": _STEPS, "tid": 1, "ts": at, "args": args}


_TIMED = {"request", "lookup", "allocated", "plan", "fold", "finished", "reset", "weights", "time"}
_TAKEN_BY = {
    "request": Timeline._arrive,
    **dict.fromkeys(["lookup", "found", "told", "preempted", "finished"], Timeline._of_request),
    "scheduled": Timeline._schedule,
    "load begun": Timeline._begin_load,
    "load": Timeline._plan_load,
    "load ended": Timeline._end_load,
    "store": Timeline._store,
    "aborted": Timeline._abort,
    "store ended": Timeline._end_store,
    "plan": Timeline._plan,
    "planned": Timeline._end_plan,
    "fold": Timeline._end_step,
    **dict.fromkeys(_MARKS, Timeline._mark),
}


def _label(what: str, process: int, row: int, args: dict[str, Any]) -> _Traced:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": args}


def write(file: _core.RecordingFile, target: Path) -> None:
    """Write the timeline of a recording into a new file that only this user can open.

    Raises
    ------
    ConfigError
        The target exists.
    ResourceError
        It cannot be written; then there is none.
    RecordingError
        The recording is damaged.

    """
    about = {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(file.wall_ns / 1e9)),
        "engine": file.pid,
        "model": named(file.config).get("model", ""),
        "kvferry": file.version,
    }
    try:
        with open(target, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            try:
                _write_events(Timeline(file).events(), about, out)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise ConfigError(f"cannot write {target}: File exists; name a file that does not exist") from None
    except OSError as error:
        raise ResourceError(f"cannot write {target}: {error.strerror}") from None


def _write_events(events: Iterable[_Traced], about: dict[str, Any], out: TextIO) -> None:
    out.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [')
    separator = "\n"
    for event in events:
        out.write(separator + json.dumps(event))
        separator = ",\n"
    out.write("\n]}\n")
    out.flush()  # What cannot be written is not left for the close.
