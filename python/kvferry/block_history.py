# SPDX-License-Identifier: Apache-2.0
"""What became of blocks, as an engine's recording has it."""

import bisect
import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvferry import _core

# Flags of events: recorder/event.hpp.
FAILED = 1
"""The flag of a store or a load that failed."""


def halves(word: int) -> tuple[int, int]:
    """Return the low and the high half of a word."""
    return word & 0xFFFFFFFF, word >> 32


class Reason(enum.Enum):
    """Why a block was not in the tier when it was looked for. The value is the text for people, after "the block"."""

    NEVER_OFFERED = "was never stored: no request had computed and offered it"
    UNKNOWN = "was not stored in the time that the recording covers"
    BEING_STORED = "was being stored"
    DECLINED = "was not stored: the tier's policy did not admit it (admission)"
    DEFERRED = "waited to be stored: the plan and the ranks' rings had no room"
    EXHAUSTED = "waited to be stored: the tier had no free slot, and none could be evicted"
    REALLOCATED = "was not stored: its GPU block was given to another request before its turn"
    UNWANTED = "was not stored: a limit of its request, or of the engine, excluded it"
    RING_FULL = "waited to be stored: a rank had no room in its ring"
    STORE_FAILED = "was not stored: a rank could not copy it"
    STORE_ABORTED = "was not stored: its store was aborted"
    EVICTED = "was evicted, to make room for others"
    FORGOTTEN = "was forgotten: a reset, other weights, or a load that failed"
    CHUNK_GONE = "was dropped with its chunk of memory"
    DAMAGED = "was withdrawn: a rank found that its bytes are not what was stored"
    OTHER_WEIGHTS = "is there for other weights of the model only"
    # An answer is kept while its request waits and nothing is evicted.
    THERE = "came after the request had asked first, and that answer was kept"


SKIPS = (
    Reason.DECLINED,
    Reason.DEFERRED,
    Reason.EXHAUSTED,
    Reason.REALLOCATED,
    Reason.UNWANTED,
    Reason.RING_FULL,
)
NOT_STORED = {Reason.STORE_FAILED, Reason.STORE_ABORTED}
_LEAVINGS = (Reason.EVICTED, Reason.FORGOTTEN, Reason.CHUNK_GONE, Reason.DAMAGED)


class Change(NamedTuple):
    """Something that happened to a block; `store`: the store that it belongs to, or None."""

    position: int
    reason: Reason
    store: int | None


def _reason_of(event: _core.RecordedEvent) -> Reason:
    """Return what an event of `Recording.about` says about its block."""
    if event.kind == "skipped":
        return SKIPS[event.flags]
    if event.kind == "left":
        return _LEAVINGS[event.flags]
    if event.kind == "store":
        return Reason.BEING_STORED
    if event.kind == "aborted":
        return Reason.STORE_ABORTED
    if event.kind == "store ended" and event.flags & FAILED:
        return Reason.STORE_FAILED
    return Reason.THERE


class Histories:
    """What happened to blocks, by key. What was asked once is kept."""

    def __init__(self, events: _core.Recording) -> None:
        self._events = events
        self._changes: dict[int, list[Change]] = {}

    def since(self, key: int, position: int) -> list[Change]:
        """Return the changes of a block from `position` on, in their order."""
        changes = self._of(key)
        return changes[bisect.bisect_left(changes, position, key=_position) :]

    def before(self, key: int, position: int) -> tuple[Reason, int | None, int | None]:
        """Return what had become of a block at `position`, and when that and its last store happened."""
        changes = self._of(key)
        end = bisect.bisect_left(changes, position, key=_position)
        if end == 0:
            return Reason.NEVER_OFFERED, None, None
        stored = next((changes[i] for i in range(end - 1, -1, -1) if changes[i].reason is Reason.THERE), None)
        return changes[end - 1].reason, self._time_of(changes[end - 1]), self._time_of(stored) if stored else None

    def _of(self, key: int) -> list[Change]:
        if key not in self._changes:
            self._changes[key] = list(_changes(self._events.about(key)))
        return self._changes[key]

    def _time_of(self, change: Change) -> int:
        return self._events.times([change.position])[0]


def _changes(events: Iterable[_core.RecordedEvent]) -> Iterator[Change]:
    """Yield what the events changed.

    The end of a store changes only a block that is still being stored by it: a rank may have skipped the block, or the
    store may have been aborted before.
    """
    stored_by: int | None = None
    for event in events:
        reason = _reason_of(event)
        store = event.words[0] if event.words else None
        if reason is Reason.BEING_STORED:
            stored_by = store
        elif store is None or store == stored_by:
            stored_by = None
        else:
            continue
        yield Change(event.position, reason, store)


def _position(change: Change) -> int:
    return change.position
