# SPDX-License-Identifier: Apache-2.0
"""What was under way when an engine ended, as ``kvferry dump --books`` prints it."""

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, prompt_of
from kvferry import _core, recordings
from kvferry.cli.app import app
from kvferry.errors import Error, RecordingError
from scenarios import PROMPTS, SLOW_LOADS, Make, start_loading, store_all
from test_core_options import SCHEDULER_OPTIONS
from typer.testing import CliRunner


def books_of(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["dump", "--books", "--file", str(path)])
    assert result.exception is None, result.output
    books: dict[str, Any] = json.loads(result.output)
    return books


@pytest.fixture
def loading(make: Make) -> Iterator[ToyEngine]:
    """An engine with a load under way; its recording goes, although an error ends it."""
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    start_loading(engine, "loading", PROMPTS["b"])
    path = engine.recording
    yield engine
    path.unlink(missing_ok=True)


def break_off(engine: ToyEngine) -> None:
    """End the engine as an error of the core does."""
    meta = types.SimpleNamespace(reports=[b"no report"])
    output = types.SimpleNamespace(invalid_block_ids=None, failed_recving=None, kv_connector_worker_meta=meta)
    with pytest.raises(Error):
        engine.scheduler.connector.scheduler_side.on_worker_output(output)


def check_loading(books: dict[str, Any], engine: ToyEngine) -> None:
    [request] = books["requests"]
    assert (request["id"], request["status"]) == ("loading", "loading")
    [load] = books["loads"]
    assert (load["id"], load["status"], load["transfer"]) == ("loading", "sent", request["load"])
    assert load["silent_ranks"] == [0]
    assert books["stores"] == []
    assert books["figures"] == engine.snapshot()


def test_an_error_that_ends_an_engine_leaves_its_books(loading: ToyEngine, log_lines: list[str]) -> None:
    break_off(loading)
    path = loading.recording
    assert any("kvferry dump --books --file" in line for line in log_lines)
    books = books_of(path)
    assert books["source"] == "recorded"
    assert "message of 9 bytes" in books["error"]
    assert books["at"] == pytest.approx(recordings.look_at(path).began, abs=600)
    check_loading(books, loading)
    # A dump of it has them too, and so does a replay.
    replayed, error = _core.replayed_books(str(recordings.dump(path)))
    check_loading(json.loads(replayed), loading)
    assert error is not None
    assert books["error"] in error


def test_a_living_engine_has_no_books_and_a_replay_finds_them(loading: ToyEngine) -> None:
    books = books_of(loading.recording)
    assert (books["source"], books["error"]) == ("replayed", None)
    check_loading(books, loading)


def test_books_that_nobody_has_are_an_error_that_says_why(make: Make) -> None:
    engine = make({"recorder_bytes": "64KiB"})
    for i in range(40):
        engine.generate({f"r{i}": prompt_of(100 + i, 150)}, max_tokens=40)
    with pytest.raises(RecordingError, match=r"when an error ends it.*were overwritten"):
        recordings.books(engine.recording)


# The figures have a line for each rank. An event of the smallest ring has 8 KiB.
@pytest.mark.parametrize(("world_size", "num_named"), [(1, 10), (200, 2), (400, None)])
def test_a_small_ring_has_books_of_fewer_or_none(tmp_path: Path, world_size: int, num_named: int | None) -> None:
    path = tmp_path / "recording"
    options = SCHEDULER_OPTIONS | {
        "world_size": world_size, "slot_bytes": [SCHEDULER_OPTIONS["slot_bytes"][0] * world_size],
        "replicas": [(1, 0)] * world_size,
    }  # fmt: skip
    engine = _core.SchedulerEngine(**options, recorder_path=str(path), recorder_ring_bytes=1 << 16)
    for i in range(40):
        engine.on_request(f"{i}" + 64 * '"', [], None, None)
    with pytest.raises(Error):
        engine.fold([b"no report"])
    engine.close()
    books = books_of(path)
    assert books["source"] == ("replayed" if num_named is None else "recorded")
    assert "message of 9 bytes" in books["error"]
    assert [one["request"] for one in books["requests"]] == list(range(1, 1 + (num_named or 10)))
    assert books["figures"]["num_requests"] == 40


def test_a_recording_that_a_replay_contradicts_has_no_books(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=1 << 16)
    engine.on_request("a", [bytes([7]) * 32], None, None)
    engine.lookup("a", [bytes([7]) * 32], 0, 17)
    found = next(one for one in _core.RecordingFile(str(path)).read().select(["found"]))
    engine.close()
    content = bytearray(path.read_bytes())
    content[-(1 << 16) + 8 * (found.position + 1)] += 1
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="decides otherwise"):
        recordings.books(path)


def test_damaged_books_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=1 << 16)
    with pytest.raises(Error):
        engine.fold([b"no report"])
    engine.close()
    path.write_bytes(path.read_bytes().replace(b'"requests": [', b'"requests": {'))
    with pytest.raises(RecordingError, match="its books are no JSON"):
        recordings.books(path)
