# SPDX-License-Identifier: Apache-2.0
"""A scheduler side that is recorded: its file is read while it lives and after it, and replayed."""

import stat
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.errors import ConfigError, RecordingError
from test_core_options import SCHEDULER_OPTIONS

RING_BYTES = 1 << 16


def recorded(path: Path, **changes: Any) -> _core.SchedulerEngine:
    return _core.SchedulerEngine(
        **SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=RING_BYTES, **changes
    )


def test_calls_and_decisions_are_read_while_the_engine_lives_and_replayed_after_it(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = recorded(path)
    file = _core.RecordingFile(str(path))
    assert file.version == _core.__version__
    assert file.ring_bytes == RING_BYTES
    assert "hash_tokens 16" in file.config
    hashes = [bytes([i]) * 32 for i in range(1, 4)]
    engine.on_request("a prompt", hashes, None, None)
    assert engine.lookup("a prompt", hashes, 0, 49) == 0
    engine.on_finished("a prompt", 0)
    recording = file.read()
    events = recording.select()
    assert [event.kind for event in events] == ["request", "hashes", "lookup", "found", "missing", "finished"]
    assert [event.number for event in events] == [1] * 6
    assert b"a prompt" in b"".join(word.to_bytes(8, "little") for word in events[0].words)
    assert len(events[1].words) == 2 + len(hashes)
    assert [event.kind for event in recording.select(["found", "missing"], 1)] == ["found", "missing"]
    assert recording.select(["found"], 2) == []
    with pytest.raises(ValueError, match="no kind of event is called nothing"):
        recording.select(["nothing"])
    later = file.read(recording.end)
    assert (later.begin, later.end, later.select()) == (recording.end, recording.end, [])
    engine.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert _core.replay_recording(str(path)) == (3, 6, None, None)


def test_events_are_found_by_number_and_by_time(tmp_path: Path) -> None:
    engine = recorded(tmp_path / "recording")
    for i in range(5):
        engine.on_request(f"request {i % 3}", [], None, None)
        engine.lookup(f"request {i % 3}", [bytes([i]) * 32], 0, 17)
    recording = _core.RecordingFile(str(tmp_path / "recording")).read()
    events = recording.select()
    numbers = {event.number for event in events}
    assert len(numbers) > 3
    for number in numbers | {99}:
        of_it = [event.position for event in events if event.number == number]
        assert [event.position for event in recording.select(number=number)] == of_it
    newest, expected = 0, []
    for event in events:
        newest = event.words[0] if event.kind in {"request", "lookup"} else newest
        expected.append(newest)
    assert recording.times([event.position for event in events]) == expected
    assert recording.times([recording.end, recording.begin]) == [newest, expected[0]]
    assert recording.about(1) == []
    engine.close()


def test_a_path_in_use_and_a_file_that_is_no_recording_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(b"x" * 4096)
    with pytest.raises(ConfigError, match="exists already"):
        recorded(path)
    with pytest.raises(RecordingError, match="another file"):
        _core.RecordingFile(str(path))
    with pytest.raises(RecordingError, match="another file"):
        _core.replay_recording(str(path))
    with pytest.raises(ConfigError, match="power of two"):
        _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(tmp_path / "odd"), recorder_ring_bytes=1000)
