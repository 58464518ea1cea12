# SPDX-License-Identifier: Apache-2.0
"""Scripts for a real engine in a fresh process, and the prompts the tests use."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .engine_changes import FORK_VARIABLE
from .warm_process import ForkedProcess, Order, WarmProcess

BLOCK_TOKENS = 32
REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_PROCESS = "e2e.engine_process"
# What a process imports that engines are forked from.
WARM_MODULES = [
    "vllm.entrypoints.llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]
# What every engine is told, and the process that they are forked from.
USUAL_VARIABLES = {
    # Behind what names another vLLM than that of .venv.
    "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY / "tests")])),
    "TORCHINDUCTOR_CACHE_DIR": str(REPOSITORY / ".cache" / "torchinductor"),
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # What vLLM's eager mode still compiles costs most of an engine's start.
    "TORCHDYNAMO_DISABLE": "1",
    # OpenMP's spinning barriers cost ten times the time when other work wants the cores.
    "OMP_WAIT_POLICY": "passive",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# How the variables begin that are read after the imports: a forked engine may be given its own values of these.
LATE_VARIABLES = ("KVFERRY_", "VLLM_", "LMCACHE_")
# For tests that want to foresee which blocks a full tier stores and evicts; the others have the default, which adapts.
STORE_ALL = {"eviction": "lru", "admission": "always"}
# Below half of pytest's limit: a fixture may run two engines.
TIMEOUT_S = 280.0


@dataclasses.dataclass
class EngineScript:
    """What one engine process does; becomes the JSON that `engine_process` reads."""

    model: str
    kv_transfer_config: dict[str, Any] | None
    operations: list[dict[str, Any]]
    engine: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class EngineReport:
    """What came back: one result per operation, or the refusal, and everything the process printed."""

    results: list[dict[str, Any]]
    error: dict[str, str] | None
    returncode: int
    log: str


class EngineRunner:
    """Runs scripts against one model.

    Parameters
    ----------
    model
        Directory of the model.
    connector, module_path
        The connector under test; kvferry's own unless the environment names another.
    """

    def __init__(self, model: Path, connector: str, module_path: str) -> None:
        self.model = model
        self.connector = connector
        self.module_path = module_path
        config = json.loads((model / "config.json").read_text())
        self.kv_bytes_per_token: int = (
            config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * config["head_dim"] * 4
        )
        self.block_bytes = self.kv_bytes_per_token * BLOCK_TOKENS

    def kv_config(self, *, failure_policy: str = "fail", **extra: Any) -> dict[str, Any]:
        """The ``--kv-transfer-config`` value with `extra` as the connector's own keys.

        The tiny model computes as fast as a simulated link loads: everything is loaded.
        """
        return {
            "kv_connector": self.connector,
            "kv_connector_module_path": self.module_path,
            "kv_role": "kv_both",
            "kv_load_failure_policy": failure_policy,
            "kv_connector_extra_config": {"min_load_tokens": 0, **extra},
        }

    def run(
        self,
        operations: list[dict[str, Any]],
        kv_config: dict[str, Any] | None,
        *,
        num_gpu_blocks: int,
        max_model_len: int = 1024,
        max_num_batched_tokens: int = 1024,
        max_num_seqs: int = 64,
        num_ranks: int = 1,
        num_stages: int = 1,
        multiprocessing: bool = False,
        async_scheduling: bool = False,
        must_start: bool = True,
        environment: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> EngineReport:
        """Run `operations` on a fresh engine; `options` are further ones of vLLM's ``LLM``.

        With `multiprocessing` the engine core runs in a process of its own; the ranks of tensor parallel (`num_ranks`)
        and the stages of pipeline parallel (`num_stages`) always do.

        Raises
        ------
        AssertionError
            The process failed though `must_start`, or outlived `TIMEOUT_S`; its output is in the message.
        """
        script = EngineScript(
            model=str(self.model),
            kv_transfer_config=kv_config,
            operations=operations,
            engine={
                "block_size": BLOCK_TOKENS,
                "num_gpu_blocks_override": num_gpu_blocks,
                "max_model_len": max_model_len,
                "max_num_batched_tokens": max_num_batched_tokens,
                "max_num_seqs": max_num_seqs,
                "tensor_parallel_size": num_ranks,
                "pipeline_parallel_size": num_stages,
                **(options or {}),
            },
        )
        variables = {
            **os.environ,
            **USUAL_VARIABLES,
            "KVFERRY_E2E_ASYNC_SCHEDULING": str(int(async_scheduling)),
            "KVFERRY_E2E_STAGES": str(int(num_stages > 1)),
            "KVFERRY_E2E_OWN_FAILURES": str(int(num_ranks * num_stages > 1)),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores(num_ranks * num_stages))),
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing)),
            **(environment or {}),
        }
        with tempfile.TemporaryDirectory() as scratch:
            script_file = Path(scratch) / "script.json"
            report_file = Path(scratch) / "report.json"
            log_file = Path(scratch) / "log.txt"
            script_file.write_text(json.dumps(dataclasses.asdict(script)))
            # A session of its own, so that no process of an engine can outlive its test. Its directory
            # is outside the source tree: kvferry is found where it is installed. Sockets and rendezvous
            # files, which vLLM leaves when a process of it is killed, go there too.
            order = Order(
                ENGINE_PROCESS, [str(script_file), str(report_file)], variables | {"TMPDIR": scratch}, scratch,
                str(log_file),
            )  # fmt: skip
            is_usual = all(name.startswith(LATE_VARIABLES) for name in environment or {})
            order.environment[FORK_VARIABLE] = str(int(is_usual))
            process = warm_process().start(order) if is_usual else cold_process(order)
            try:
                returncode: int | None = process.wait(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                returncode = None
            finally:
                leftovers = _end_session(process)
            text = log_file.read_text(errors="replace")
            assert returncode is not None, f"the engine did not end within {TIMEOUT_S} s:\n{text}"
            assert not leftovers, f"the engine left processes behind:\n{text}"
            report: dict[str, Any] = {"results": [], "error": None}
            if report_file.exists():
                report = json.loads(report_file.read_text())
        if must_start:
            assert returncode == 0, f"the engine ended with {returncode}:\n{text}"
        return EngineReport(report["results"], report["error"], returncode, text)

    def run_named(
        self, script: dict[str, dict[str, Any]], kv_config: dict[str, Any] | None, **engine: Any
    ) -> dict[str, dict[str, Any]]:
        """Run the operations of `script`; results by its names. `engine` as for `run`."""
        report = self.run(list(script.values()), kv_config, **engine)
        return dict(zip(script, report.results, strict=True))


def cores(num_ranks: int) -> list[int]:
    """One core for each rank: the tiny model gains nothing by a second, on which another test's engine computes."""
    cores = sorted(os.sched_getaffinity(0))
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return [cores[(first + rank) % len(cores)] for rank in range(num_ranks)]


