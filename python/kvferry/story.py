# SPDX-License-Identifier: Apache-2.0
"""The story of a request, as its engine's recording has it: what was looked up, found, missing, loaded and stored."""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence

from kvferry import _core
from kvferry.block_history import FAILED, NOT_STORED, SKIPS, Histories, Reason, halves
from kvferry.errors import ConfigError
from kvferry.rank_loads import RankLoad, loads_of
from kvferry.recordings import configured_number, named, wall_s

# Flags and layouts of events: recorder/event.hpp.
_ID_AT = 3
_MOST_ID_BYTES = 64
PENDING = 1


@dataclasses.dataclass(frozen=True)
class Missing:
    """The first block that a lookup missed in a KV cache group.

    Attributes
    ----------
    group
        The group's number.
    token
        The first token of the block.
    reason
        Why it was not there.
    since_ns, stored_ns
        How long before the lookup that happened, and how long before it the block was stored last; None: unknown, or
        never.

    """

    group: int
    token: int
    reason: Reason
    since_ns: int | None = None
    stored_ns: int | None = None


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A question of the engine to the tier.

    Attributes
    ----------
    at_ns
        When, by the recording's clock.
    num_local_tokens
        Tokens in the engine's own cache.
    num_tokens
        Tokens of the request.
    num_found
        Tokens that the tier could load after those; None: ask again.
    awaited
        The request whose load it waits for; empty: none.
    is_put_off
        Whether it is to ask again because loaded requests behind it come first.
    missing
        Why there were not more.
    times
        How often it was asked in a row with this answer.

    """

    at_ns: int
    num_local_tokens: int
    num_tokens: int
    num_found: int | None
    awaited: str
    missing: tuple[Missing, ...]
    is_put_off: bool = False
    times: int = 1


class Fate(enum.Enum):
    """How a load ended."""

    LOADED = "loaded"
    FAILED = "failed"
    ABORTED = "ended after its request was finished"
    STALE = "ended for an earlier request of this id"
    UNDER_WAY = "under way when the recording ends"


FATES = (Fate.LOADED, Fate.FAILED, Fate.ABORTED, Fate.STALE)


@dataclasses.dataclass(frozen=True)
class Load:
    """A load for the request.

    Attributes
    ----------
    transfer, num_tokens
        Its number, and the tokens that it brings.
    begun_ns, planned_ns, ended_ns
        When the engine allocated its blocks, when a plan had it, and when every rank had reported its end, by the
        recording's clock; None: not in the recording.
    told_ns
        When the engine was told of a failed load, which the ranks announce first. It is told of others as they end.
    fate
        How it ended.
    ranks
        The same on each rank whose recording is there.

    """

    transfer: int
    num_tokens: int
    begun_ns: int
    planned_ns: int | None
    ended_ns: int | None
    told_ns: int | None
    fate: Fate
    ranks: tuple[RankLoad, ...] = ()


@dataclasses.dataclass(frozen=True)
class Story:
    """What a recording has about a request.

    Attributes
    ----------
    request
        Its id.
    number
        Its number in the recording.
    arrived_ns, finished_ns
        When; None: not in the recording.
    began_ns
        When the recording begins.
    is_whole
        Whether the recording still has its beginning.
    lookups, loads
        In their order.
    num_stored, num_failed_stores
        Blocks of it that came into the tier since it arrived, and stores with blocks of it that failed or were aborted.
    skipped
        Blocks that were not stored, or not at once, by reason. A block may be counted for several.

    """

    request: str
    number: int
    arrived_ns: int | None
    finished_ns: int | None
    began_ns: int
    is_whole: bool
    lookups: tuple[Lookup, ...]
    loads: tuple[Load, ...]
    num_stored: int
    num_failed_stores: int
    skipped: dict[Reason, int]


class Stories:
    """Reads stories from a recording: a copy of its events, taken once.

    Parameters
    ----------
    file
        The engine's recording.
    ranks
        Those of its ranks, as far as they are there.

    Raises
    ------
    RecordingError
        The file is no recording.
    ResourceError
        It cannot be read.

    """

    def __init__(self, file: _core.RecordingFile, ranks: Iterable[_core.RecordingFile] = ()) -> None:
        self.file = file
        self._rank_loads = loads_of(ranks)
        self._events = file.read()
        config = named(file.config)
        self._hash_tokens = configured_number(config, "hash_tokens", 1)
        self._weights = configured_number(config, "weights", 0)
        self._all_weights = {self._weights} | {event.words[1] for event in self._events.select(["weights"])}
        groups = [line.split() for line in file.config.splitlines() if line.startswith("group ")]
        self._hashes_per_block = [int(words[4]) for words in groups]
        self._arrivals = {event.number: event for event in self._events.select(["request"])}
        self._histories = Histories(self._events)

    def wall_s(self, at_ns: int) -> float:
        """Return a time of the recording as seconds since 1970."""
        return wall_s(self.file, at_ns)

    def requests(self) -> list[tuple[int, str]]:
        """Return number and id of the requests that arrived, the oldest first."""
        return [(number, id_of(event.words)) for number, event in sorted(self._arrivals.items())]

    def find(self, request: str) -> list[int]:
        """Return the numbers of the requests with this id, the oldest first; ids are compared as far as recorded.

        Raises
        ------
        ConfigError
            There is none, or only a part of an id was given that several requests have.

        """
        ids = self.requests()
        recorded = request.encode()[:_MOST_ID_BYTES].decode(errors="replace")
        exact = [number for number, name in ids if name == recorded]
        if exact:
            return exact
        alike = {name for _, name in ids if request in name}
        if len(alike) == 1:
            return [number for number, name in ids if name in alike]
        if alike:
            shown = ", ".join(sorted(alike)[:5])
            raise ConfigError(f"{len(alike)} requests have {request!r} in their id: {shown}; name one")
        covers = f"the recording has {len(ids):,} requests" + (f", from {ids[0][1]} to {ids[-1][1]}" if ids else "")
        raise ConfigError(f"no request is called {request!r}; {covers}")

    def of(self, number: int) -> Story:
        """Tell the story of a request by its number."""
        own = self._events.select(
            [
                "request", "lookup", "found", "missing", "load begun", "load", "load ended", "told", "skipped",
                "finished",
            ],
            number,
        )  # fmt: skip
        arrival = self._arrivals.get(number)
        finished = [event for event in own if event.kind == "finished"]
        skipped: dict[Reason, int] = {}
        for event in own:
            if event.kind == "skipped":
                reason = SKIPS[event.flags]
                skipped[reason] = skipped.get(reason, 0) + len(event.words)
        arrived_at = arrival.position if arrival else 0
        keys = self._keys(number)
        others = self._under_all_weights(own)
        changes = {key: self._histories.since(key, arrived_at) for key in keys}
        return Story(
            request=id_of(arrival.words) if arrival else f"number {number}",
            number=number,
            arrived_ns=arrival.words[0] if arrival else None,
            finished_ns=finished[-1].words[0] if finished else None,
            began_ns=self._events.times([self._events.begin])[0] or self.file.steady_ns,
            is_whole=self._events.begin == 0,
            lookups=tuple(merged(self._lookups(own, others))),
            loads=tuple(self._loads(own)),
            num_stored=sum(any(one.reason is Reason.THERE for one in of_it) for of_it in changes.values()),
            num_failed_stores=len(
                {one.store for of_it in changes.values() for one in of_it if one.reason in NOT_STORED}
            ),
            skipped=skipped,
        )

    def _keys(self, number: int) -> set[int]:
        """Return the keys of a request's blocks in all groups, under the weights that the engine had first."""
        hashes: dict[int, int] = {}  # by index
        num_bytes = 0
        for event in self._events.select(["hashes"], number):
            num_bytes = event.words[0] >> 32 & 0xFFFF or num_bytes  # the same for all hashes of an engine
            first, step = halves(event.words[1]) if len(event.words) > 1 else (0, 1)
            hashes.update((first + i * step, word) for i, word in enumerate(event.words[2:]))
        keys: set[int] = set()
        for group, per_block in enumerate(self._hashes_per_block):
            ends = [word for index, word in hashes.items() if (index + 1) % per_block == 0]
            keys.update(_core.recorded_keys(ends, num_bytes, group, self._weights))
        return keys

    def _under_all_weights(self, own: Sequence[_core.RecordedEvent]) -> dict[int, set[int]]:
        """Return, for the key of each block that a lookup missed, its keys under all weights, and the key itself."""
        absent = [event for event in own if event.kind == "missing"]
        return {
            event.words[0]: {event.words[0]}
            | {
                _core.recorded_keys([event.words[1]], event.words[2] & 0xFFFF, event.words[2] >> 16 & 0xFFFF, one)[0]
                for one in self._all_weights
            }
            for event in absent
        }

    def _lookups(self, own: Sequence[_core.RecordedEvent], others: dict[int, set[int]]) -> Iterator[Lookup]:
        asked: _core.RecordedEvent | None = None
        answer: _core.RecordedEvent | None = None
        missing: list[Missing] = []
        for event in [*own, None]:
            if event is not None and event.kind == "missing":
                # A ring can begin behind the question.
                if asked is not None:
                    missing.append(self._missing(event, others[event.words[0]], asked.words[0]))
                continue
            if asked is not None and answer is not None:
                yield self._lookup(asked, answer, missing)
                asked, answer, missing = None, None, []
            if event is not None and event.kind == "lookup":
                asked = event
            elif event is not None and event.kind == "found" and asked is not None:
                answer = event

    def _lookup(self, asked: _core.RecordedEvent, answer: _core.RecordedEvent, missing: Iterable[Missing]) -> Lookup:
        is_pending = bool(answer.flags & PENDING)
        awaited = answer.words[2] & 0xFFFFFFFF if is_pending and len(answer.words) > 2 else 0
        local, tokens = halves(asked.words[1])
        return Lookup(
            at_ns=asked.words[0],
            num_local_tokens=local,
            num_tokens=tokens,
            num_found=None if is_pending else answer.words[0] & 0xFFFFFFFF,
            awaited=id_of(self._arrivals[awaited].words) if awaited in self._arrivals else "",
            missing=tuple(missing),
            is_put_off=is_pending and len(answer.words) == 1,
        )

    def _missing(self, event: _core.RecordedEvent, keys: set[int], at_ns: int) -> Missing:
        """Say why a block was missing, of which `keys` are the keys under all weights."""
        group, position = halves(event.words[3])
        reason, since_ns, stored_ns = self._histories.before(event.words[0], event.position)
        if reason is Reason.NEVER_OFFERED:
            others = (self._histories.before(key, event.position)[0] for key in keys - {event.words[0]})
            if Reason.THERE in others:
                reason = Reason.OTHER_WEIGHTS
            elif self._events.begin > 0:
                reason = Reason.UNKNOWN
        return Missing(
            group=group,
            token=position * self._hash_tokens,
            reason=reason,
            since_ns=None if since_ns is None else at_ns - since_ns,
            stored_ns=None if stored_ns is None else at_ns - stored_ns,
        )

    def _loads(self, own: Sequence[_core.RecordedEvent]) -> Iterator[Load]:
        for begun in own:
            if begun.kind != "load begun" or begun.flags & FAILED:
                continue
            transfer = begun.words[0]
            first, end = halves(begun.words[1])

            def of_it(kind: str, transfer: int = transfer) -> _core.RecordedEvent | None:
                return next((one for one in own if one.kind == kind and one.words[:1] == [transfer]), None)

            planned, ended = of_it("load"), of_it("load ended")
            told = next((one for one in own if one.kind == "told" and ended and one.position > ended.position), None)
            yield Load(
                transfer=transfer,
                num_tokens=(end - first) * self._hash_tokens,
                begun_ns=self._time_of(begun),
                planned_ns=self._time_of(planned) if planned else None,
                ended_ns=self._time_of(ended) if ended else None,
                told_ns=self._time_of(told) if told else None,
                fate=FATES[ended.flags] if ended else Fate.UNDER_WAY,
                ranks=self._rank_loads.get(transfer, ()),
            )

    def _time_of(self, event: _core.RecordedEvent) -> int:
        return self._events.times([event.position])[0]


def merged(lookups: Iterable[Lookup]) -> Iterator[Lookup]:
    """Merge questions that follow each other with the same answer for the same reasons: some come in each step."""
    last: Lookup | None = None
    for one in lookups:
        if last is not None and _as_answered(one) == _as_answered(last):
            last = dataclasses.replace(last, times=last.times + one.times)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _as_answered(lookup: Lookup) -> object:
    """Return all of a lookup but its times."""
    missing = tuple((each.group, each.token, each.reason, each.stored_ns is None) for each in lookup.missing)
    return dataclasses.replace(lookup, at_ns=0, missing=(), times=1), missing


def id_of(words: Sequence[int]) -> str:
    """Return the engine's id of a request from the words of its "request" event."""
    return text_of(words[_ID_AT:])


def text_of(words: Sequence[int]) -> str:
    """Return the text that an event's words hold; what a terminal would not print is a question mark."""
    content = b"".join(word.to_bytes(8, "little") for word in words).split(b"\0", 1)[0]
    return "".join(one if one.isprintable() else "?" for one in content.decode(errors="replace"))
