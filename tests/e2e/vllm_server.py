# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as examples/serve.sh starts it, and what a test asks of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from .engine_runs import REPOSITORY, cores, warm_process
from .ports import free_ports
from .server_process import ServerProcess, start_cold
from .warm_process import ForkedProcess, Order


def start_warm(command: list[str], variables: dict[str, str], log: Path) -> ForkedProcess:
    """What the script `command` starts, forked from a process that has imported vLLM (a `Starter`)."""
    says = variables | {"VLLM": str(REPOSITORY / "tests/e2e/say_command.sh")}
    said = subprocess.run(command, env=says, capture_output=True, check=True, text=True, cwd=log.parent).stdout
    arguments, _, environment = said.partition("\0\0")
    its_own = dict(line.split("=", 1) for line in environment.split("\0") if line)
    return warm_process().start(Order("e2e.serve_process", arguments.split("\0"), its_own, str(log.parent), str(log)))


class VllmServer(ServerProcess):
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
    is_cold
        It imports everything itself, as a user's does; it starts ten seconds later.
    """

    def __init__(
        self, folder: Path, tier: dict[str, Any], *arguments: str, num_ranks: int = 1, is_cold: bool = False
    ) -> None:
        [port] = free_ports(1)
        variables = {
            "TIER": json.dumps(tier),
            "TMPDIR": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": str(REPOSITORY / ".cache" / "torchinductor"),
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores(num_ranks))),
        }
        command = [str(REPOSITORY / "examples/serve.sh"), "--host", "127.0.0.1", "--port", str(port),
            "--disable-uvicorn-access-log", *arguments,
        ]  # fmt: skip
        super().__init__(
            f"http://127.0.0.1:{port}", folder / "server.log", command, variables, start_cold if is_cold else start_warm
        )
        try:
            self.await_answer()
        except BaseException:
            self.kill()
            raise
