# SPDX-License-Identifier: Apache-2.0
"""LMCache's server with two L2s, kvferry and a Redis server, as examples/lmcache_server.sh starts it."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from e2e.engine_runs import EngineRunner
from e2e.lmcache_server import CHUNK_TOKENS, VENV, site_packages
from e2e.ports import free_ports
from e2e.server_process import WAIT_S, ServerProcess
from processes import EXAMPLES


class Redis(ServerProcess):
    """A Redis server that keeps everything in memory."""

    health = "PING"

    def __init__(self, log: Path) -> None:
        [self.port] = free_ports(1)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        super().__init__(f"redis://127.0.0.1:{self.port}", log, command, {})

    def get(self, path: str) -> str:
        """What it answers to a command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            connection.sendall(f"{path}\r\nQUIT\r\n".encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes that it has been sent, and that it has sent."""
        stats = dict(re.findall(r"^(\w+):(\d+)\r$", self.get("INFO stats"), re.MULTILINE))
        return int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])


class LmcacheNode(ServerProcess):
    """LMCache's server of one node, with a tier of its own before a Redis server that all nodes use."""

    health = "/healthcheck"

    def __init__(self, log: Path, capacity: str, redis: Redis) -> None:
        self._port, http_port = free_ports(2)
        remote = {"type": "resp", "host": "127.0.0.1", "port": redis.port}
        command = [
            str(EXAMPLES / "lmcache_server.sh"), "--http-host", "127.0.0.1", "--http-port", str(http_port),
            "--l2-adapter", json.dumps(remote), "--supported-transfer-mode", "auto",
        ]  # fmt: skip
        variables = {
            "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "",
            "CAPACITY": capacity,
            "PORT": str(self._port),
            "CHUNK_TOKENS": str(CHUNK_TOKENS),
            "L1_GB": "0.25",
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
        }
        super().__init__(f"http://127.0.0.1:{http_port}", log, command, variables)

    def num_loads(self) -> dict[str, float]:
        """How often each of its L2s was read, by LMCache's names: kvferry is ``native_plugin``, Redis ``resp``."""
        counts = self.metrics().get("lmcache_mp_l2_load_completed_requests_total", {})
        return {name: sum(n for labels, n in counts.items() if name in labels) for name in ("native_plugin", "resp")}

    def run(self, engines: EngineRunner, *operations: dict[str, Any]) -> list[dict[str, Any]]:
        """Results of a fresh engine that is connected to it."""
        kv_config = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": self._port,
                "lmcache.mp.mp_transfer_mode": "auto",
            },
        }
        environment = {"KVFERRY_E2E_SITE_PACKAGES": site_packages(), "LMCACHE_TRACK_USAGE": "false"}
        return engines.run(list(operations), kv_config, environment=environment, num_gpu_blocks=200).results

    def empty_l1(self) -> dict[str, Any]:
        """The operation that waits until its L2s have everything, and empties its own memory."""
        return {"op": "empty_lmcache_l1", "url": self.url}
