# SPDX-License-Identifier: Apache-2.0
"""A rank's recording as a process of a timeline: what it was ordered to copy, and when it saw the copies' end."""

from collections.abc import Iterator

from kvferry import _core
from kvferry.block_history import halves
from kvferry.rank_loads import IS_LOAD, OUTCOME
from kvferry.recordings import configured_number, named
from kvferry.story import text_of
from kvferry.tracks import Traced, Track, name_process, with_times

_FIRST_PROCESS = 10
_KINDS = ["bound", "store", "load", "cancels", "saved", "gathered", "copied", "reported", "asleep", "threw",
          "broken invariant"]  # fmt: skip
_TIMED = {"bound", "saved", "copied", "reported", "asleep"}
# Flags of events: recorder/event.hpp.
_READY_NOW, _HAS_ENDED = 1, 1
_OUTCOMES = ["done", "failed", "cancelled"]
_QUEUED, _COPIED, _UNGATHERED = "queued", "copied", "to be gathered"


class RankTimeline:
    """The spans of a rank's transfers, as Chrome's trace events.

    Parameters
    ----------
    file
        The rank's recording.
    steady_ns
        When the timeline begins, by the machine's clock.

    """

    def __init__(self, file: _core.RecordingFile, steady_ns: int) -> None:
        self._file = file
        self._rank = configured_number(named(file.config), "rank", 0)
        self._track = Track(_FIRST_PROCESS + self._rank, steady_ns)
        self._now_ns = file.steady_ns

    def events(self) -> Iterator[Traced]:
        """Yield the trace events. To be called once."""
        yield from name_process(_FIRST_PROCESS + self._rank, f"rank {self._rank}")
        for now_ns, event in with_times(self._file, _KINDS, _TIMED):
            self._now_ns = now_ns
            yield from self._take(event)
        yield from self._track.end_all(self._now_ns)

    def _take(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        match event.kind:
            case "store":
                yield from self._store(event)
            case "load":
                yield from self._load(event)
            case "cancels":
                for transfer in event.words:
                    if span := self._track.open.get(transfer):
                        span.args["is_cancelled"] = True
            case "gathered":
                yield from self._gathered(event)
            case "copied":
                yield from self._copied(event)
            case "asleep":
                yield self._track.mark("asleep" if event.number else "awake", self._now_ns, {"rank": self._rank})
            case "threw" | "broken invariant":
                args = {"rank": self._rank, "text": text_of(event.words)}
                yield self._track.mark(f"error of rank {self._rank}", self._now_ns, args)

    def _store(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        transfer, (of_class, num_blocks) = event.words[0], halves(event.words[1])
        args = {"class": of_class, "blocks": num_blocks, "is_ready": bool(event.flags & _READY_NOW)}
        return self._track.begin(transfer, f"store {transfer}", self._now_ns, args, _UNGATHERED)

    def _load(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        transfer = event.words[0]
        num_blocks = 0
        at = 1
        while at < len(event.words):
            num_in_class = halves(event.words[at])[1]
            num_blocks += num_in_class
            at += 1 + num_in_class
        yield from self._track.begin(transfer, f"load {transfer}", self._now_ns, {"blocks": num_blocks}, _QUEUED)
        if num_blocks == 0:
            yield from self._track.end(transfer, self._now_ns, ended="nothing to copy")

    def _gathered(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        transfer, (num_gathered, _) = event.words[0], halves(event.words[1])
        if event.flags & _HAS_ENDED:
            yield from self._track.end(transfer, self._now_ns, gathered_blocks=num_gathered, ended="nothing to copy")
        elif span := self._track.open.get(transfer):
            span.args["gathered_blocks"] = num_gathered
            span.enter(_COPIED, self._now_ns)

    def _copied(self, event: _core.RecordedEvent) -> Iterator[Traced]:
        _, transfer, queue_ns, device_ns, num_bytes = event.words[:5]
        span = self._track.open.get(transfer)
        if span is not None and event.flags & IS_LOAD and device_ns:
            span.enter(_COPIED, min(span.begun_ns + queue_ns, self._now_ns))
        outcome = event.flags & OUTCOME
        ended = _OUTCOMES[outcome] if outcome < len(_OUTCOMES) else f"outcome {outcome}"
        args = {"bytes": num_bytes, "device_us": device_ns / 1e3, "queue_us": queue_ns / 1e3}
        if event.number:
            args["damaged_slots"] = event.number
        yield from self._track.end(transfer, self._now_ns, ended=ended, **args)
