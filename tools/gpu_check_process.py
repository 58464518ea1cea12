# SPDX-License-Identifier: Apache-2.0
"""Run commands so that they end in time, on a signal, and together with the program that started them."""

import contextlib
import ctypes
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
#: Seconds between SIGTERM and SIGKILL, in which a program may still write down its results.
GRACE = 3.0
#: Seconds that a killed process gets to disappear. One that a driver holds in the kernel does not disappear.
VANISH = 3.0
#: Seconds between two looks at a running command.
TICK = 0.1
#: Seconds between two calls of `on_tick`.
NOTICE = 1.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def shown(command: Sequence[str]) -> str:
    """Return a command for a report: paths begin in the repository, others are their last part."""
    inside = (part.replace(f"{ROOT}/", "") for part in command)
    return shlex.join(re.sub(r"(^|[=:])/(?:[^=:]*/)?([^=:/]+)", r"\1\2", part) for part in inside)


class Watch:
    """Knows until when a call may run, and whether a signal has asked for its end.

    Parameters
    ----------
    seconds
        Time from now until the call must have ended.

    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.signal: signal.Signals | None = None

    def left(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return self._end - time.monotonic()

    def listen(self) -> None:
        """Take SIGINT, SIGTERM and SIGHUP as requests: the running command ends first, and the report is written."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``"exit"``, ``"timed out"`` or ``"stopped"`` (by a signal to us)."""

    how: str
    status: int | None
    seconds: float

    @property
    def detail(self) -> str:
        """Say in a few words what went wrong; empty if nothing did."""
        if self.how == "stopped":
            return "stopped by a signal"
        if self.status is None:
            return f"timed out after {self.seconds:.0f} s, and does not even die by SIGKILL"
        if self.how == "timed out":
            return f"timed out after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by signal {signal.Signals(-self.status).name}"
        return f"exit {self.status}" if self.status else ""


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ask the command and its children to end, then kill them; give up on processes that do not die."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, VANISH)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
    # Some children may outlive a command that ended at once.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_command(
    command: Sequence[str], log: Path, limit: float, watch: Watch, env: Mapping[str, str] | None = None,
    on_tick: Callable[[], None] = lambda: None,
) -> Ended:  # fmt: skip
    """Run one command with its output in a log file.

    Parameters
    ----------
    command, env
        The command, which runs in the repository's root, and what is added to its environment.
    log
        The log file; it is overwritten.
    limit
        Seconds after which the command is ended. The call's deadline ends it too, early enough for the grace period.
    on_tick
        Called about once a second while the command runs.

    Raises
    ------
    OSError
        If the command cannot be started.

    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    end = began + min(limit, watch.left()) - GRACE
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})}, start_new_session=True, preexec_fn=_die_with_parent,
        )  # fmt: skip
        how = "exit"
        noticed = began
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=TICK)
                break
            now = time.monotonic()
            if watch.signal is not None or now >= end:
                how = "stopped" if watch.signal is not None else "timed out"
                break
            if now - noticed >= NOTICE:
                noticed = now
                on_tick()
        if how == "exit":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            _end_group(process)
    return Ended(how, process.poll(), time.monotonic() - began)
