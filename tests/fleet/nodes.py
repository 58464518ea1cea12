# SPDX-License-Identifier: Apache-2.0
"""Nodes that share a distributed store, as examples/distributed_store starts them, and the store's master."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.crowds import STAYS
from e2e.engine_runs import cores
from e2e.http_clients import Answer, Patience, ask
from e2e.ports import free_low_port, free_ports
from e2e.served_checks import settle
from e2e.server_process import Metrics, ServerProcess
from processes import EXAMPLES, Engine, Processes

CONFIG = EXAMPLES / "distributed_store/mooncake.json"


class Master(ServerProcess):
    """Mooncake's master, which knows where the store has what."""

    health = "/health"

    def __init__(self, log: Path, port: int, metrics_port: int) -> None:
        command = [
            "mooncake_master", "--rpc_address", "127.0.0.1", "--rpc_port", str(port), "--metrics_port",
            str(metrics_port),
        ]  # fmt: skip
        super().__init__(f"http://127.0.0.1:{metrics_port}", log, command, {})


def moved_bytes(metrics: Metrics, operation: str) -> float:
    """Bytes that Mooncake has moved for an engine: ``"save_put"`` to the store, ``"load_get"`` from it."""
    return _of_operation(metrics, "bytes", operation)


def num_failed_keys(metrics: Metrics, operation: str) -> float:
    """Blocks that Mooncake could not move."""
    return _of_operation(metrics, "failed_keys", operation)


def _of_operation(metrics: Metrics, what: str, operation: str) -> float:
    counts = metrics.get(f"vllm:mooncake_store_operation_{what}_total", {})
    return sum(number for labels, number in counts.items() if labels.split()[0] == operation)


def link_bytes(metrics: Metrics) -> dict[str, float]:
    """What an engine has moved over each link."""
    return {
        "to the tier": metrics["vllm:kvferry_rank_stored_bytes_total"]["0"],
        "from the tier": metrics["vllm:kvferry_rank_loaded_bytes_total"]["0"],
        "to the store": moved_bytes(metrics, "save_put"),
        "from the store": moved_bytes(metrics, "load_get"),
    }


class Nodes(Processes):
    """A master and engines by name, each at one address in all of its lives.

    Parameters
    ----------
    folder
        For logs.
    tier
        ``kv_connector_extra_config`` of kvferry in each engine.
    first
        The connector that each node's engine asks first, ``"tier"`` or ``"store"``.
    """

    def __init__(self, folder: Path, tier: dict[str, Any], first: dict[str, str]) -> None:
        super().__init__(folder)
        self._master_ports = free_low_port(), free_ports(1)[0]
        config = json.loads(CONFIG.read_text())
        config["master_server_address"] = f"127.0.0.1:{self._master_ports[0]}"
        (folder / "mooncake.json").write_text(json.dumps(config))
        self._variables = {
            "TIER": json.dumps(tier),
            "MOONCAKE_CONFIG_PATH": str(folder / "mooncake.json"),
            "VLLM_HOST_IP": "127.0.0.1",
        }
        self._first = first
        self._ports = dict(zip(first, free_ports(len(first)), strict=True))
        self.engines: dict[str, Engine] = {}
        self.start_master()

    def start_master(self) -> None:
        """Start the master, the first time or again, and wait until it answers."""
        self.master = Master(self._next_log("master"), *self._master_ports)
        self._all.append(self.master)
        self.master.await_answer()

    def start(self, *names: str) -> None:
        """Start these nodes' engines, the first time or again, and wait until they answer."""
        for name in names:
            port = self._ports[name]
            core = cores(2)[list(self._first).index(name) % 2]
            variables = {"FIRST": self._first[name], "LOOKUP_PORT": str(port)} | self._variables
            command = ["distributed_store/engine.sh"]
            self.engines[name] = Engine(self._next_log(name), command, port, core, variables)
            self._all.append(self.engines[name])
        for name in names:
            self.engines[name].await_answer()

    def ask(self, name: str, requests: list[dict[str, Any]], asked: list[tuple[int, Patience]]) -> list[Answer]:
        """As `http_clients.ask`, of one node."""
        return ask(self.engines[name].url, requests, asked)

    def ask_in_turn(self, name: str, requests: list[dict[str, Any]], asked: list[int]) -> list[Answer]:
        """One request after the other."""
        return [answer for index in asked for answer in self.ask(name, requests, [(index, STAYS)])]

    def settle(self, name: str, requests: list[dict[str, Any]], index: int) -> Metrics:
        """Wait until a node has nothing to do, knows of no store, and has no block that Mooncake still reads."""
        return settle(self.engines[name], lambda: self.ask(name, requests, [(index, STAYS)]))


@contextlib.contextmanager
def nodes(folder: Path, tier: dict[str, Any], **first: str) -> Iterator[Nodes]:
    """Nodes that are gone afterwards."""
    made = Nodes(folder, tier, first)
    try:
        made.start(*first)
        yield made
    finally:
        made.end()
