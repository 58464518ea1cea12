# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of an engine's scheduler side: where it lies, and what becomes of it when the engine ends."""

import functools
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from vllm.logger import init_logger

from kvferry import _core, recordings

if TYPE_CHECKING:
    from pathlib import Path

logger = init_logger("vllm.kvferry")


class EngineRecorder:
    """The recording of one engine, from its start to its end.

    Parameters
    ----------
    num_bytes
        The value of ``recorder_bytes``; 0: nothing is recorded.

    """

    def __init__(self, num_bytes: int) -> None:
        self._path = recordings.new_path() if num_bytes else None
        self._ring_bytes = recordings.ring_bytes(num_bytes) if num_bytes else 0
        self._removal: weakref.finalize[[Path, int], EngineRecorder] | None = None
        if self._path is not None:
            # A script that ends does not shut its engine down. A child that was forked does not end this one.
            self._removal = weakref.finalize(self, _remove, self._path, os.getpid())

    @property
    def options(self) -> dict[str, Any]:
        """What the core's engine is told."""
        return {"recorder_path": str(self._path), "recorder_ring_bytes": self._ring_bytes} if self._path else {}

    @property
    def path(self) -> "Path | None":
        """The recording's file; None: there is none."""
        return self._path

    def begin(self, engine: _core.SchedulerEngine) -> None:
        """Log where the recording is, or why there is none, and collect what engines left that were killed."""
        if self._path is None:
            return
        if engine.recorder_error:
            logger.warning(
                "kvferry: nothing is recorded, so `kvferry why` will have no answer: %s; make room in %s, or set "
                "recorder_bytes to less, or to 0",
                engine.recorder_error,
                recordings.DIRECTORY,
            )
            self._path = None
            return
        for path in recordings.collect():
            logger.warning("kvferry: an engine that was killed left its recording: %s", path)

    def keep(self, error: Exception) -> None:
        """Keep the recording although the engine will end, because of an error that ends it."""
        if self._path is None or self._removal is None or self._removal.detach() is None:
            return
        logger.error(
            "kvferry: %s. `kvferry dump --books --file` shows what was under way, and `kvferry dump --file` keeps what "
            "led to it, which is recorded in %s",
            error,
            self._path,
        )

    def close(self) -> None:
        """End, after the core's engine; the file goes, unless an error ended the engine. Idempotent."""
        if self._removal is not None:
            self._removal()


def _remove(path: "Path", pid: int) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


class Recorded(Protocol):
    """Whoever has hooks that are recorded."""

    _recorder: EngineRecorder


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
