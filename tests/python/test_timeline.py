# SPDX-License-Identifier: Apache-2.0
"""The timeline that ``kvferry dump --perfetto`` writes, held against the events of the recording that it is made of."""

import itertools
import json
import random
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from harness import expected_tokens, prompt_of
from kvferry import _core
from kvferry.cli.app import app
from kvferry.story import Fate, Stories
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import PROMPTS, SLOW_LOADS, Make, start_loading, store_all
from seeds import seed_range
from test_core_options import SCHEDULER_OPTIONS
from typer.testing import CliRunner

Traced = dict[str, Any]
STAGES = {"waits", "loads", "runs", "waits for a plan", "on the ranks", "to be gathered", "queued", "copied"}


class Shown:
    """A timeline as its reader sees it."""

    def __init__(self, source: Path, target: Path) -> None:
        result = CliRunner().invoke(app, ["dump", "--file", str(source), "--perfetto", str(target)])
        assert result.exception is None, result.output
        assert result.output.strip() == str(target)
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        self.file = _core.RecordingFile(str(source))
        self.events: list[Traced] = json.loads(target.read_text())["traceEvents"]
        labels = [one for one in self.events if one["ph"] == "M"]
        self._process = {one["args"]["name"]: one["pid"] for one in labels if one["name"] == "process_name"}
        self.rows = {
            name: {one["tid"] for one in labels if one["name"] == "thread_name" and one["pid"] == process}
            for name, process in self._process.items()
        }

    def spans(self, of: str) -> list[Traced]:
        """Whole spans, in the order of their ends."""
        process = self._process[of]
        return [one for one in self.events if one["ph"] == "X" and one["pid"] == process and one["name"] not in STAGES]

    def stages(self, span: Traced) -> list[tuple[str, int, int]]:
        at = self.events.index(span)
        of_it = itertools.takewhile(lambda one: one.get("name") in STAGES, self.events[at + 1 :])
        return [(one["name"], *self.times(one)) for one in of_it]

    def times(self, span: Traced) -> tuple[int, int]:
        """Begin and end by the recording's clock."""
        begun = self.file.steady_ns + round(span["ts"] * 1e3)
        return begun, begun + round(span["dur"] * 1e3)


def check_shape(shown: Shown) -> None:
    """Each span has an end and a row with a name; spans of one row lie in each other or beside each other."""
    by_row: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for one in shown.events:
        assert one["ph"] in {"M", "X", "i"}
        if one["ph"] == "X":
            assert one["dur"] >= 0
            assert isinstance(one["args"], dict)
            by_row[one["pid"], one["tid"]].append((round(one["ts"] * 1e3), round((one["ts"] + one["dur"]) * 1e3)))
    named = {(process, row) for name, process in shown._process.items() for row in shown.rows[name]}
    assert set(by_row) <= named
    for spans in by_row.values():
        around: list[float] = []
        for begun, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begun:
                around.pop()
            assert not around or ended <= around[-1]
            around.append(ended)


def stages_of(number: int, events: list[_core.RecordedEvent], times: list[int], end: int) -> list[tuple[str, int, int]]:
    """What a request did when: its events, each a state until the next one of another state."""
    states = {"request": "waits", "preempted": "waits", "load begun": "loads", "scheduled": "runs"}
    own = [(event.kind, at) for event, at in zip(events, times, strict=True) if event.number == number]
    known: list[tuple[str, int]] = []
    for kind, at in own:
        if kind == "finished":  # A load under way ends later.
            break
        if kind in states:
            known.append((states[kind], at))
        elif kind == "told" and known[-1][0] == "loads":
            known.append(("waits", at))
    begins = [next(group) for _, group in itertools.groupby(known, key=lambda one: one[0])]
    ends = [at for _, at in begins[1:]] + [end]
    return [(state, at, until) for (state, at), until in zip(begins, ends, strict=True)]


