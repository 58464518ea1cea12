# SPDX-License-Identifier: Apache-2.0
"""Engine processes forked from one that has imported vLLM: the imports are most of a small engine's start.

    python -m e2e.warm_process MODULE...

imports the modules, reads an `Order` as a line of JSON, forks a process that runs it, says its pid and then its exit
status in a line each, and reads the next; it ends with its standard input. What an engine does between the fork and
its end is what a process of its own would do, its exit included.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import runpy
import select
import subprocess
import sys
import tempfile


@dataclasses.dataclass
class Order:
    """A module to run as a program, with what `subprocess.Popen` would be given; a session of its own."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: str


class WarmProcess:
    """The process that has imported `modules`, in an environment that its engines add to.

    One engine runs at a time. Not for several threads.
    """

    def __init__(self, modules: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "e2e.warm_process", *modules]
        # Unbuffered: what it says is waited for line by line.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )

    def start(self, order: Order) -> ForkedProcess:
        """Fork a process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
        pid = self.read_number(None)
        assert pid is not None
        return ForkedProcess(pid, self)

    def read_number(self, timeout_s: float | None) -> int | None:
        """The next thing it says; None if it says nothing for so long."""
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout_s)[0]:
            return None
        line = out.readline()
        assert line, f"the process that engines are forked from ended with {self._process.wait()}"
        return int(line)

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class ForkedProcess:
    """As much of `subprocess.Popen` as is needed."""

    def __init__(self, pid: int, parent: WarmProcess) -> None:
        self.pid = pid
        self._parent = parent
        self._returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """As of `subprocess.Popen`."""
        if self._returncode is None:
            self._returncode = self._parent.read_number(timeout)
        if self._returncode is None:
            raise subprocess.TimeoutExpired("an engine", timeout or 0.0)
        return self._returncode

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None


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

    def say(number: int) -> None:
        os.write(said, f"{number}\n".encode())

    for line in sys.stdin:
        order = Order(**json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(said)
            run(order)
            return
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
