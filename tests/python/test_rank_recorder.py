# SPDX-License-Identifier: Apache-2.0
"""What a rank records, held against what its engine's scheduler side records of the same plans and reports."""

import os
import random
import shutil
import stat
from pathlib import Path

import pytest
from harness import ToyEngine, expected_tokens
from kvferry import _core, recordings
from kvferry.cli.app import app
from kvferry.errors import Error
from kvferry.story import Fate, Stories
from kvferry.vllm.metadata import KvFerryMetadata
from kvferry.vllm.recorder import RankRecorder
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import PROMPTS, Make, store_all
from seeds import seed_range
from test_core_options import SCHEDULER_OPTIONS
from test_timeline import Shown, check_shape
from typer.testing import CliRunner

pytestmark = pytest.mark.usefixtures("own_dumps")
ORDERS = ["store", "load", "cancels", "expiries", "notice", "chunks", "planned"]
# Flags of events: recorder/event.hpp.
HAS_ENDED, IS_LOAD = 1, 4


def rank_path_of(engine: ToyEngine, rank: int = 0) -> Path:
    path = engine.workers[rank].connector.worker_side._recorder.path
    assert path is not None
    return Path(path)


def read(path: Path) -> _core.Recording:
    return _core.RecordingFile(str(path)).read()


def said(events: list[_core.RecordedEvent]) -> list[tuple[str, int, int, list[int]]]:
    return [(one.kind, one.flags, one.number, one.words) for one in events]


def ends_in(rank: _core.Recording) -> list[int]:
    """The transfers that have ended, as the rank saw it."""
    ends = []
    for one in rank.select(["load", "gathered", "copied"]):
        if one.kind == "copied":
            ends.append(one.words[1])
        elif (one.kind == "gathered" and one.flags & HAS_ENDED) or (one.kind == "load" and len(one.words) == 1):
            ends.append(one.words[0])
    return ends


