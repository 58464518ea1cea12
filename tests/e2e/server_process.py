# SPDX-License-Identifier: Apache-2.0
"""A server of a test: its processes, its log, its metrics."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .shared_memory import abandoned, shared_memory, shared_memory_of, without_those_of_others
from .warm_process import ForkedProcess

START_S = 240.0
WAIT_S = 60.0

Metrics = dict[str, dict[str, float]]
# Starts a command in this environment, in a session of its own, by which whatever it starts can be told and ended; what
# it prints goes to the file, beside which it runs.
Starter = Callable[[list[str], dict[str, str], Path], "subprocess.Popen[bytes] | ForkedProcess"]


def start_cold(command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process that has imported nothing yet (a `Starter`)."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent,
            env=variables, start_new_session=True,
        )  # fmt: skip


def errors_in(log: str) -> list[str]:
    """Lines of a server's log that say that something went wrong, until it was told to end and behind it."""
    serving, _, ending = log.partition("[shutdown] API server: shutdown triggered")
    # When the engine has ended as it was told to, vLLM's API server may still call that an error, in its own name.
    said = serving.splitlines() + [line for line in ending.splitlines() if not line.startswith("(APIServer ")]
    return [line for line in said if re.search(r"\bERROR\b|\bCRITICAL\b|Traceback", line)]


@dataclasses.dataclass
class ServerEnd:
    """How a server ended that was told to, and what it left."""

    exit_status: int
    log: str
    is_anything_left: bool
    shared_memory: set[str]

    def assert_well(self) -> None:
        """It said no error, ended with success, and left no process and no shared memory."""
        assert errors_in(self.log) == [], self.log
        assert self.exit_status == 0, self.log
        assert not self.is_anything_left
        assert self.shared_memory == set()


class ServerProcess:
    """One server, started by the constructor.

    Parameters
    ----------
    url
        Where it answers, `health` and metrics below it.
    log
        File for what it prints.
    command, variables
        What to start, with these beside the environment's.
    start
        How to start it; by default as a process of its own.
    """

    health = "/health"
    # Of metrics: those that all of one server's have.
    common_labels = frozenset({"engine", "model_name"})

    def __init__(
        self, url: str, log: Path, command: list[str], variables: dict[str, str], start: Starter = start_cold
    ) -> None:
        self.url = url
        self.name = log.stem
        self._log = log
        self._shared_memory_before = shared_memory()
        self.process = start(command, os.environ | variables, log)

    def log(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> str:
        """What it answers there."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=WAIT_S) as answer:
            return str(answer.read().decode())

    def metrics(self, engine: int = 0) -> Metrics:
        """Values of one engine by the metric's name, and by its labels but those that all have."""
        found: Metrics = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                if sample.labels.get("engine", str(engine)) != str(engine):
                    continue
                labels = [value for name, value in sample.labels.items() if name not in self.common_labels]
                found.setdefault(sample.name, {})[" ".join(labels)] = sample.value
        return found

    def await_metrics(
        self, what: str, condition: Callable[[Metrics], bool], timeout_s: float = WAIT_S, engine: int = 0
    ) -> Metrics:
        """Wait until an engine's metrics meet a condition; returns them."""
        deadline = time.monotonic() + timeout_s
        while not condition(metrics := self.metrics(engine)):
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{metrics}\n{self.log()}"
            time.sleep(0.1)
        return metrics

    def await_answer(self) -> None:
        """Wait until it is healthy."""
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, f"no answer within {START_S} s:\n{self.log()}"
            time.sleep(0.1)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> ServerEnd:
        """Send SIGTERM and wait."""
        mine = shared_memory_of(self.process.pid)
        self.terminate()
        exit_status = self.process.wait(timeout=WAIT_S)
        is_anything_left = self.is_anything_left()
        log = self.log()
        self.kill()
        left = abandoned(without_those_of_others(shared_memory() - self._shared_memory_before, mine))
        return ServerEnd(exit_status, log, is_anything_left, left)

    def is_anything_left(self) -> bool:
        """Whether processes of its session live on behind its first one; they get a moment to follow it."""
        for _ in range(100):
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.1)
        return True

    def kill(self) -> None:
        """End every process of it, whatever the test has come to; on a loaded machine the last takes a second."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()
        assert not self.is_anything_left()

    def _answers(self) -> bool:
        assert not self.has_ended(), f"the server ended:\n{self.log()}"
        try:
            self.get(self.health)
        except OSError:
            return False
        return True
