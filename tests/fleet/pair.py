# SPDX-License-Identifier: Apache-2.0
"""A prefill engine, a decode engine and the proxy before them, as examples/prefill_decode starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.crowds import STAYS
from e2e.engine_runs import cores
from e2e.http_clients import TIMEOUT_S, Answer, Heard, Patience, ask
from e2e.ports import free_ports
from e2e.served_checks import settle
from e2e.server_process import Metrics, ServerProcess
from processes import EXAMPLES, Engine, Processes

PROXY = EXAMPLES / "prefill_decode/proxy.py"
ROLES = ("prefill", "decode")


class PairedEngine(Engine):
    """One of the two; it is starting when the constructor returns."""

    def __init__(self, log: Path, role: str, ports: tuple[int, int], variables: dict[str, str]) -> None:
        port, side_port = ports
        told = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            "UCX_TLS": "tcp,self",
        }
        command = ["prefill_decode/engine.sh", role]
        super().__init__(log, command, port, cores(2)[ROLES.index(role)], told | variables)

    def freeze(self) -> None:
        """Stop all of its processes, as a machine that has lost its network: it holds its blocks and says nothing."""
        os.killpg(self.process.pid, signal.SIGSTOP)


def num_loading(metrics: Metrics) -> float:
    """Requests that wait for a KV cache to come, or for their turn."""
    return metrics["vllm:num_requests_waiting"][""]


def sent_bytes(metrics: Metrics) -> float:
    """Bytes that NIXL has brought to an engine."""
    return metrics["vllm:nixl_bytes_transferred_sum"][""]


def num_failed_transfers(metrics: Metrics) -> float:
    """Transfers of NIXL that an engine has given up, and peers that it could not reach."""
    return metrics["vllm:nixl_num_failed_transfers_total"][""]


class Pair(Processes):
    """Both engines and the proxy, each at one URL in all of its lives.

    Parameters
    ----------
    folder
        For logs.
    tier
        ``kv_connector_extra_config`` of kvferry in each engine.
    first
        The connector that an engine asks first, ``"tier"`` or ``"network"``.
    lease_s
        How long a prompt stays in the prefill engine that no decode engine has read.
    """

    def __init__(self, folder: Path, tier: dict[str, Any], first: str = "tier", lease_s: int = 120) -> None:
        super().__init__(folder)
        self._variables = {"TIER": json.dumps(tier), "FIRST": first, "LEASE": str(lease_s)}
        self._ports = {role: (port, side) for role, (port, side) in zip(ROLES, _pairs(free_ports(4)), strict=True)}
        self._engines: dict[str, PairedEngine] = {}
        [port] = free_ports(1)
        urls = {role: f"http://127.0.0.1:{port}" for role, (port, _) in self._ports.items()}
        command = [sys.executable, str(PROXY), "--port", str(port)]
        command += [argument for role in ROLES for argument in (f"--{role}", urls[role])]
        self.proxy = ServerProcess(f"http://127.0.0.1:{port}", folder / "proxy.log", command, {})
        self._all.append(self.proxy)

    @property
    def prefill(self) -> PairedEngine:
        return self._engines["prefill"]

    @property
    def decode(self) -> PairedEngine:
        return self._engines["decode"]

    def start(self, *roles: str) -> None:
        """Start these engines, the first time or again, and wait until they answer."""
        for role in roles:
            self._engines[role] = PairedEngine(self._next_log(role), role, self._ports[role], self._variables)
            self._all.append(self._engines[role])
        for role in roles:
            self._engines[role].await_answer()
        self.proxy.await_answer()

    def kill(self, *roles: str) -> None:
        """End engines as a crash of their machine would."""
        for role in roles:
            self._engines.pop(role).kill()

    def ask(
        self, requests: list[dict[str, Any]], asked: list[tuple[int, Patience]], heard: Heard | None = None
    ) -> list[Answer]:
        """As `http_clients.ask`, of the proxy."""
        return ask(self.proxy.url, requests, asked, heard=heard)

    def ask_in_turn(self, requests: list[dict[str, Any]], asked: list[int]) -> list[Answer]:
        """One request after the other."""
        return [answer for index in asked for answer in self.ask(requests, [(index, STAYS)])]

    def prefill_alone(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the prefill engine compute a prompt; returns what the decode engine has to be told."""
        body = {"model": "tiny", **request, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        question = urllib.request.Request(
            f"{self.prefill.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(question, timeout=TIMEOUT_S) as answer:
            where: dict[str, Any] = json.load(answer)["kv_transfer_params"]
        return where

    def settle(self, requests: list[dict[str, Any]], index: int) -> tuple[Metrics, Metrics]:
        """Wait until both engines have nothing to do and know of no store, and the prefill engine of no lease."""
        found = {}
        for role in ROLES:
            engine = self._engines[role]
            found[role] = settle(engine, lambda: self.ask(requests, [(index, STAYS)]))
        return found["prefill"], found["decode"]

    def metrics(self) -> tuple[Metrics, Metrics]:
        """Those of the prefill engine and of the decode engine."""
        return self.prefill.metrics(), self.decode.metrics()


def _pairs(ports: list[int]) -> Iterator[tuple[int, int]]:
    return zip(ports[::2], ports[1::2], strict=True)


@contextlib.contextmanager
def pair(folder: Path, tier: dict[str, Any], first: str = "tier", lease_s: int = 120) -> Iterator[Pair]:
    """A pair that is gone afterwards."""
    made = Pair(folder, tier, first, lease_s)
    try:
        made.start(*ROLES)
        yield made
    finally:
        made.end()