@functools.cache
def warm_process() -> WarmProcess:
    """The one of this process of pytest's."""
    started = WarmProcess(WARM_MODULES, {**os.environ, **USUAL_VARIABLES})
    atexit.register(started.end)
    return started


def cold_process(order: Order) -> subprocess.Popen[bytes]:
    """A process of its own from the start, for engines that start processes themselves."""
    with open(order.log, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", order.module, *order.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=order.folder,
            env=order.environment,
            start_new_session=True,
        )


def _end_session(process: subprocess.Popen[bytes] | ForkedProcess) -> bool:
    """End what is left of the process's session; True when there was something."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False  # the caller reports the time-out
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    try:  # vLLM's helpers get a moment to follow their parent
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Prompts:
    """Random prompts: the same for the same seed, different for different ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self, num_tokens: int, prefix: list[int] | None = None) -> list[int]:
        """A prompt of `num_tokens` tokens, `prefix` included."""
        start = list(prefix or [])
        return start + [self._random.randrange(256) for _ in range(num_tokens - len(start))]

    def many(self, count: int, num_tokens: int, prefix: list[int] | None = None) -> list[list[int]]:
        """`count` prompts that share `prefix` and nothing else."""
        return [self.make(num_tokens, prefix) for _ in range(count)]


def generate(prompts: list[list[int]], max_tokens: int = 16, submit: str = "together") -> dict[str, Any]:
    """The operation `generate`."""
    return {"op": "generate", "prompts": prompts, "max_tokens": max_tokens, "submit": submit}


def settle() -> dict[str, Any]:
    """The operation `settle`."""
    return {"op": "settle"}


def num_tokens_from_tier(result: dict[str, Any]) -> int:
    """Prompt tokens of an operation that came from outside the engine."""
    return int(result["counters"]["external_kv_transfer"])
