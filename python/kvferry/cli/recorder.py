# SPDX-License-Identifier: Apache-2.0
"""``kvferry why``, ``dump`` and ``replay``: what an engine has recorded about a request, and how to keep it."""

import dataclasses
import enum
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry import _core, recordings, timeline
from kvferry.errors import ConfigError, ResourceError
from kvferry.rank_loads import RankLoad
from kvferry.story import Fate, Load, Lookup, Missing, Stories, Story

_Engine = Annotated[int | None, typer.Option("--engine", help="The engine's process id, if there are several engines.")]
_File = Annotated[Path | None, typer.Option("--file", help="A dump, or the recording of a dead engine.")]


def why(
    request: Annotated[str, typer.Argument(help="The request's id, or a part of it that no other has.")],
    engine: _Engine = None,
    file: _File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what the tier did for a request: what was found, why not more, and how long each step of a load took."""
    found = _chosen(engine, file)
    stories = Stories(_core.RecordingFile(str(found.path)), recordings.ranks_of(found.path))
    told = [stories.of(number) for number in stories.find(request)]
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in told], default=_plain, indent=2))
        return
    for one in told:
        print("\n".join(lines_of(one, stories)))


def dump(
    output: Annotated[Path | None, typer.Argument(help="The new file. Default: one in the directory of dumps.")] = None,
    engine: _Engine = None,
    file: _File = None,
    events: Annotated[int, typer.Option("--events", help="Print so many of the newest events.", min=0)] = 0,
    perfetto: Annotated[Path | None, typer.Option("--perfetto", help="Write a timeline for ui.perfetto.dev.")] = None,
    books: Annotated[bool, typer.Option("--books", help="Print, as JSON, what was under way at its end.")] = False,
) -> None:
    """Keep what an engine has recorded: a file for `kvferry why --file`, to send with a report of a fault.

    It has what the ranks on this machine recorded, too. It has hashes of blocks, ids of requests and of GPU blocks, and
    times, and no token and no text. With `--events`, `--perfetto` or `--books` it is only shown, and kept if OUTPUT is
    given.
    """
    found = _chosen(engine, file)
    if output is not None or not (events or perfetto or books):
        print(recordings.dump(found.path, output))
    if perfetto is not None:
        timeline.write(_core.RecordingFile(str(found.path)), recordings.ranks_of(found.path), perfetto)
        print(perfetto)
    if books:
        print(json.dumps(recordings.books(found.path), indent=2))
    for line in _core.RecordingFile(str(found.path)).read().texts(events) if events else ():
        print(line)


def replay(
    file: Annotated[Path, typer.Argument(help="A dump, or the recording of an engine.")],
) -> None:
    """Run the core again on what an engine was asked, and compare each decision with the recorded one.

    Needs neither vLLM nor a device. Exits with 0 if all is the same, and with 1 at the first difference. An error that
    ended the recorded engine has to come again.
    """
    num_calls, num_events, difference, last_error = _core.replay_recording(str(file))
    if difference is None:
        print(f"{num_calls:,} calls, {num_events:,} events: the same")
        if last_error is not None:
            print(f"the last call ended as recorded: {last_error}")
        return
    position, call, recorded, replayed = difference
    print(f"after {num_calls:,} calls and {num_events:,} equal events, at word {position:,}, in the call: {call}")
    print(f"  recorded: {recorded}")
    print(f"  replayed: {replayed}")
    raise typer.Exit(1)


def lines_of(story: Story, stories: Stories) -> Iterator[str]:
    """Yield a story as lines for people."""

    def clock(at_ns: int) -> str:
        wall = stories.wall_s(at_ns)
        return f"{time.strftime('%H:%M:%S', time.localtime(wall))}.{int(wall % 1 * 1000):03d}"

    arrived = f"arrived {clock(story.arrived_ns)}" if story.arrived_ns is not None else "arrived before the recording"
    ended = f"finished {clock(story.finished_ns)}" if story.finished_ns is not None else "not finished"
    yield f"{story.request}: {arrived}, {ended}"
    if not story.is_whole:
        yield f"  (the recording has lost what was before {clock(story.began_ns)})"
    steps: list[tuple[int, list[str]]] = [(one.at_ns, list(_of_lookup(one))) for one in story.lookups]
    steps += [(one.begun_ns, list(_of_load(one))) for one in story.loads]
    for at_ns, lines in sorted(steps, key=lambda step: step[0]):
        yield f"  {clock(at_ns)} {lines[0]}"
        yield from (f"               {line}" for line in lines[1:])
    if not steps:
        yield "  it was never looked up: the engine did not ask, or had it all in its own cache"
    yield "  stored: " + "; ".join(_of_stores(story))


def _of_lookup(lookup: Lookup) -> Iterator[str]:
    local = f"{lookup.num_local_tokens:,} of {lookup.num_tokens:,} tokens in the engine's own cache"
    times = f" ({lookup.times:,} times)" if lookup.times > 1 else ""
    if lookup.num_found is None:
        whom = "the ranks were not ready yet"
        if lookup.awaited:
            whom = f"{lookup.awaited} is loading the same prefix"
        elif lookup.is_put_off:
            whom = "loaded requests behind it are to run first"
        yield f"{local}; asked to come again{times}: {whom}"
        return
    yield f"{local}; the tier has {lookup.num_found:,} after them{times}"
    for missing in lookup.missing:
        yield _of_missing(missing)


def _of_missing(missing: Missing) -> str:
    when = f", {_span(missing.since_ns)} before" if missing.since_ns is not None else ""
    stored = ""
    if missing.stored_ns is not None and missing.stored_ns != missing.since_ns:
        stored = f" (stored {_span(missing.stored_ns)} before)"
    return (
        f"not from token {missing.token:,} on: the block of group {missing.group} {missing.reason.value}{when}{stored}"
    )


def _of_load(load: Load) -> Iterator[str]:
    yield f"load of {load.num_tokens:,} tokens: {load.fate.value}"
    stages = [
        ("sent to the ranks after", load.begun_ns, load.planned_ns),
        ("ended on every rank after", load.planned_ns, load.ended_ns),
        ("told to the engine after", load.ended_ns, load.told_ns),
    ]
    known = [f"{text} {_span(to - since)}" for text, since, to in stages if since is not None and to is not None]
    if known:
        yield ", ".join(known)
    # The one that the others waited for says enough.
    last = max(load.ranks, key=lambda one: one.ended_ns or sys.maxsize, default=None)
    if last is not None:
        yield _of_rank(last, len(load.ranks))


def _of_rank(load: RankLoad, num_ranks: int) -> str:
    name = f"rank {load.rank}" if num_ranks == 1 else f"rank {load.rank}, the last of {num_ranks},"
    queued = f"; its first copy began after {_span(load.queued_ns)}" if load.queued_ns is not None else ""
    if load.ended_ns is None:
        return f"{name} has not seen its end"
    return f"{name} saw its end {_span(load.ended_ns - load.got_ns)} after it got the plan{queued}"


def _of_stores(story: Story) -> Iterator[str]:
    yield f"{story.num_stored:,} blocks of it since it arrived"
    if story.num_failed_stores:
        yield f"{story.num_failed_stores:,} stores failed or were aborted"
    for reason, number in story.skipped.items():
        yield f"{number:,} {reason.value.partition(':')[2].strip() or reason.value}"


def _span(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _chosen(engine: int | None, file: Path | None) -> recordings.Found:
    if file is not None:
        if engine is not None:
            raise ConfigError("--engine and --file name two recordings; give one of them")
        return recordings.look_at(file)
    found = recordings.find()
    named = [one for one in found if engine in {None, one.pid}]
    if engine is None and (living := [one for one in found if one.is_alive]):
        named = living
    if len(named) == 1:
        return named[0]
    shown = "\n".join(
        f"  {one.path}: engine {one.pid} {one.model}, {'living' if one.is_alive else 'ended'}, "
        f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(one.began))}"
        for one in found
    )
    if not found:
        raise ResourceError(
            "no engine of this user has a recording here; an engine has one unless its recorder_bytes is 0, and is "
            "visible to its own user, in its own container; name a dump by --file"
        )
    raise ConfigError(f"name a recording by --engine or --file:\n{shown}")


def _plain(value: Any) -> Any:
    if isinstance(value, Fate):
        return value.value
    if isinstance(value, enum.Enum):
        return value.name.lower()
    raise TypeError(type(value).__name__)
