# SPDX-License-Identifier: Apache-2.0
"""Dynamo on one machine: its frontend with the KV router, and workers with the connector, all of them processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from e2e.engine_runs import BLOCK_TOKENS, REPOSITORY, cores
from e2e.http_clients import Answer, Patience, ask
from e2e.ports import free_low_port, free_ports
from e2e.served_checks import settle
from e2e.server_process import START_S, WAIT_S, Metrics, ServerProcess, errors_in
from e2e.shared_memory import abandoned, shared_memory

# Where Dynamo and its vLLM are; this process has them on its path too, behind the tests.
SITES = os.pathsep.join(str(REPOSITORY / "build" / name / "site") for name in ("dynamo", "vllm031"))
NUM_GPU_BLOCKS = 100


def common_variables(folder: Path) -> dict[str, str]:
    """What every process of one Dynamo has to be told: they find each other by files, and need no server for it."""
    return {
        "PYTHONPATH": SITES,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Selection(NamedTuple):
    """Which worker the router chose, and how many blocks of the request it knew in that worker's tier only."""

    worker: int
    num_tier_blocks: int


# Dynamo calls it an error when a client goes away while it is answered, or before it has said all that it asks, and
# when the last worker goes and with it those who watch for workers.
NO_ERROR = re.compile(
    r"Failed to publish (response|complete final) for stream|http response sent status=400 latency_ms=0 "
    r"|ERROR dynamo_runtime::(storage|component)::.*\bchannel closed\b"
)
SELECTED = re.compile(r"Selected worker .*\bworker_id=(\d+) .*\bhost_pinned_blocks=(\d+)")


class Frontend(ServerProcess):
    """What clients talk to.

    Parameters
    ----------
    folder
        For its log, and for what Dynamo keeps in files.
    router_mode
        How it chooses a worker: ``"kv"`` (by what a worker has) or ``"random"``.
    """

    def __init__(self, folder: Path, router_mode: str = "kv") -> None:
        [port] = free_ports(1)
        command = [
            sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port),
            "--router-mode", router_mode, "--kv-cache-block-size", str(BLOCK_TOKENS),
            "--migration-limit", "3",  # what a worker leaves unfinished goes to another
        ]  # fmt: skip
        log = folder / f"frontend-{router_mode}.log"
        super().__init__(f"http://127.0.0.1:{port}", log, command, common_variables(folder))

    def worker_ids(self) -> set[int]:
        """Those of the workers that it may give requests to."""
        try:
            instances = json.loads(self.get("/health")).get("instances", [])
        except OSError:  # it is starting
            return set()
        return {instance["instance_id"] for instance in instances if instance["endpoint"] == "generate"}

    def num_migrated(self) -> int:
        """Requests that went from one worker to another in the middle of their answers."""
        counts = self.metrics().get("dynamo_frontend_model_migration_duration_seconds_count", {})
        return int(sum(count for labels, count in counts.items() if "ongoing_request" in labels))

    def selections(self) -> list[Selection]:
        """What the router has chosen since the start."""
        return [Selection(int(worker), int(count)) for worker, count in SELECTED.findall(self.log())]

    def would_select(self, request: dict[str, Any]) -> Selection:
        """What the router would choose for a request, which does not run."""
        num_before = len(self.selections())
        body = {**request, "model": "tiny", "nvext": {"annotations": ["query_instance_id:"]}}
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(question, timeout=WAIT_S):
            pass
        self.await_that("the choice is in the log", lambda: len(self.selections()) > num_before)
        return self.selections()[-1]

    def await_selection(self, request: dict[str, Any], selection: Selection) -> None:
        """Wait until the router would choose this: workers tell it what they have and lose in their own time."""
        self.await_that(f"the router would choose {selection}", lambda: self.would_select(request) == selection)

    def await_that(self, what: str, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.log()}"
            time.sleep(0.1)


class Worker(ServerProcess):
    """One engine with the connector, in a process of Dynamo's."""

    # Dynamo's beside vLLM's.
    common_labels = ServerProcess.common_labels | {
        "dynamo_component", "dynamo_endpoint", "dynamo_namespace", "model", "worker_id",
    }  # fmt: skip

    def __init__(self, folder: Path, name: str, model: Path, tier: dict[str, Any], core: int) -> None:
        port, [events_port] = free_low_port(), free_ports(1)
        kv_transfer = {
            "kv_connector": "KvFerryConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": tier,
        }
        # Bound, not connected to: with an address in place of the star the router would be told nothing.
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events_port}",
            "topic": "kv-events",
        }
        command = [
            sys.executable, "-m", "dynamo.vllm", "--model", str(model), "--served-model-name", "tiny",
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
            "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(NUM_GPU_BLOCKS),
            "--shutdown-timeout", "30", "--kv-transfer-config", json.dumps(kv_transfer),
            "--kv-events-config", json.dumps(events),
        ]  # fmt: skip
        variables = {
            "DYN_SYSTEM_PORT": str(port),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
            "OMP_WAIT_POLICY": "passive",
            "TORCHINDUCTOR_CACHE_DIR": str(REPOSITORY / ".cache" / "torchinductor"),
        }
        super().__init__(
            f"http://127.0.0.1:{port}", folder / f"{name}.log", command, common_variables(folder) | variables
        )

    def worker_id(self) -> int:
        """What Dynamo calls it."""
        [found] = set(re.findall(r'\bworker_id="([0-9a-f]+)"', self.get("/metrics")))
        return int(found, 16)

    def num_cancelled(self) -> int:
        """How often it was told to stop a request, as the client had gone."""
        return self.log().count("request cancellation received")


