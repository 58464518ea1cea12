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
    UNWANTED = "was not stored: its request was not to be stored that far"
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


class Clock:
    """Times of positions that ascend."""

    def __init__(self, events: _core.Recording, positions: list[int]) -> None:
        self._positions = positions
        self._times = events.times(positions)

    def at(self, position: int) -> int:
        """Return the newest time up to one of the positions."""
        return int(self._times[bisect.bisect_left(self._positions, position)])


class Change(NamedTuple):
    """Something that happened to a block; `store`: the store that it belongs to, or None."""

    position: int
    reason: Reason
    store: int | None


class Histories:
    """What happened to blocks, by key, in its order."""

    def __init__(self, events: _core.Recording, keys: Iterable[int]) -> None:
        self._changes: dict[int, list[Change]] = {key: [] for key in keys}
        in_store: dict[int, list[int]] = {}
        for key, event in events.about(set(self._changes)) if self._changes else ():
            if event.kind == "store":
                transfer = event.words[0]
                in_store.setdefault(transfer, []).append(key)
                change = Change(event.position, Reason.BEING_STORED, transfer)
            elif event.kind == "skipped":
                change = Change(event.position, SKIPS[event.flags], None)
            elif event.kind == "left":
                change = Change(event.position, _LEAVINGS[event.flags], None)
            else:
                change = Change(event.position, Reason.THERE, None)
            self._changes[key].append(change)
        for event in events.select(["store ended", "aborted"]) if in_store else ():
            if event.kind == "aborted":
                reason, transfers = Reason.STORE_ABORTED, event.words
            else:
                reason = Reason.STORE_FAILED if event.flags & FAILED else Reason.THERE
                transfers = event.words[:1]
            for transfer in transfers:
                for key in in_store.get(transfer, ()):
                    self._changes[key].append(Change(event.position, reason, transfer))
        for changes in self._changes.values():
            changes.sort(key=lambda change: change.position)
        self._clock = Clock(events, sorted({one.position for changes in self._changes.values() for one in changes}))

    def of(self, key: int, first: int = 0, end: int | None = None) -> Iterator[Change]:
        """Yield the changes of a block at positions from `first` on and before `end`.

        The end of a store changes only a block that is still being stored by it: a rank may have skipped the block, or
        the store may have been aborted before.
        """
        stored_by: int | None = None
        for change in self._changes[key]:
            if end is not None and change.position >= end:
                return
            if change.reason is Reason.BEING_STORED:
                stored_by = change.store
            elif change.store is None or change.store == stored_by:
                stored_by = None
            else:
                continue
            if change.position >= first:
                yield change

    def before(self, key: int, position: int) -> tuple[Reason, int | None, int | None]:
        """Return what had become of a block at `position`, and when that and its last store happened."""
        reason, since, stored = Reason.NEVER_OFFERED, None, None
        for change in self.of(key, end=position):
            reason, since = change.reason, self._clock.at(change.position)
            if reason is Reason.THERE:
                stored = since
        return reason, since, stored
