# SPDX-License-Identifier: Apache-2.0
"""The flight recorders of this user's engines: where their files are, which engines live, and what dead ones left.

The scheduler side of an engine records what it is asked and what it decides in a ring, in a file in shared memory. Each
rank records its plans and copies in a smaller one. The core holds a lock on the file. A file without a lock was left by
an engine that was killed: it is kept until the next engine of this user starts, which moves it to the directory of
dumps. A dump is one file, with the recordings of the engine and of those of its ranks that are on the same machine.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
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

RANK_SHARE = 8
"""A rank's ring has this part of the engine's: it records no hashes, and no decisions."""

_PREFIX = "kvferry-recorder-"
_RANK_PREFIX = "kvferry-rank-"


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
    start
        Which start of an engine this was, as its ranks' recordings name it; empty if it is unknown.

    """

    path: Path
    pid: int
    is_alive: bool
    began: float
    model: str
    start: str


def new_path(directory: str | None = None, *, is_rank: bool = False) -> Path:
    """Return a path for the recording of an engine, or of a rank, in this process."""
    prefix = _RANK_PREFIX if is_rank else _PREFIX
    return Path(directory or DIRECTORY, f"{prefix}{os.getpid()}-{secrets.token_hex(4)}")


def ring_bytes(wished: int, directory: str | None = None, *, is_rank: bool = False) -> int:
    """Return the size of a ring: the power of two from the wished one on, but not too much of the free memory.

    Of `wished` bytes, a rank gets its share. An engine gets an eighth of the free memory at most, a rank a 64th: shared
    memory is 64 MB in a container by default, and the engine's own processes need it.
    """
    share = RANK_SHARE if is_rank else 1
    most = shutil.disk_usage(directory or DIRECTORY).free // 8 // share
    return 1 << max(16, min((max(wished // share, 2) - 1).bit_length(), most.bit_length() - 1))


def dump_directory() -> Path:
    """Return the directory of dumps: KVFERRY_DUMPS, or kvferry/dumps in the user's cache directory."""
    if configured := os.environ.get("KVFERRY_DUMPS"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kvferry", "dumps")


def find(directory: str | None = None) -> list[Found]:
    """Find the recordings of this user's engines, those that still write first, then the newest first."""
    found = [*_written(directory), *_seen(dump_directory().glob(f"*{SUFFIX}"))]
    return sorted(found, key=lambda each: (not each.is_alive, -each.began))


def _written(directory: str | None) -> list[Found]:
    """Find the recordings of engines that are no dumps."""
    return _seen(Path(directory or DIRECTORY).glob(f"{_PREFIX}*"))


def _seen(paths: Iterable[Path]) -> list[Found]:
    found = []
    for path in paths:
        # What another user put there is not looked at.
        with contextlib.suppress(Error, OSError), _opened(path):
            found.append(look_at(path))
    return found


def was_killed(start: str, directory: str | None = None) -> bool:
    """Whether an engine has left its recording here, by the start that its ranks' recordings name."""
    return any(one.start == start and not one.is_alive for one in _written(directory))


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
    config = named(opened.config)
    return Found(path, opened.pid, is_alive, opened.wall_ns / 1e9, config.get("model", ""), config.get("start", ""))


def named(config: str) -> dict[str, str]:
    """Return the lines of a recording's configuration by their first word; of several, the first."""
    lines: dict[str, str] = {}
    for line in config.splitlines():
        name, _, value = line.partition(" ")
        lines.setdefault(name, value)
    return lines


def ranks_of(path: Path, directory: str | None = None) -> list[_core.RecordingFile]:
    """Open the recordings of an engine's ranks: those in the same file, or those of this machine that are written.

    Raises
    ------
    ResourceError
        The engine's recording cannot be read.
    RecordingError
        It is none, or one of the recordings behind it is damaged.

    """
    engine = _core.RecordingFile(str(path))
    ranks: list[_core.RecordingFile] = []
    part = engine
    while part.has_next:
        part = _core.RecordingFile(str(path), len(ranks) + 1)
        ranks.append(part)
    if path.parent != Path(directory or DIRECTORY):
        return ranks
    start = named(engine.config).get("start")
    for rank in Path(directory or DIRECTORY).glob(f"{_RANK_PREFIX}*"):
        with contextlib.suppress(Error, OSError), _opened(rank):
            file = _core.RecordingFile(str(rank))
            if start and named(file.config).get("start") == start:
                ranks.append(file)
    return sorted(ranks, key=lambda file: configured_number(named(file.config), "rank", 0))


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
    """Copy a recording, which may be written meanwhile, with those of its ranks, and return where the copy is.

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
        name = source.name.removeprefix(_PREFIX).removeprefix("kvferry-").removesuffix(SUFFIX)
        target = directory / f"{stamp}-{name}{SUFFIX}"
    ranks = []
    for file in ranks_of(source):
        # A ring that is written faster than it is read, or that has just gone, costs only itself.
        with contextlib.suppress(Error):
            ranks.append(file.read())
    recording.save(str(target), ranks)
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

    A rank's recording goes with its engine's. If that is not there, the engine has ended without an error; then the
    rank's is kept only if an error ended the rank. What cannot be moved stays, and is not an error: an engine that
    starts has other work.
    """
    moved: list[Path] = []
    dumped = set()

    def collect_engine(path: Path) -> None:
        start = look_at(path).start
        moved.append(dump(path))
        dumped.add(start)
        path.unlink()

    def collect_rank(path: Path) -> None:
        start = look_at(path).start
        if start in living:
            return
        if start not in dumped and _core.RecordingFile(str(path)).read().last_text("threw"):
            moved.append(dump(path))
        path.unlink()

    _each_left(directory or DIRECTORY, _PREFIX, collect_engine)
    living = {found.start for found in _written(directory)}
    _each_left(directory or DIRECTORY, _RANK_PREFIX, collect_rank)
    return moved


def _each_left(directory: str, prefix: str, collect_one: Callable[[Path], None]) -> None:
    for path in sorted(Path(directory).glob(f"{prefix}*")):
        with contextlib.suppress(Error, OSError), _opened(path) as file:
            # The lock is kept meanwhile, so that two engines that start do not both move it. A file that is still
            # being made is no recording yet.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            collect_one(path)


def _keep_newest(directory: Path, number: int) -> None:
    dumps = sorted(directory.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for path in dumps[: max(0, len(dumps) - number)]:
        path.unlink(missing_ok=True)


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    foreign = "is not a recording of this user that no other user can access"
    return own_files.opened(path, os.O_RDONLY, foreign=foreign)
