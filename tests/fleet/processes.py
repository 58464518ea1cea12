# SPDX-License-Identifier: Apache-2.0
"""What the machines of a test run: engines that scripts of examples/ start, and all of its processes together."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import ClassVar

from e2e.engine_runs import REPOSITORY
from e2e.server_process import Metrics, ServerProcess
from e2e.shared_memory import processes
from e2e.vllm_server import start_warm

EXAMPLES = REPOSITORY / "examples"
NUM_GPU_BLOCKS = 100  # as the scripts have it


class Engine(ServerProcess):
    """One engine; it is starting when the constructor returns.

    Parameters
    ----------
    log
        File for what it prints; its folder is also for sockets and files that vLLM leaves.
    command
        A script of examples/, with the arguments that it needs.
    port, core
        Where it answers, and the core that it computes on.
    variables
        What the script reads.
    """

    def __init__(self, log: Path, command: list[str], port: int, core: int, variables: dict[str, str]) -> None:
        script, *arguments = command
        command = [
            str(EXAMPLES / script), *arguments, "--host", "127.0.0.1", "--port", str(port), "--shutdown-timeout", "30",
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        told = {
            "TMPDIR": str(log.parent),
            "TORCHINDUCTOR_CACHE_DIR": str(REPOSITORY / ".cache" / "torchinductor"),
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
        }
        super().__init__(f"http://127.0.0.1:{port}", log, command, told | variables, start_warm)
        self._core = core

    def await_answer(self) -> None:
        """Wait until it is healthy, then let its threads use only its own core.

        vLLM's connector for NIXL binds a worker's main thread, which computes, to the machine's last core, so both
        engines of a machine would compute on one core. And an engine that waits for a KV cache, or for the end of a
        lease, steps without a pause: on shared cores the other engine has hardly run for as long as the lease lasted,
        60 s.
        """
        super().await_answer()
        for process in processes(self.process.pid):
            for thread in process.glob("task/*"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), {self._core})


class Processes:
    """Everything that a test has started.

    Attributes
    ----------
    latest
        Those of the test that began last.
    """

    latest: ClassVar[Processes | None] = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[ServerProcess] = []
        Processes.latest = self

    def _next_log(self, name: str) -> Path:
        """A file for the next life of a process."""
        return self._folder / f"{name}{len(self._all)}.log"

    def logs(self) -> dict[str, str]:
        """What each process has printed."""
        return {server.name: server.log() for server in self._all}

    def end(self) -> None:
        """End all of it, whatever the test has come to."""
        for server in self._all:
            server.kill()


def from_outside(metrics: Metrics) -> float:
    """Tokens of prompts that came from the tier or from another machine."""
    return metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"]


def computed(metrics: Metrics) -> float:
    """Tokens of prompts that the engine computed."""
    return metrics["vllm:prompt_tokens_by_source_total"]["local_compute"]
