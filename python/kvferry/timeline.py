# SPDX-License-Identifier: Apache-2.0
"""An engine's recording as a timeline: Chrome's trace-event JSON, which ui.perfetto.dev opens.

Requests, loads, stores and steps are the timeline's processes, and each rank is one, with what it copied. Only what has
begun and not ended is kept in memory.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from kvferry import _core
from kvferry.block_history import FAILED, halves
from kvferry.errors import ConfigError, ResourceError
from kvferry.rank_timeline import RankTimeline
from kvferry.recordings import configured_number, named
from kvferry.story import FATES, PENDING, id_of, text_of
from kvferry.tracks import Span, Traced, Track, name_process, with_times

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


class Timeline:
    """The spans of an engine's recording, as Chrome's trace events. Times are microseconds since it began.

    Parameters
    ----------
    file
        The recording.
    ranks
        Those of the engine's ranks on the same machine.

    """

    def __init__(self, file: _core.RecordingFile, ranks: Iterable[_core.RecordingFile] = ()) -> None:
        self._file = file
        self._ranks = ranks
        self._hash_tokens = configured_number(named(file.config), "hash_tokens", 1)
        self._requests = Track(_REQUESTS, file.steady_ns)
        self._loads = Track(_LOADS, file.steady_ns)
        self._stores = Track(_STORES, file.steady_ns)
        self._steps = Track(_STEPS, file.steady_ns)
        # An id that is used again ends the request that had it. The request by its id's digest, and the other way.
        self._by_digest: dict[int, int] = {}
        self._digests: dict[int, int] = {}
        self._now_ns = file.steady_ns
        self._num_scheduled = 0
        self._num_tokens = 0

    def events(self) -> Iterator[Traced]:
        """Yield the trace events. To be called once."""
        for process, name in _NAMES.items():
            yield from name_process(process, name)
        for now_ns, event in with_times(self._file, _KINDS, _TIMED):
            self._now_ns = now_ns
            take = _TAKEN_BY.get(event.kind)
            if take is not None:
                yield from take(self, event)
        for track in (self._requests, self._loads, self._stores, self._steps):
            yield from track.end_all(self._now_ns)
        for rank in self._ranks:
            yield from RankTimeline(rank, self._file.steady_ns).events()

    # ---- requests ----

    def _arrive(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        digest = event.words[2]
        if (before := self._by_digest.get(digest)) is not None:
            yield from self._end_request(before, ended="its id was used again")
        self._by_digest[digest] = event.number
        self._digests[event.number] = digest
        args = {"number": event.number}
        yield from self._requests.begin(event.number, id_of(event.words), self._now_ns, args, _WAITS)

    def _end_request(self, number: int, **args: Any) -> Iterator[Traced]:
        self._by_digest.pop(self._digests.pop(number, 0), None)
        return self._requests.end(number, self._now_ns, **args)

    def _of_request(self, event: _core.RecordedEvent) -> Iterator[Traced]:
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
    def _answer(span: Span, event: _core.RecordedEvent) -> None:
        found: int | str = "ask again" if event.flags & PENDING else event.words[0] & 0xFFFFFFFF
        answer = {**span.args.pop("asked", {}), "found_tokens": found}
        answers = span.args.setdefault("lookups", [])
        if len(answers) < _MOST_ANSWERS and answers[-1:] != [answer]:
            answers.append(answer)
        span.args["num_lookups"] = span.args.get("num_lookups", 0) + 1

    def _schedule(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        self._num_scheduled += 1
        self._num_tokens += halves(event.words[0])[1]
        return self._of_request(event)

    # ---- transfers ----

    def _begin_load(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        yield from self._of_request(event)
        if event.flags & FAILED:
            return
        first, end = halves(event.words[1])
        args = {"request": self._name(event.number), "tokens": (end - first) * self._hash_tokens}
        transfer = event.words[0]
        yield from self._loads.begin(transfer, f"load {transfer}", self._now_ns, args, "waits for a plan")

    def _plan_load(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        if span := self._loads.open.get(event.words[0]):
            span.enter("on the ranks", self._now_ns)
        yield from ()

    def _end_load(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        return self._loads.end(event.words[0], self._now_ns, ended=FATES[event.flags].value)

    def _store(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        transfer, counts = event.words[:2]
        args = {"request": self._name(event.number), "class": halves(counts)[0], "blocks": halves(counts)[1]}
        yield from self._stores.begin(transfer, f"store {transfer}", self._now_ns, args)

    def _abort(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        for transfer in event.words:
            if span := self._stores.open.get(transfer):
                span.args["is_aborted"] = True
        yield from ()

    def _end_store(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        num_stored, num_skipped = halves(event.words[1])
        ended = "failed" if event.flags & FAILED else "ended"
        return self._stores.end(
            event.words[0], self._now_ns, ended=ended, stored_blocks=num_stored, skipped_blocks=num_skipped
        )

    def _name(self, number: int) -> str:
        span = self._requests.open.get(number)
        return span.name if span else f"number {number}" if number else "several"

    # ---- steps ----

    def _plan(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        yield from self._end_step(event)
        args = {"requests": self._num_scheduled, "tokens": self._num_tokens}
        self._num_scheduled = self._num_tokens = 0
        yield from self._steps.begin(0, f"step {event.number}", self._now_ns, args)

    def _end_plan(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        if span := self._steps.open.get(0):
            span.args["stores"], span.args["loads"] = halves(event.words[0])
        yield from ()

    def _end_step(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        return self._steps.end(0, self._now_ns)

    def _mark(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        text = text_of(event.words) if event.kind in {"threw", "broken invariant"} else ""
        yield self._steps.mark(_MARKS[event.kind], self._now_ns, {"text": text} if text else {})


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


def write(file: _core.RecordingFile, ranks: Iterable[_core.RecordingFile], target: Path) -> None:
    """Write the timeline of an engine's recording and its ranks' into a new file that only this user can open.

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
                _write_events(Timeline(file, ranks).events(), about, out)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise ConfigError(f"cannot write {target}: File exists; name a file that does not exist") from None
    except OSError as error:
        raise ResourceError(f"cannot write {target}: {error.strerror}") from None


def _write_events(events: Iterable[Traced], about: dict[str, Any], out: TextIO) -> None:
    out.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [')
    separator = "\n"
    for event in events:
        out.write(separator + json.dumps(event))
        separator = ",\n"
    out.write("\n]}\n")
    out.flush()  # What cannot be written is not left for the close.
