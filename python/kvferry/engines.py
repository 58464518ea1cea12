# SPDX-License-Identifier: Apache-2.0
"""The engines of this user that have their own tier, and the requests to make such a tier smaller or larger.

Each engine has a file in shared memory, which its scheduler makes, writes and removes. Only its user can open it. Other
processes write a request into it: a number for the request, bytes and seconds. After that lies the state of the tier,
which the engine writes. No process waits for another one: the engine reads the file in each of its steps. The engine
holds a lock on its file, so the file of an engine that was killed can be recognised. The next process that looks
removes it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import stat
import struct
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvferry import own_files
from kvferry.errors import ConfigError, ResourceError
from kvferry.sizes import format_size

DIRECTORY = "/dev/shm"
"""The directory of the files."""

SHRINK_S = 30.0
"""Seconds over which a tier shrinks unless a request says otherwise. Most blocks that chats still use are used again
within that time, so mostly other blocks are evicted."""

_PREFIX = "kvferry-engine-"
_MAGIC = b"kvferry\x01"
# The wish is written before the number of the request, so a reader that sees the number sees its wish.
_NUMBER_AT = 8
_NUMBER = struct.Struct("<Q")
_WISH_AT = 16
_WISH = struct.Struct("<Qd")  # bytes, seconds
_SAYS_AT = 64
_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class TierState:
    """The state of an engine's tier. Sizes count like ``cpu_bytes_to_use``, or like ``cpu_bytes_to_use_per_rank``.

    Attributes
    ----------
    pid
        The process in which its scheduler runs.
    model
        The model's name, as configured in the engine.
    num_bytes, target_bytes, limit_bytes
        Bytes that the tier uses now, should use, and can use at most.
    leaving_bytes, coming_bytes
        Bytes that are out of use, but not yet returned to the machine on every rank; bytes that some rank has yet to
        make ready.
    is_per_rank
        Whether the sizes are for one rank.
    why_fixed
        Why its size cannot change; empty if it can.
    is_at_work, is_blocked
        Whether the engine's next steps change something; whether the memory that should still leave is in use.
    silent_ranks
        Ranks that have not yet done what they were told.
    failure
        Why a rank could not get more memory, if part of the last request failed.
    request
        The number of the last request that it has seen; 0: none.

    """

    pid: int
    model: str
    num_bytes: int
    target_bytes: int
    limit_bytes: int
    leaving_bytes: int = 0
    coming_bytes: int = 0
    is_per_rank: bool = False
    why_fixed: str = ""
    is_at_work: bool = False
    is_blocked: bool = False
    silent_ranks: tuple[int, ...] = ()
    failure: str = ""
    request: int = 0


class EngineFile:
    """The engine's side: its file, for as long as the engine lives. Used by one thread.

    Raises
    ------
    OSError
        The file cannot be made.

    """

    def __init__(self, directory: str | None = None) -> None:
        directory = directory or DIRECTORY
        sweep(directory)
        self._path = Path(directory, f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        self._seen = 0
        # Locked and written before it has a name: a file that is found unlocked belongs to a dead engine.
        self._file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            os.pwrite(self._file, _MAGIC.ljust(_SIZE, b"\0"), 0)
            # Python follows a link to the open file only if it is told of a directory, which an absolute path ignores.
            os.link(f"/proc/self/fd/{self._file}", self._path, src_dir_fd=self._file)
        except OSError:
            self.leave()
            raise
        _own_files.add(self)

    def take_request(self) -> tuple[int, float] | None:
        """Return what `Engine.ask` was told, if there was a request since the last call: bytes, and seconds."""
        number = _NUMBER.unpack(os.pread(self._file, _NUMBER.size, _NUMBER_AT))[0]
        if number == self._seen:
            return None
        self._seen = number
        num_bytes, over_s = _WISH.unpack(os.pread(self._file, _WISH.size, _WISH_AT))
        return num_bytes, over_s

    @property
    def last_request(self) -> int:
        """The number of the request that was taken last; 0: none."""
        return self._seen

    def say(self, state: TierState) -> None:
        """Write the state of the tier into the file."""
        text = json.dumps(dataclasses.asdict(state)).encode()
        os.pwrite(self._file, text.ljust(_SIZE - _SAYS_AT, b"\0")[: _SIZE - _SAYS_AT], _SAYS_AT)

    def close(self) -> None:
        """Remove the file; idempotent."""
        if self._file < 0:
            return
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Close the file without removing it, because another process uses it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_own_files: "weakref.WeakSet[EngineFile]" = weakref.WeakSet()


def _leave_all() -> None:
    for each in list(_own_files):
        each.leave()


# A child would keep the lock, and the engine would seem to be alive.
os.register_at_fork(after_in_child=_leave_all)


class Engine:
    """An engine, seen by another process.

    Attributes
    ----------
    path
        Path of its file.
    state
        The state at the last look.

    """

    def __init__(self, path: Path, state: TierState) -> None:
        self.path = path
        self.state = state

    def ask(self, num_bytes: int, over_s: float = SHRINK_S) -> int:
        """Ask the engine for a tier of `num_bytes`; return the number of the request.

        A tier that shrinks does so evenly over `over_s` seconds; 0: at once.

        Raises
        ------
        ConfigError
            It cannot have such a tier.
        ResourceError
            It has ended.

        """
        state = self.state
        if state.why_fixed:
            raise ConfigError(f"the tier of engine {state.pid} stays as large as it is: {state.why_fixed}")
        if not 0 < num_bytes <= state.limit_bytes:
            raise ConfigError(
                f"{format_size(num_bytes)} for the tier of engine {state.pid}; allowed is more than zero and "
                f"{format_size(state.limit_bytes)} at most; for more, start the engine with a larger cpu_bytes_limit"
            )
        number = secrets.randbits(63) + 1
        with _opened(self.path, os.O_RDWR) as file:
            os.pwrite(file, _WISH.pack(num_bytes, over_s), _WISH_AT)
            os.pwrite(file, _NUMBER.pack(number), _NUMBER_AT)
        return number

    def look(self) -> None:
        """Read the state again.

        Raises
        ------
        ResourceError
            It has ended.

        """
        with _opened(self.path, os.O_RDONLY) as file:
            if not own_files.is_locked(file):
                raise ResourceError(f"engine {self.state.pid} has ended")
            self.state = _read_state(file) or self.state

    def wait(self, request: int, patience_s: float) -> bool:
        """Read the state until the engine has done what was asked.

        Parameters
        ----------
        request
            Its number.
        patience_s
            Seconds to wait at most.

        Returns
        -------
        bool
            Whether it has seen the request and completed it.

        """
        deadline = time.monotonic() + patience_s
        while True:
            self.look()
            if self.state.request == request and not (self.state.is_at_work or self.state.is_blocked):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


def living(directory: str | None = None) -> list[Engine]:
    """Find the engines of this user that have a tier of their own."""
    found = []
    for path in _files(directory or DIRECTORY):
        try:
            with _opened(path, os.O_RDONLY) as file:
                state = _read_whole_state(file) if own_files.is_locked(file) else None
        except (OSError, ResourceError):
            continue
        if state is not None:
            found.append(Engine(path, state))
    return found


def sweep(directory: str | None = None) -> None:
    """Remove the files of engines that were killed."""
    for path in _files(directory or DIRECTORY):
        try:
            with _opened(path, os.O_RDONLY) as file:
                if not own_files.is_locked(file):
                    path.unlink(missing_ok=True)
        except (OSError, ResourceError):
            continue


def _files(directory: str) -> list[Path]:
    return sorted(Path(directory).glob(f"{_PREFIX}*")) if Path(directory).is_dir() else []


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Open an engine's file, if it belongs to this user and no other user can access it."""
    foreign = "is not the file of an engine of this user"
    with own_files.opened(path, flags, foreign=foreign, gone="is gone: the engine has ended") as file:
        if os.pread(file, len(_MAGIC), 0) != _MAGIC:
            raise ResourceError(f"{path} {foreign}")
        yield file


