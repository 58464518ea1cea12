# SPDX-License-Identifier: Apache-2.0
"""Files that are no recordings, or none that can be read: each command says so in one line, and exits with 2."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kvferry import _core, recordings
from kvferry.cli import main
from scenarios import PROMPTS, Make, store_all
from test_core_options import SCHEDULER_OPTIONS

pytestmark = pytest.mark.usefixtures("own_dumps")
COMMANDS = {
    "why": ["why", "a", "--file"],
    "dump": ["dump", "--file"],
    "timeline": ["dump", "--perfetto", "timeline.json", "--file"],
    "events": ["dump", "--events", "5", "--file"],
    "books": ["dump", "--books", "--file"],
    "replay": ["replay"],
}
RING_BYTES = 1 << 16
NUM_FLIPS = int(os.environ.get("KVFERRY_NUM_FLIPS", "60"))
VERSION_AT = 8
"""Of the file's version in its head (recorder/src/layout.hpp)."""


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of an engine that has ended; the commands run in its folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recording"
    engine = _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=RING_BYTES)
    engine.on_request("a", [bytes([7]) * 32], None, None)
    engine.on_finished("a", 0)
    engine.close()
    return path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["kvferry", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def other_version(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[VERSION_AT] += 1
    path.write_bytes(content)


def other_event(path: Path) -> None:
    """The first event has no word, not even its head."""
    content = bytearray(path.read_bytes())
    content[-RING_BYTES : -RING_BYTES + 8] = bytes(8)
    path.write_bytes(content)


def other_number(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"hash_tokens 16", b"hash_tokens \xff6", 1))


def unlinked(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def unreadable(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")


SPOILED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "empty": (lambda path: path.write_bytes(b""), ["was cut", "0 bytes", "copy it again"]),
    "text": (lambda path: path.write_text("hello\n" * 1000), ["another file", "`kvferry dump` wrote"]),
    "short text": (lambda path: path.write_text("hello\n"), ["was cut", "6 bytes", "copy it again"]),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), ["was cut", "copy it again"]),
    "damaged": (other_event, ["damaged", "0 words", "copy it again"]),
    "another version": (other_version, ["has version", "this kvferry reads version", "use the kvferry that made it"]),
    "missing": (unlinked, ["No such file"]),
    "unreadable": (unreadable, ["Permission denied"]),
    "loop of links": (loop, ["symbolic links"]),
    "directory": (directory, ["regular file", "`kvferry dump` wrote"]),
    "pipe": (pipe, ["regular file", "`kvferry dump` wrote"]),
}


@pytest.mark.parametrize("command", ["why", "timeline", "replay"])
def test_a_configuration_that_is_none_is_one_line(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    other_number(recording)
    code, _, err = run(monkeypatch, capsys, *COMMANDS[command], str(recording))
    assert code == 2
    assert "hash_tokens" in err
    assert err.count("\n") == 1
    # The search for recordings goes on.
    assert recordings.look_at(recording).model == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_file_that_is_no_recording_is_one_line(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, spoiled: str
) -> None:
    spoil, expected = SPOILED[spoiled]
    spoil(recording)
    code, out, err = run(monkeypatch, capsys, *COMMANDS[command], str(recording))
    assert (code, out) == (2, "")
    assert err.startswith("kvferry: ")
    assert err.count("\n") == 1, err
    for part in [*expected, str(recording)]:
        assert part in err, err
    # Nothing is left of what the command would have written.
    assert [path.name for path in recording.parent.iterdir() if path.name not in {"recording", "dumps"}] == []
    assert not list(recordings.dump_directory().glob("*"))


def test_a_flipped_bit_is_an_answer_or_one_line(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make({"recorder_bytes": "2MiB"})
    store_all(engine)
    engine.generate({f"{name} again": prompt for name, prompt in PROMPTS.items()})
    written = engine.recording
    path = recordings.dump(written, tmp_path / "recording")
    assert _core.RecordingFile(str(path)).has_next
    monkeypatch.chdir(tmp_path)
    content = path.read_bytes()
    ring_at = written.stat().st_size - _core.RecordingFile(str(path)).ring_bytes
    # Of the engine's events, and of all that the rank's recording has.
    said = [at for at in range(ring_at, len(content)) if content[at]]
    source = random.Random(int(os.environ.get("KVFERRY_SEED", "5")))
    num_refused = 0
    for _ in range(NUM_FLIPS):
        at = source.choice(said)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 1 << source.randrange(8)]))
        for name, command in COMMANDS.items():
            if name == "dump":
                continue
            Path("timeline.json").unlink(missing_ok=True)
            code, out, err = run(monkeypatch, capsys, *command, str(path))
            assert code in {0, 1, 2}, (at, command)
            is_difference = name == "replay" and code == 1
            assert err.count("\n") == (code != 0 and not is_difference), (at, command, err)
            assert ("replayed: " in out) == is_difference
            num_refused += code == 2
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content[at : at + 1])
    assert num_refused > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_commands_take_a_recording(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    # As it arrives on another machine.
    recording.chmod(0o644)
    code, out, err = run(monkeypatch, capsys, *COMMANDS[command], str(recording))
    assert (code, err) == (0, "")
    assert out != ""


def test_only_what_nothing_was_asked_about_is_kept(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, capsys, "dump", "--events", "1", "--file", str(recording))
    run(monkeypatch, capsys, "dump", "--perfetto", "timeline.json", "--file", str(recording))
    assert not recordings.dump_directory().exists()
    run(monkeypatch, capsys, "dump", "kept", "--events", "1", "--file", str(recording))
    assert Path("kept").exists()
    run(monkeypatch, capsys, "dump", "--file", str(recording))
    assert len(list(recordings.dump_directory().iterdir())) == 1


@pytest.mark.parametrize("arguments", [["dump", "there"], ["dump", "--perfetto", "there"]])
def test_a_file_that_exists_is_not_overwritten(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    Path("there").write_text("precious")
    code, _, err = run(monkeypatch, capsys, *arguments, "--file", str(recording))
    assert code == 2
    assert "cannot write there: File exists" in err
    assert Path("there").read_text() == "precious"
    code, _, err = run(monkeypatch, capsys, *arguments[:-1], "none/there", "--file", str(recording))
    assert code == 2
    assert "none/there" in err
    assert err.count("\n") == 1