@pytest.mark.parametrize("seed", seed_range(2))
def test_a_rank_of_a_random_life_records_every_plan_and_every_end(
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
    live(engine, rng, prompts, expected_tokens(folder, prompts, max_tokens=NUM_TOKENS), f"seed {seed}", num_steps=500)
    scheduler, rank = read(engine.recording), read(rank_path_of(engine))

    orders = said(rank.select(ORDERS))
    assert orders == said(scheduler.select(ORDERS))[: len(orders)]
    plans = [one.number for one in rank.select(["planned"])]
    assert [one.number for one in rank.select(["bound"])] == plans == list(range(plans[0], plans[0] + len(plans)))
    assert len(plans) > 100

    ends = ends_in(rank)
    assert len(set(ends)) == len(ends)
    ordered = {one.words[0] for one in rank.select(["store", "load"])}
    assert set(ends) <= ordered
    told = {one.words[0] for one in scheduler.select(["load ended", "store ended"])}
    assert told <= set(ends)
    reports = [one.number for one in scheduler.select(["report"])]
    assert reports == [one.number for one in rank.select(["reported"])][: len(reports)]
    times = [one.words[0] for one in rank.select(["bound", "saved", "copied", "reported"])]
    assert times == sorted(times)

    shown = Shown(engine.recording, tmp_path / "timeline.json")
    check_shape(shown)
    spans = {int(one["name"].split()[1]): one for one in shown.spans("rank 0")}
    assert spans.keys() == ordered
    copied = {one.words[1]: one for one in rank.select(["copied"])}
    for transfer, event in copied.items():
        span = spans[transfer]
        assert span["name"] == f"{'load' if event.flags & IS_LOAD else 'store'} {transfer}"
        assert shown.times(span)[1] == event.words[0]
        assert span["args"]["ended"] == ["done", "failed", "cancelled"][event.flags & 3]
        assert span["args"]["bytes"] == event.words[4]
    stories = Stories(_core.RecordingFile(str(engine.recording)), recordings.ranks_of(engine.recording))
    loads = {load.transfer: load for number, _ in stories.requests() for load in stories.of(number).loads}
    for transfer, load in loads.items():
        [of_rank] = load.ranks or [None]
        # What no plan had is on no rank.
        assert (of_rank is None) == (transfer not in ordered)
        if of_rank is None:
            continue
        assert load.planned_ns is not None
        assert load.planned_ns <= of_rank.got_ns
        if (event := copied.get(transfer)) is not None:
            assert of_rank.ended_ns == event.words[0]
            assert of_rank.queued_ns == (event.words[2] if event.words[3] else None)
            assert load.ended_ns is None or of_rank.ended_ns <= load.ended_ns
    under_way = {transfer for transfer, span in spans.items() if span["args"]["ended"] == Fate.UNDER_WAY.value}
    assert under_way == ordered - set(ends)


def test_a_dump_is_one_file_with_the_ranks(make: Make, tmp_path: Path) -> None:
    engine = make()
    store_all(engine)
    engine.generate({f"{name} again": prompt for name, prompt in PROMPTS.items()})
    dumped = recordings.dump(engine.recording)
    assert stat.S_IMODE(dumped.stat().st_mode) == 0o600
    file = _core.RecordingFile(str(dumped))
    assert file.has_next
    part = _core.RecordingFile(str(dumped), 1)
    assert not part.has_next
    assert recordings.named(part.config)["rank"] == "0"
    assert said(part.read().select()) == said(read(rank_path_of(engine)).select())
    # A copy of the copy, and the engine's replay.
    again_dumped = recordings.dump(dumped, tmp_path / "copy")
    assert [one.pid for one in recordings.ranks_of(again_dumped)] == [os.getpid()]
    result = CliRunner().invoke(app, ["replay", str(again_dumped)])
    assert "the same" in result.output
    shown = Shown(again_dumped, tmp_path / "timeline.json")
    check_shape(shown)
    assert shown.spans("rank 0")


@pytest.mark.parametrize("extra", [{}, {"share_replicated_kv": False}], ids=["replicas", "own arenas"])
def test_every_rank_has_got_the_same_plans(make: Make, tmp_path: Path, extra: dict[str, bool]) -> None:
    engine = make(extra, world_size=3)
    store_all(engine)
    engine.generate({f"{name} again": prompt for name, prompt in PROMPTS.items()})
    ranks = [read(rank_path_of(engine, rank)) for rank in range(3)]
    assert said(ranks[0].select(ORDERS)) == said(ranks[1].select(ORDERS)) == said(ranks[2].select(ORDERS))
    ends = [ends_in(one) for one in ranks]
    assert set(ends[0]) == set(ends[1]) == set(ends[2])
    dumped = recordings.dump(engine.recording)
    numbers = [recordings.named(one.config)["rank"] for one in recordings.ranks_of(dumped)]
    assert numbers == ["0", "1", "2"]
    shown = Shown(dumped, tmp_path / "timeline.json")
    check_shape(shown)
    assert all(shown.spans(f"rank {rank}") for rank in range(3))


def test_the_recording_of_a_rank_is_no_engines(make: Make) -> None:
    engine = make()
    store_all(engine)
    path = rank_path_of(engine)
    assert path not in {one.path for one in recordings.find()}
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert "of a rank" in str(result.exception)


def test_the_file_is_its_users_alone_and_goes_with_its_engine(make: Make) -> None:
    engine = make()
    path = rank_path_of(engine)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    engine.close()
    assert not path.exists()


def test_nothing_is_recorded_if_nobody_wants_it(make: Make) -> None:
    engine = make({"recorder_bytes": 0})
    engine.generate(PROMPTS)
    assert engine.workers[0].connector.worker_side._recorder.path is None


def test_a_rank_works_without_room_for_a_recording(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_lines: list[str]
) -> None:
    monkeypatch.setattr(recordings, "new_path", lambda **_: tmp_path / "none" / "recording")
    engine = make()
    engine.generate(PROMPTS)
    lines = [line for line in log_lines if "is recorded" in line]
    assert len(lines) == 2
    assert all("recorder_bytes" in line for line in lines)
    assert any("rank 0" in line for line in lines)


def test_an_error_that_ends_a_rank_keeps_its_recording(make: Make, log_lines: list[str], own_dumps: Path) -> None:
    engine = make()
    store_all(engine)
    path = rank_path_of(engine)
    with pytest.raises(Error):
        engine.workers[0].connector.worker_side.bind(KvFerryMetadata(b"no plan"))
    assert any(str(path) in line for line in log_lines)
    assert read(path).last_text("threw") is not None
    engine.close()
    assert path.exists()
    path.unlink()


def leave_a_recording(rank: int, start: str) -> Path:
    """As a killed process leaves it: the file is there, and nobody has it locked."""
    path = recordings.new_path(is_rank=True)
    _core.Recorder(str(path), 1 << 16, f"rank {rank}\nstart {start}\n")
    return path


def test_what_killed_ranks_left_is_collected_with_their_engine(own_dumps: Path) -> None:
    engine_path = recordings.new_path()
    engine = _core.SchedulerEngine(
        **SCHEDULER_OPTIONS, start="one", recorder_path=str(engine_path), recorder_ring_bytes=1 << 16
    )
    own = [leave_a_recording(rank, "one") for rank in range(2)]
    other = leave_a_recording(0, "two")
    assert recordings.collect() == []
    # The engine lives. The other rank's engine has ended, and no error was recorded.
    assert [path.exists() for path in [*own, other]] == [True, True, False]
    engine.close()
    [dumped] = recordings.collect()
    assert not any(path.exists() for path in [engine_path, *own])
    ranks = recordings.ranks_of(dumped)
    assert [recordings.named(one.config)["rank"] for one in ranks] == ["0", "1"]


def test_ranks_of_a_killed_engine_leave_their_recordings_when_they_end(own_dumps: Path) -> None:
    engine_path = recordings.new_path()
    engine = _core.SchedulerEngine(
        **SCHEDULER_OPTIONS, start="three", recorder_path=str(engine_path), recorder_ring_bytes=1 << 16
    )
    ranks = [RankRecorder(1 << 20, rank, "three") for rank in range(3)]
    files = [rank.begin() for rank in ranks]
    ranks[0].close()
    assert not ranks[0].path.exists()  # type: ignore[union-attr]
    # As a killed process leaves it.
    engine.close()
    for rank in ranks:
        rank.close()
    del files
    [dumped] = recordings.collect()
    assert [recordings.named(one.config)["rank"] for one in recordings.ranks_of(dumped)] == ["1", "2"]
    assert not any(rank.path.exists() for rank in ranks)  # type: ignore[union-attr]


def test_a_rank_that_an_error_ended_is_a_dump_of_its_own(make: Make, own_dumps: Path) -> None:
    engine = make()
    path = rank_path_of(engine)
    with pytest.raises(Error):
        engine.workers[0].connector.worker_side.bind(KvFerryMetadata(b"no plan"))
    engine.close()
    # As it is without the process that has it locked.
    left = path.rename(recordings.new_path(is_rank=True).with_suffix(".moved"))
    path = recordings.new_path(is_rank=True)
    shutil.copyfile(left, path)
    path.chmod(0o600)
    left.unlink()
    [dumped] = recordings.collect()
    assert not path.exists()
    assert read(dumped).last_text("threw") is not None
    assert dumped.parent == own_dumps
