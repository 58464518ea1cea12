# SPDX-License-Identifier: Apache-2.0
"""The flight recorders of this user's engines: where their files are, which engines live, and what dead ones left.

The scheduler side of an engine records what it is asked and what it decides in a ring, in a file in shared memory. The
core holds a lock on the file. A file without a lock was left by an engine that was killed: it is kept until the next
engine of this user starts, which moves it to the directory of dumps, or until ``kvferry dump`` does that.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from kvferry import _core, own_files
from kvferry.errors import Error, RecordingError, ResourceError

DIRECTORY = "/dev/shm"
"""The directory of recordings that are written."""

SUFFIX = ".kvferry-recording"
"""The end of a dump's name."""

MOST_DUMPS = 8
"""How many dumps are kept. A dump is as large as a ring, 64 MiB by default."""

_PREFIX = "kvferry-recorder-"


@dataclasses.dataclass(frozen=True)
class Found:
    """A recording.

    Attributes
    ----------
    path
        Its file.
    pid
        The process whose scheduler wrote it.
    is_alive
        Whether the engine still writes it.
    began
        When it began, in seconds since 1970.
    model
        The model's name, as configured in the engine; empty if it is unknown.

    """

    path: Path
    pid: int
    is_alive: bool
    began: float
    model: str


def new_path(directory: str | None = None) -> Path:
    """Return a path for the recording of an engine in this process."""
    return Path(directory or DIRECTORY, f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")


def ring_bytes(wished: int, directory: str | None = None) -> int:
    """Return the size of a ring: the power of two from the wished one on, and an eighth of the free memory at most.

    Shared memory is 64 MB in a container by default, and the engine's own processes need it.
    """
    free = shutil.disk_usage(directory or DIRECTORY).free
    return 1 << max(16, min((wished - 1).bit_length(), (free // 8).bit_length() - 1))


def dump_directory() -> Path:
    """Return the directory of dumps: KVFERRY_DUMPS, or kvferry/dumps in the user's cache directory."""
    if configured := os.environ.get("KVFERRY_DUMPS"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kvferry", "dumps")


def find(directory: str | None = None) -> list[Found]:
    """Find the recordings of this user's engines, those that still write first, then the newest first."""
    found = []
    for path in [*Path(directory or DIRECTORY).glob(f"{_PREFIX}*"), *dump_directory().glob(f"*{SUFFIX}")]:
        # What another user put there is not looked at.
        with contextlib.suppress(Error, OSError), _opened(path):
            found.append(look_at(path))
    return sorted(found, key=lambda each: (not each.is_alive, -each.began))


def look_at(path: Path) -> Found:
    """Say what is known of a recording, of any user: a dump is sent from one machine to another.

    Raises
    ------
    ResourceError
        It cannot be read.
    RecordingError
        It is none.

    """
    opened = _core.RecordingFile(str(path))
    with open(path, "rb") as file:
        is_alive = own_files.is_locked(file.fileno())
    return Found(path, opened.pid, is_alive, opened.wall_ns / 1e9, named(opened.config).get("model", ""))


def named(config: str) -> dict[str, str]:
    """Return the lines of a recording's configuration by their first word; of several, the first."""
    lines: dict[str, str] = {}
    for line in config.splitlines():
        name, _, value = line.partition(" ")
        lines.setdefault(name, value)
    return lines


def wall_s(file: _core.RecordingFile, at_ns: int) -> float:
    """Return a time of a recording's clock as seconds since 1970."""
    return (file.wall_ns + at_ns - file.steady_ns) / 1e9


def configured_number(config: dict[str, str], name: str, default: int) -> int:
    """Return a number of a recording's configuration (`named`).

    Raises
    ------
    RecordingError
        It is none.

    """
    try:
        return int(config.get(name, default))
    except ValueError:
        raise RecordingError(
            f"a recording is damaged: its configuration has {config[name]!r} as {name}, which is to be a number: copy "
            "it again from where it was made"
        ) from None


def dump(source: Path, target: Path | None = None) -> Path:
    """Copy a recording, which may be written meanwhile, and return where the copy is.

    Parameters
    ----------
    source
        The recording.
    target
        The copy. None: a new file in `dump_directory()`, of which the oldest are removed.

    Raises
    ------
    ConfigError
        The target exists.
    ResourceError
        It cannot be copied.
    RecordingError
        The source is no recording.

    """
    recording = _core.RecordingFile(str(source)).read()
    if target is None:
        directory = dump_directory()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _keep_newest(directory, MOST_DUMPS - 1)
        except OSError as error:
            raise ResourceError(
                f"{directory}, the directory of dumps, cannot be made: {error.strerror}; set KVFERRY_DUMPS to another"
            ) from None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        target = directory / f"{stamp}-{source.name.removeprefix(_PREFIX).removesuffix(SUFFIX)}{SUFFIX}"
    recording.save(str(target))
    return target


def books(path: Path) -> dict[str, Any]:
    """Return what was under way at the end of a recording: the oldest requests, loads and stores, and the figures.

    An engine records it when an error of the core ends it. Otherwise a replay finds it out.

    Returns
    -------
    dict[str, Any]
        What SchedulerEngine::books() (connector/scheduler) has; ``source``, which is ``recorded`` or ``replayed``;
        ``error``, the error that ended the recording, or None; ``at``, when, in seconds since 1970.

    Raises
    ------
    RecordingError
        It is none; or the books are not in it, and it cannot be replayed.

    """
    file = _core.RecordingFile(str(path))
    events = file.read()
    recorded = events.last_text("books")
    if recorded is not None:
        position, text = recorded
        source, error = "recorded", (events.last_text("threw") or (0, None))[1]
    else:
        position, source = events.end, "replayed"
        try:
            text, error = _core.replayed_books(str(path))
        except RecordingError as why:
            raise RecordingError(
                f"{path} does not have the books, which an engine records when an error ends it, and a replay does not "
                f"find them out: {why}"
            ) from None
    try:
        found = json.loads(text)
    except ValueError:
        raise RecordingError(
            f"{path} is damaged: its books are no JSON: copy it again from where it was made"
        ) from None
    at_ns = events.times([position])[0]
    return {"source": source, "error": error, "at": wall_s(file, at_ns) if at_ns else None, **found}


def collect(directory: str | None = None) -> list[Path]:
    """Move what killed engines of this user left to the directory of dumps; return where it is.

    What cannot be moved stays, and is not an error: an engine that starts has other work.
    """
    moved = []
    for path in sorted(Path(directory or DIRECTORY).glob(f"{_PREFIX}*")):
        with contextlib.suppress(Error, OSError), _opened(path) as file:
            # The lock is kept meanwhile, so that two engines that start do not both move it. A file that is still
            # being made is no recording yet.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            moved.append(dump(path))
            path.unlink()
    return moved


def _keep_newest(directory: Path, number: int) -> None:
    dumps = sorted(directory.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for path in dumps[: max(0, len(dumps) - number)]:
        path.unlink(missing_ok=True)


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    foreign = "is not a recording of this user that no other user can access"
    return own_files.opened(path, os.O_RDONLY, foreign=foreign)
