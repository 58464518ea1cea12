# SPDX-License-Identifier: Apache-2.0
"""Engine processes forked from one that has imported vLLM: the imports are most of a small engine's start.

    python -m e2e.warm_process MODULE...

imports the modules, reads an `Order` as a line of JSON, forks a process that runs it, says ``started PID``, and reads
the next; when a process has ended it says ``ended PID STATUS``. It ends with its standard input. What an engine does
between the fork and its end is what a process of its own would do, its exit included.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass
class Order:
    """A module to run as a program, with what `subprocess.Popen` would be given; a session of its own."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: str


class WarmProcess:
    """The process that has imported `modules`, in an environment that its engines add to. Not for several threads."""

    def __init__(self, modules: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "e2e.warm_process", *modules]
        # Unbuffered: what it says is waited for line by line.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )
        self._started: int | None = None
        self._statuses: dict[int, int] = {}

    def start(self, order: Order) -> ForkedProcess:
        """Fork a process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
        while self._started is None:
            self._listen(None)
        pid, self._started = self._started, None
        return ForkedProcess(pid, self)

    def status_of(self, pid: int, timeout_s: float | None) -> int | None:
        """Exit status of a process that was started; None if it has not ended after so long."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while pid not in self._statuses:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._listen(left_s):
                return None
        return self._statuses[pid]

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self, timeout_s: float | None) -> bool:
        """Take in the next thing that it says; False if it says nothing for so long."""
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout_s)[0]:
            return False
        line = out.readline()
        assert line, f"the process that engines are forked from ended with {self._process.wait()}"
        what, pid, *status = line.split()
        if what == b"started":
            self._started = int(pid)
        else:
            self._statuses[int(pid)] = int(status[0])
        return True


class ForkedProcess:
    """As much of `subprocess.Popen` as is needed."""

    def __init__(self, pid: int, parent: WarmProcess) -> None:
        self.pid = pid
        self._parent = parent

    def wait(self, timeout: float | None = None) -> int:
        """As of `subprocess.Popen`."""
        status = self._parent.status_of(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("an engine", timeout or 0.0)
        return status

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        return self._parent.status_of(self.pid, 0.0)

    def send_signal(self, number: signal.Signals) -> None:
        """As of `subprocess.Popen`."""
        if self.poll() is None:
            os.kill(self.pid, number)


def run(order: Order) -> None:
    """Become the process that was ordered; returns, or raises, as the module does."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order.environment)
    tempfile.tempdir = None  # it is read from the environment once
    os.chdir(order.folder)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, to in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, to)
    os.close(log)
    os.close(nothing)
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main(modules: list[str]) -> None:
    """Serve one order after the other."""
    # What anybody prints at its import is not for who reads our lines.
    said = os.dup(1)
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    # An engine collects garbage seven times in its life: what is imported here is no garbage, and need not be looked
    # at each time. vLLM would thaw it at the engine's end, for those that go on in the same process.
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None

    def say(*words: object) -> None:
        os.write(said, (" ".join(map(str, words)) + "\n").encode())

    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLIN)
    pids: dict[int, int] = {}  # by a descriptor of the process, which can be read when it has ended
    while True:
        for ready, _ in waiting.poll():
            if ready in pids:
                waiting.unregister(ready)
                os.close(ready)
                pid = pids.pop(ready)
                say("ended", pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            elif not (line := sys.stdin.readline()):  # the next order is written after this one was answered
                return
            elif pid := fork_to_run(Order(**json.loads(line)), [said, *pids]):
                pids[descriptor := os.pidfd_open(pid)] = pid
                waiting.register(descriptor, select.POLLIN)
                say("started", pid)
            else:
                return


def fork_to_run(order: Order, not_for_it: list[int]) -> int:
    """Fork a process that runs the order: its pid here, 0 there, when it has run."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    for descriptor in not_for_it:
        os.close(descriptor)
    run(order)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
