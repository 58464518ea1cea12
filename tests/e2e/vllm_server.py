# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as examples/serve.sh starts it, and what a test asks of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .engine_runs import REPOSITORY, cores
from .ports import free_ports
from .server_process import ServerProcess


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
    """

    def __init__(self, folder: Path, tier: dict[str, Any], *arguments: str, num_ranks: int = 1) -> None:
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
        super().__init__(f"http://127.0.0.1:{port}", folder / "server.log", command, variables)
        try:
            self.await_answer()
        except BaseException:
            self.kill()
            raise