def _read_state(file: int) -> TierState | None:
    """Read the engine's state; None while the engine writes it."""
    text = os.pread(file, _SIZE - _SAYS_AT, _SAYS_AT).rstrip(b"\0")
    try:
        said: Mapping[str, Any] = json.loads(text)
    except ValueError:
        return None
    known = {field.name for field in dataclasses.fields(TierState)}
    try:
        state = TierState(**{name: value for name, value in said.items() if name in known})
    except (AttributeError, TypeError):
        return None
    return dataclasses.replace(state, silent_ranks=tuple(state.silent_ranks))


def _read_whole_state(file: int) -> TierState | None:
    """Do the same with some retries; None if the engine has not written a state yet."""
    for _ in range(10):
        if (state := _read_state(file)) is not None:
            return state
        time.sleep(0.001)
    return None


def texts_of(state: TierState) -> Iterator[str]:
    """Yield lines that say why a tier does not have the requested size yet."""
    per_rank = " per rank" if state.is_per_rank else ""
    if state.failure:
        yield f"{state.failure}"
    if state.leaving_bytes or state.coming_bytes:
        ranks = ", ".join(map(str, state.silent_ranks))
        yield (
            f"{format_size(state.leaving_bytes + state.coming_bytes)}{per_rank} on the way: rank {ranks} has yet to "
            "say that it is done"
        )
    if state.is_blocked:
        yield (
            f"{format_size(max(state.num_bytes - state.target_bytes, 0))}{per_rank} too much hold blocks that are "
            "being stored or loaded: they go when that has ended"
        )
