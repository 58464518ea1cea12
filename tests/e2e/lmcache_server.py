# SPDX-License-Identifier: Apache-2.0
"""LMCache's server with kvferry as its L2, as its users start it, and what a test asks of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .engine_runs import REPOSITORY
from .ports import free_ports

VENV = REPOSITORY / "build/lmcache/venv"
CHUNK_TOKENS = 64
TIMEOUT_S = 120.0


def site_packages() -> str:
    """Where LMCache is, for an engine whose own environment has none."""
    [found] = VENV.glob("lib/python3*/site-packages")
    return str(found)


class LmcacheServer:
    """One server; `start`, after `kill`, starts it anew with the same arguments.

    Parameters
    ----------
    log
        File for what it prints.
    mode
        ``--supported-transfer-mode``.
    adapter
        Keys of ``--l2-adapter`` beside those that name our client; ``adapter_params`` among them.
    """

    def __init__(self, log: Path, mode: str, adapter: dict[str, Any]) -> None:
        self._log = log
        self.port, self._http_port = free_ports(2)
        plugin = {"type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvFerryClient"}
        self._command = [
            str(VENV / "bin/lmcache"), "server", "--host", "127.0.0.1", "--port", str(self.port),
            "--http-host", "127.0.0.1", "--http-port", str(self._http_port),
            "--supported-transfer-mode", mode, "--chunk-size", str(CHUNK_TOKENS),
            "--l1-size-gb", "0.25", "--eviction-policy", "LRU", "--l2-adapter", json.dumps({**plugin, **adapter}),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Of its HTTP interface."""
        return f"http://127.0.0.1:{self._http_port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"},
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if status(self.url)["is_healthy"]:
                    return
            except OSError:
                pass
            assert self._process.poll() is None, f"the server ended:\n{self._log.read_text(errors='replace')}"
            assert time.monotonic() < deadline, f"no answer:\n{self._log.read_text(errors='replace')}"
            time.sleep(0.1)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def lmcache_server(log: Path, mode: str, **adapter: Any) -> Iterator[LmcacheServer]:
    """A server that is gone afterwards."""
    server = LmcacheServer(log, mode, adapter)
    try:
        yield server
    finally:
        server.kill()


def status(url: str) -> dict[str, Any]:
    """The server's own account of itself."""
    with urllib.request.urlopen(f"{url}/status", timeout=TIMEOUT_S) as answer:
        return dict(json.load(answer))


def metric(url: str, name: str) -> float:
    """Sum of one of LMCache's counters over its labels; 0 if it has not counted yet."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}_total(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def await_metric(engine: Any, url: str, name: str) -> dict[str, Any]:
    """Wait until a counter is not 0: an operation of a script."""
    deadline = time.monotonic() + TIMEOUT_S
    while metric(url, name) == 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is 0 after {TIMEOUT_S} s: {status(url)['storage_manager']}")
        time.sleep(0.2)
    return {}


def empty_l1(engine: Any, url: str) -> dict[str, Any]:
    """Wait until the server has handed everything to L2, and empty its L1: an operation of a script."""
    deadline = time.monotonic() + TIMEOUT_S
    num_idle = 0
    while num_idle < 3:  # what an engine has sent may just be arriving
        controller = status(url)["storage_manager"]["store_controller"]
        is_idle = controller["pending_keys_count"] == controller["in_flight_task_count"] == 0
        num_idle = num_idle + 1 if is_idle else 0
        if time.monotonic() > deadline:
            raise TimeoutError(f"still storing: {controller}")
        time.sleep(0.2)
    with urllib.request.urlopen(urllib.request.Request(f"{url}/cache/clear", method="POST"), timeout=TIMEOUT_S):
        pass
    return {"num_left": status(url)["storage_manager"]["l1_manager"]["total_object_count"]}