@pytest.mark.parametrize("seed", seed_range(2))
def test_a_timeline_of_a_random_life_is_what_its_recording_has(
    make: Make, folder: Path, tmp_path: Path, is_async: bool, seed: int
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    engine = make(
        {
            "cpu_bytes_to_use": 30 * 6144, "staging_bytes": 8 * 6144, "host_link": random_link(rng, seed),
            "recorder_bytes": "64MiB",
        },
        async_scheduling=is_async, num_blocks=36,
    )  # fmt: skip
    live(engine, rng, prompts, expected_tokens(folder, prompts, max_tokens=NUM_TOKENS), f"seed {seed}", num_steps=800)
    shown = Shown(engine.recording, tmp_path / "timeline.json")
    check_shape(shown)
    recording = shown.file.read()
    stories = Stories(shown.file)

    told = {number: stories.of(number) for number, _ in stories.requests()}
    spans = {one["args"]["number"]: one for one in shown.spans("requests")}
    assert spans.keys() == told.keys()
    own = recording.select(["request", "preempted", "load begun", "scheduled", "told", "finished"])
    times = recording.times([event.position for event in own])
    for number, story in told.items():
        span = spans[number]
        assert span["name"] == story.request
        begun, ended = shown.times(span)
        assert begun == story.arrived_ns
        assert story.finished_ns is None or ended == story.finished_ns
        assert shown.stages(span) == stages_of(number, own, times, ended)
        answers = [one for one in story.lookups if one.num_found is not None]
        shown_answers = [one for one in span["args"].get("lookups", []) if one["found_tokens"] != "ask again"]
        assert shown_answers[:1] == [
            {"local_tokens": one.num_local_tokens, "tokens": one.num_tokens, "found_tokens": one.num_found}
            for one in answers[:1]
        ]
    assert len(shown.rows["requests"]) <= 10 < len(told)

    loads = {load.transfer: (load, story) for story in told.values() for load in story.loads}
    shown_loads = {int(one["name"].removeprefix("load ")): one for one in shown.spans("loads")}
    assert shown_loads.keys() == loads.keys()
    for transfer, (load, story) in loads.items():
        span = shown_loads[transfer]
        args = {"request": story.request, "tokens": load.num_tokens, "ended": load.fate.value}
        assert span["args"] == args
        begun, ended = shown.times(span)
        assert begun == load.begun_ns
        assert load.ended_ns is None or ended == load.ended_ns
        planned = [("on the ranks", load.planned_ns, ended)] if load.planned_ns is not None else []
        assert shown.stages(span) == [("waits for a plan", begun, load.planned_ns or ended), *planned]

    begun_stores = recording.select(["store"])
    ended_stores = {event.words[0]: event for event in recording.select(["store ended"])}
    begun_times = recording.times([event.position for event in begun_stores])
    at_end = dict(zip(ended_stores, recording.times([one.position for one in ended_stores.values()]), strict=True))
    shown_stores = {int(one["name"].removeprefix("store ")): one for one in shown.spans("stores")}
    assert shown_stores.keys() == {event.words[0] for event in begun_stores}
    for event, begun in zip(begun_stores, begun_times, strict=True):
        span = shown_stores[event.words[0]]
        assert span["args"]["blocks"] == (len(event.words) - 2) // 2
        assert shown.times(span)[0] == begun
        if (ended_event := ended_stores.get(event.words[0])) is not None:
            assert shown.times(span)[1] == at_end[event.words[0]]
            assert span["args"]["stored_blocks"] == ended_event.words[1] & 0xFFFFFFFF

    plans = recording.select(["plan"])
    shown_steps = shown.spans("steps")
    assert [one["name"] for one in shown_steps] == [f"step {event.number}" for event in plans]
    assert [shown.times(one)[0] for one in shown_steps] == [event.words[0] for event in plans]
    assert sum(one["args"]["requests"] for one in shown_steps) == len(recording.select(["scheduled"]))
    assert sum(one["args"]["loads"] for one in shown_steps) == len(recording.select(["load"]))
    # How many there are depends on the machine's speed: the link has its pace, and the life its number of steps.
    assert loads
    assert begun_stores


def test_what_is_under_way_ends_with_the_recording(make: Make, tmp_path: Path) -> None:
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    start_loading(engine, "loading", PROMPTS["b"])
    shown = Shown(engine.recording, tmp_path / "timeline.json")
    check_shape(shown)
    [span] = [one for one in shown.spans("requests") if one["name"] == "loading"]
    assert span["args"]["ended"] == Fate.UNDER_WAY.value
    assert [name for name, _, _ in shown.stages(span)] == ["waits", "loads"]
    [load] = shown.spans("loads")
    assert (load["args"]["request"], load["args"]["ended"]) == ("loading", Fate.UNDER_WAY.value)
    assert "ended" not in next(one for one in shown.spans("requests") if one["name"] == "b")["args"]


def test_a_recording_that_has_lost_its_beginning_has_a_timeline(make: Make, tmp_path: Path) -> None:
    engine = make({"recorder_bytes": "64KiB"})
    engine.add("long", prompt_of(99, 20), max_tokens=1500)
    for i in range(40):
        engine.add(f"r{i}", prompt_of(100 + i, 150), max_tokens=20)
        for _ in range(30):
            engine.step()
    shown = Shown(engine.recording, tmp_path / "timeline.json")
    assert shown.file.read().begin > 0
    check_shape(shown)
    [long] = [one for one in shown.spans("requests") if one["args"].get("arrived") == "before the recording"][:1]
    assert long["name"].startswith("number ")
    assert any(one["name"] == "r39" for one in shown.spans("requests"))


def test_an_id_that_is_used_again_and_an_error_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=1 << 16)
    engine.on_request("a", [], None, None)
    engine.on_request("a", [], None, None)
    with pytest.raises(_core.ProtocolError):
        engine.fold([b"no report"])
    engine.close()
    shown = Shown(path, tmp_path / "timeline.json")
    check_shape(shown)
    ends = [(one["name"], one["args"]["ended"]) for one in shown.spans("requests")]
    assert ends == [("a", "its id was used again"), ("a", Fate.UNDER_WAY.value)]
    [mark] = [one for one in shown.events if one["ph"] == "i"]
    assert mark["name"] == "error"
    assert mark["args"]["text"] != ""
