# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as examples/serve.sh starts it, and what a test asks of it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .engine_runs import REPOSITORY, cores
from .shared_memory import abandoned, shared_memory

START_S = 240.0
WAIT_S = 60.0

Metrics = dict[str, dict[str, float]]


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


class VllmServer:
    """One server, started by the constructor, which waits until it answers.

    Parameters
    ----------
    folder
        For its log, and for sockets and files that vLLM leaves.
    tier
        ``kv_connector_extra_config``.
    arguments
        More arguments of ``vllm serve``.
    num_ranks
        Of all of its engines; each has a core.
    """

    def __init__(self, folder: Path, tier: dict[str, Any], *arguments: str, num_ranks: int = 1) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._shared_memory_before = shared_memory()
        self._log = folder / "server.log"
        variables = {
            "TIER": json.dumps(tier),
            "TMPDIR": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": str(REPOSITORY / ".cache" / "torchinductor"),
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores(num_ranks))),
        }
        command = [str(REPOSITORY / "examples/serve.sh"), "--host", "127.0.0.1", "--port", str(port),
            "--disable-uvicorn-access-log", *arguments,
        ]  # fmt: skip
        with self._log.open("wb") as log:
            # A session of its own: whatever it starts can be told by it, and ended.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                env=os.environ | variables, start_new_session=True,
            )  # fmt: skip
        try:
            self._await_answer()
        except BaseException:
            self.kill()
            raise

    def log(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def metrics(self, engine: int = 0) -> Metrics:
        """Values of one engine by the metric's name, and by its labels but those that all have."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        found: Metrics = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("engine", str(engine)) != str(engine):
                    continue
                labels = [value for name, value in sample.labels.items() if name not in ("engine", "model_name")]
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

    def stop(self) -> ServerEnd:
        """Send SIGTERM and wait."""
        self.process.send_signal(signal.SIGTERM)
        exit_status = self.process.wait(timeout=WAIT_S)
        is_anything_left = self.is_anything_left()
        log = self.log()
        self.kill()
        left = abandoned(shared_memory() - self._shared_memory_before)
        return ServerEnd(exit_status, log, is_anything_left, left)

    def is_anything_left(self) -> bool:
        """Whether processes of its session live on; they get a moment to follow their parent."""
        for _ in range(100):
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.1)
        return True

    def kill(self) -> None:
        """End every process of it, whatever the test has come to."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, f"no answer within {START_S} s:\n{self.log()}"
            time.sleep(0.1)

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.log()}"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=WAIT_S):
                return True
        except OSError:
            return False
