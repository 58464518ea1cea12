# SPDX-License-Identifier: Apache-2.0
"""The flight recorders of an engine and its ranks: where they lie, and what becomes of them when the engine ends."""

import functools
import hashlib
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from vllm.logger import init_logger

from kvferry import _core, recordings
from kvferry.errors import ResourceError
from kvferry.vllm import fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    from vllm.config import VllmConfig

logger = init_logger("vllm.kvferry")


class OwnRecording:
    """The file of a recording, from its engine's start to its end.

    Parameters
    ----------
    path
        Where it will be made; None: nothing is recorded.
    advice
        What an error's log line says behind the file's name.
    outlives
        The start of the engine (`start_mark`) that the file outlives if the engine was killed; empty: none.

    """

    def __init__(self, path: "Path | None", advice: str, outlives: str = "") -> None:
        self._path = path
        self._advice = advice
        self._removal: weakref.finalize[[Path, int, str], OwnRecording] | None = None
        if path is not None:
            # A script that ends does not shut its engine down. A child that was forked does not end this one.
            self._removal = weakref.finalize(self, _remove, path, os.getpid(), outlives)

    @property
    def path(self) -> "Path | None":
        """The recording's file; None: there is none."""
        return self._path

    def forgo(self, so: str, error: str) -> None:
        """Go on without a recording, for which there is no room."""
        logger.warning(
            "kvferry: nothing is recorded, so %s: %s; make room in %s, or set recorder_bytes to less, or to 0",
            so,
            error,
            recordings.DIRECTORY,
        )
        self._path = None

    def keep(self, error: Exception) -> None:
        """Keep the recording although the engine will end, because of an error that ends it."""
        if self._path is None or self._removal is None or self._removal.detach() is None:
            return
        logger.error("kvferry: %s. What led to it is recorded in %s: %s", error, self._path, self._advice)

    def close(self) -> None:
        """End, after the core's engine; the file goes, unless an error ended the engine. Idempotent."""
        if self._removal is not None:
            self._removal()


class EngineRecorder(OwnRecording):
    """The recording of an engine's scheduler side.

    Parameters
    ----------
    num_bytes
        The value of ``recorder_bytes``; 0: nothing is recorded.

    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            recordings.new_path() if num_bytes else None,
            "`kvferry dump --books --file` shows what was under way, and `kvferry dump --file` keeps it",
        )
        self._ring_bytes = recordings.ring_bytes(num_bytes) if num_bytes else 0

    @property
    def options(self) -> dict[str, Any]:
        """What the core's engine is told."""
        return {"recorder_path": str(self._path), "recorder_ring_bytes": self._ring_bytes} if self._path else {}

    def begin(self, engine: _core.SchedulerEngine) -> None:
        """Log why there is no recording, if there is none, and collect what engines left that were killed."""
        if self._path is None:
            return
        if engine.recorder_error:
            self.forgo("`kvferry why` will have no answer", engine.recorder_error)
            return
        for path in recordings.collect():
            logger.warning("kvferry: an engine that was killed left its recording: %s", path)


class RankRecorder(OwnRecording):
    """The recording of a rank.

    Parameters
    ----------
    num_bytes
        The value of ``recorder_bytes``; 0: nothing is recorded. A rank's ring has a part of it.
    rank
        The rank.
    start
        The engine's start (`start_mark`). The ranks of an engine that was killed end by themselves, without an error.

    """

    def __init__(self, num_bytes: int, rank: int, start: str) -> None:
        super().__init__(
            recordings.new_path(is_rank=True) if num_bytes else None,
            "`kvferry dump` keeps it with its engine's recording, and so does the next engine that starts here",
            outlives=start,
        )
        self._num_bytes = num_bytes
        self._rank = rank
        self._start = start

    def begin(self) -> _core.Recorder | None:
        """Make the file."""
        if self._path is None:
            return None
        ring_bytes = recordings.ring_bytes(self._num_bytes, is_rank=True)
        try:
            return _core.Recorder(str(self._path), ring_bytes, f"rank {self._rank}\nstart {self._start}\n")
        except ResourceError as error:
            self.forgo(f"a dump will not have rank {self._rank}", str(error))
            return None


def start_mark(vllm_config: "VllmConfig") -> str:
    """Return what the recordings of one start of an engine have in common."""
    return hashlib.sha256(fingerprint.start_of(vllm_config).encode()).hexdigest()[:16]


def _remove(path: "Path", pid: int, outlives: str) -> None:
    if os.getpid() == pid and not (outlives and recordings.was_killed(outlives)):
        path.unlink(missing_ok=True)


class Recorded(Protocol):
    """Whoever has hooks that are recorded."""

    _recorder: OwnRecording


_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Hook = Callable[Concatenate[Any, _Args], _Result]


def kept_on_error(hook: "_Hook[_Args, _Result]") -> "_Hook[_Args, _Result]":
    """Keep the recording of a `Recorded` if a hook of it raises an error of the core, which ends the engine."""

    @functools.wraps(hook)
    def kept(self: Recorded, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        try:
            return hook(self, *args, **kwargs)
        except _core.Error as error:
            self._recorder.keep(error)
            raise

    return kept