@dataclasses.dataclass
class ClusterEnd:
    """How the processes ended that were told to, and what they left."""

    exit_statuses: dict[str, int]
    logs: dict[str, str]
    is_anything_left: bool
    shared_memory: set[str]

    def assert_well(self, of: str) -> None:
        """Those whose names begin so said no error, all ended with success, and no process is left."""
        said = [line for name, log in self.logs.items() if name.startswith(of) for line in errors_in(log)]
        wrong = [line for line in said if not NO_ERROR.search(line)]
        assert not wrong, "\n".join(wrong)
        assert set(self.exit_statuses.values()) == {0}, self.exit_statuses
        assert not self.is_anything_left


class Cluster:
    """A frontend and its workers, each with the id that the frontend knows it by.

    Parameters
    ----------
    folder
        For logs and for what Dynamo keeps in files.
    model
        Directory of the model.
    tier
        ``kv_connector_extra_config`` of each worker.

    Attributes
    ----------
    frontend
        Its frontend.
    workers
        Those that live, by id.
    latest
        The cluster that was started last.
    """

    latest: ClassVar[Cluster | None] = None

    def __init__(self, folder: Path, model: Path, tier: dict[str, Any]) -> None:
        self._folder, self._model, self._tier = folder, model, tier
        self.workers: dict[int, Worker] = {}
        self._shared_memory_before = shared_memory()
        self._servers: list[ServerProcess] = []
        self._num_started = 0
        self.frontend = Frontend(folder)
        self._frontends: list[ServerProcess] = [self.frontend]
        Cluster.latest = self

    def start_frontend(self, router_mode: str) -> Frontend:
        """Start one more for the same workers, and wait until it knows them."""
        frontend = Frontend(self._folder, router_mode)
        self._frontends.append(frontend)
        frontend.await_that("it knows the workers", lambda: frontend.worker_ids() == set(self.workers), START_S)
        return frontend

    def start_worker(self, tier: dict[str, Any] | None = None) -> Worker:
        """Start one, with a tier of its own if it is given, which `await_workers` waits for."""
        number, self._num_started = self._num_started, self._num_started + 1
        core = cores(2)[number % 2]
        worker = Worker(self._folder, f"worker{number}", self._model, self._tier if tier is None else tier, core)
        self._servers.append(worker)
        return worker

    def await_workers(self, started: list[Worker]) -> list[int]:
        """Wait until the frontend knows them beside those it has known; returns their ids."""
        num_workers = len(self.workers) + len(started)
        self.frontend.await_that(
            f"{num_workers} workers are known",
            lambda: len(self.frontend.worker_ids()) >= num_workers or any(one.has_ended() for one in started),
            START_S,
        )
        for worker in started:
            worker.await_answer()
            self.workers[worker.worker_id()] = worker
        return [worker.worker_id() for worker in started]

    def ask(
        self,
        requests: list[dict[str, Any]],
        asked: list[tuple[int, Patience]],
        worker: int | None = None,
        frontend: Frontend | None = None,
    ) -> list[Answer]:
        """As `http_clients.ask`, of a worker that is named or that the router chooses: the first frontend's or this."""
        headers = {} if worker is None else {"x-worker-instance-id": str(worker)}
        told = [{**request, "nvext": {"extra_fields": ["worker_id"]}} for request in requests]
        return ask((frontend or self.frontend).url, told, asked, headers=headers)

    def kill_worker(self, worker: int) -> None:
        """End it as a crash would."""
        killed = self.workers.pop(worker)
        self._servers.remove(killed)
        killed.kill()

    def settle(self, worker: int, requests: list[dict[str, Any]], asked: list[int]) -> list[Answer]:
        """Ask a worker once more, and wait until it has nothing to do and knows of no store; returns its answers."""
        answers = self.ask(requests, [(index, Patience()) for index in asked], worker)
        settle(self.workers[worker], lambda: answers.extend(self.ask(requests, [(asked[0], Patience())], worker)))
        return answers

    def metrics(self) -> list[Metrics]:
        """Those of each worker."""
        return [worker.metrics() for worker in self.workers.values()]

    def stop(self) -> ClusterEnd:
        """End the workers, and then the frontends."""
        exit_statuses, is_anything_left = {}, False
        for servers in (self._servers, self._frontends):
            for server in servers:
                server.terminate()
            for server in servers:
                exit_statuses[server.name] = server.process.wait(timeout=WAIT_S)
                is_anything_left |= server.is_anything_left()
        logs = self.logs()
        self.kill()
        left = abandoned(shared_memory() - self._shared_memory_before)
        return ClusterEnd(exit_statuses, logs, is_anything_left, left)

    def logs(self) -> dict[str, str]:
        """What each process has printed."""
        return {server.name: server.log() for server in self._servers + self._frontends}

    def kill(self) -> None:
        """End all of it, whatever the test has come to."""
        for server in self._servers + self._frontends:
            server.kill()


@contextlib.contextmanager
def cluster(folder: Path, model: Path, tier: dict[str, Any], num_workers: int = 2) -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    started = Cluster(folder, model, tier)
    try:
        started.await_workers([started.start_worker() for _ in range(num_workers)])
        yield started
    finally:
        started.kill()
