# SPDX-License-Identifier: Apache-2.0
"""One real engine in a process of its own: reads a JSON script, runs it, writes a JSON report.

    python -m e2e.engine_process SCRIPT.json REPORT.json

The script's fields are those of `engine_runs.EngineScript`; an operation is ``{"op": NAME, ...}`` with the
keyword arguments of the function of that name in `OPERATIONS`. What the engine raises at start-up goes to
the report as ``{"error": {"type", "message"}}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.stand_in import StandIn

from .engine_changes import (
    FORK_VARIABLE,
    fork_processes,
    give_ranks_failures_of_their_own,
    inspect_models_here,
    keep_async_scheduling_on,
    look_for_kernels_past_llvmlite,
    read_logging_level,
    run_every_stage_once,
    support_layouts,
)
from .engine_death import die_later
from .engine_weights import name_weights, update_weights
from .feature_operations import ask, await_figure, follow_up, pause_while_loading
from .lmcache_server import await_metric, empty_l1
from .numeric_facts import numerics
from .rests import RANK_TIMEOUT_VARIABLE, rest, shorten_rank_timeout, stop_worker_during_load
from .storm import storm
from .worker_death import kill_worker_during_transfer

DEADLINE_S = 120.0
ASYNC_VARIABLE = "KVFERRY_E2E_ASYNC_SCHEDULING"
OWN_FAILURES_VARIABLE = "KVFERRY_E2E_OWN_FAILURES"
STAGES_VARIABLE = "KVFERRY_E2E_STAGES"
LAYOUTS_VARIABLE = "KVFERRY_E2E_CPU_LAYOUTS"
STAND_IN_VARIABLE = "KVFERRY_E2E_STAND_IN"
SITE_PACKAGES_VARIABLE = "KVFERRY_E2E_SITE_PACKAGES"


def kvferry_of(connector: Any) -> Any:
    """The engine's connector, or the one of a ``MultiConnector``'s that is kvferry's."""
    children = getattr(connector, "sub_connectors", [connector])
    return next((child for child in children if hasattr(child, "scheduler_side")), connector)


def worker_stats(worker: Any) -> dict[str, int]:
    """Counters of the connector in a worker; runs there."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return dict(kvferry_of(get_kv_transfer_group()).worker_side.engine.stats())


class Engine:
    """The engine under test and the operations a script can ask of it."""

    def __init__(self, script: dict[str, Any]) -> None:
        from vllm import LLM

        from . import random_weights  # noqa: F401 (a load format)

        inspect_models_here()
        options = {
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,
            "dtype": "float32",
            **script["engine"],
        }
        self.llm = LLM(
            model=script["model"],
            enforce_eager=True,
            disable_log_stats=False,
            seed=0,
            kv_transfer_config=script["kv_transfer_config"],
            **options,
        )

    # Of the engine core, when it runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0).

    @property
    def core(self) -> Any:
        """The engine core."""
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler; its `connector` is the scheduler side of the connector."""
        return self.core.scheduler

    def has_work(self) -> bool:
        """Whether the engine core's own loop would run another step."""
        return bool(self.scheduler.has_requests() or self.core.batch_queue)

    def counters(self) -> dict[str, int]:
        """Prompt tokens by where they came from, since the start."""
        from vllm.v1.metrics.reader import Counter

        return {
            metric.labels["source"]: metric.value
            for metric in self.llm.get_metrics()
            if isinstance(metric, Counter) and metric.name == "vllm:prompt_tokens_by_source"
        }

    def num_preemptions(self) -> int:
        """Preemptions, since the start."""
        from vllm.v1.metrics.reader import Counter

        metrics = self.llm.get_metrics()
        return sum(
            metric.value for metric in metrics if isinstance(metric, Counter) and metric.name == "vllm:num_preemptions"
        )

    # Operations of a script.

    def generate(self, prompts: list[list[int]], max_tokens: int, submit: str) -> dict[str, Any]:
        """Greedy tokens of every prompt, submitted ``"together"`` or ``"one_by_one"``, and the counters."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)
        batches = {"together": [prompts], "one_by_one": [[prompt] for prompt in prompts]}[submit]
        before = self.counters()
        tokens: list[list[int]] = []
        num_cached: list[int] = []
        for batch in batches:
            outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in batch], sampling, use_tqdm=False)
            tokens += [list(output.outputs[0].token_ids) for output in outputs]
            num_cached += [output.num_cached_tokens or 0 for output in outputs]
            self.drain()
        after = self.counters()
        return {
            "tokens": tokens,
            "num_cached_tokens": num_cached,
            "counters": {source: after[source] - before.get(source, 0) for source in after},
        }

    def chat(self, turns: list[list[int]], others: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """A conversation that grows by `turns`; `others` run between two turns and push it out."""
        history: list[int] = []
        tokens: list[list[int]] = []
        counters: dict[str, int] = {}
        for turn in turns:
            history = history + turn
            result = self.generate([history], max_tokens, "one_by_one")
            tokens.append(result["tokens"][0])
            history = history + result["tokens"][0]
            for source, value in result["counters"].items():
                counters[source] = counters.get(source, 0) + value
            self.generate(others, 1, "together")
        return {"tokens": tokens, "counters": counters}

    def drain(self) -> dict[str, Any]:
        """Step as the engine core's own loop does until it would wait for requests (in process only)."""
        if not hasattr(self.llm.llm_engine.engine_core, "engine_core"):
            return {}  # another process runs that loop
        num_steps = 0
        deadline = time.monotonic() + DEADLINE_S
        while self.has_work():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine still has work after {DEADLINE_S} s and {num_steps} steps")
            self.llm.llm_engine.step()
            num_steps += 1
        return {"num_steps": num_steps}

    def reset_prefix_cache(self, reset_connector: bool = False, patience_s: float = 0.0) -> dict[str, Any]:
        """Empty the engine's own cache, and the tier if so told.

        vLLM refuses as long as a block is held, as connectors do for their stores that are not kvferry; it is asked
        again for `patience_s` seconds.
        """
        deadline = time.monotonic() + patience_s
        while True:
            done = bool(self.llm.reset_prefix_cache(reset_connector=reset_connector))
            if done or time.monotonic() >= deadline:
                return {"done": done}
            time.sleep(0.05)

    def drop_gpu_cache(self) -> dict[str, Any]:
        """Empty the engine's own cache, and write ones over the memory behind it: the tier stays."""
        assert self.reset_prefix_cache()["done"], "requests are running"
        for tensors in self.core.model_executor.driver_worker.worker.model_runner.kv_caches:
            for tensor in tensors if isinstance(tensors, list) else [tensors]:
                tensor.fill_(1)
        return {}

    def inspect(self) -> dict[str, Any]:
        """Blocks of the engine's pool, and the connector's own account of the tier and its transfers.

        Every hit is a multiple of ``hit_tokens``.
        """
        pool = self.scheduler.kv_cache_manager.block_pool
        report = {
            "num_gpu_blocks": pool.num_gpu_blocks,
            "num_free_gpu_blocks": pool.get_num_free_blocks(),
            "num_requests": len(self.scheduler.requests),
            "has_work": self.has_work(),
            "hit_tokens": self.scheduler.block_size,
            "async_scheduling": self.core.async_scheduling and self.core.batch_queue is not None,
        }
        if self.is_kvferry():
            report["tier"] = self.tier()
            report["workers"] = self.llm.collective_rpc(worker_stats)
        return report

    def metrics(self) -> dict[str, Any]:
        """What ``/metrics`` shows of kvferry: values by name, and behind a slash that of our own label.

        Of a histogram how much it has seen.
        """
        from vllm.v1.metrics.reader import Histogram

        own = ("reason", "state", "rank", "kind")
        report = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:kvferry_"):
                label = "".join(f"/{metric.labels[name]}" for name in own if name in metric.labels)
                report[metric.name + label] = metric.count if isinstance(metric, Histogram) else metric.value
        return report

    def is_kvferry(self) -> bool:
        """Whether the connector under test is kvferry's, and does something."""
        return getattr(kvferry_of(self.scheduler.connector), "scheduler_side", None) is not None

    def tier(self) -> dict[str, int]:
        """The scheduler side's account of the slots."""
        return dict(kvferry_of(self.scheduler.connector).scheduler_side.engine.snapshot())

    def worker_engine(self) -> Any:
        """The `kvferry.WorkerEngine` of the only rank."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector: Any = get_kv_transfer_group()
        return connector.worker_side.engine

    def settle(self) -> dict[str, Any]:
        """Give the engine requests too short to be stored until no store is on its way."""
        deadline = time.monotonic() + DEADLINE_S
        num_requests = 0
        while True:
            self.generate([[num_requests % 256]], 1, "together")
            self.drain()
            num_requests += 1
            if not self.is_kvferry():
                return {"num_requests": num_requests}
            tier = self.tier()
            if tier["num_writable"] == tier["num_aborted"] == tier["num_dying"] == 0:
                return {"num_requests": num_requests}
            if time.monotonic() > deadline:
                raise TimeoutError(f"stores are still on their way after {DEADLINE_S} s: {tier}")
            time.sleep(0.01)

    def wait_until_ready(self, num_slots: int) -> dict[str, Any]:
        """Give the engine short requests until so many slots of the tier are ready."""
        deadline = time.monotonic() + DEADLINE_S
        while self.tier()["num_slots"] < num_slots:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {DEADLINE_S} s: {self.tier()}")
            self.generate([[1]], 1, "together")
            time.sleep(0.05)
        return {}

    def overwrite_slot(self, source: int, to: int) -> dict[str, Any]:
        """Put the bytes of one slot of the tier into another."""
        self.worker_engine().unsafe_copy_slot(source, to)
        return {}

    def spoil_tier(self) -> dict[str, Any]:
        """Put the bytes of the first slot into all the others: whatever is loaded now is wrong."""
        for slot in range(1, self.worker_engine().num_slots):
            self.overwrite_slot(0, slot)
        return {}

    def abort_during_load(self, prompts: list[list[int]], max_tokens: int, num_aborts: int) -> dict[str, Any]:
        """Submit `prompts`, abort the first `num_aborts` seen loading, run the others to their end."""
        from vllm import SamplingParams
        from vllm.v1.request import RequestStatus

        sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)
        front = self.llm.llm_engine
        for index, prompt in enumerate(prompts):
            front.add_request(f"abort-{index}", {"prompt_token_ids": prompt}, sampling)
        aborted: list[int] = []
        tokens: dict[int, list[int]] = {}
        deadline = time.monotonic() + DEADLINE_S
        num_steps = 0
        while self.has_work():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not idle after {DEADLINE_S} s, {num_steps} steps, aborted {aborted}")
            for output in front.step():
                if output.finished:
                    index = int(output.request_id.split("-")[1])
                    tokens[index] = list(output.outputs[0].token_ids)
            num_steps += 1
            for request in list(self.scheduler.requests.values()):
                if len(aborted) < num_aborts and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                    # The engine adds a suffix to the ids that it was given.
                    index = int(request.request_id.split("-")[1])
                    front.abort_request([f"abort-{index}"])
                    aborted.append(index)
        return {
            "aborted": aborted,
            "tokens": [tokens.get(index) for index in range(len(prompts))],
            "num_steps": num_steps,
        }


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "generate": Engine.generate,
    "chat": Engine.chat,
    "drain": Engine.drain,
    "reset_prefix_cache": Engine.reset_prefix_cache,
    "drop_gpu_cache": Engine.drop_gpu_cache,
    "inspect": Engine.inspect,
    "metrics": Engine.metrics,
    "settle": Engine.settle,
    "wait_until_ready": Engine.wait_until_ready,
    "overwrite_slot": Engine.overwrite_slot,
    "spoil_tier": Engine.spoil_tier,
    "abort_during_load": Engine.abort_during_load,
    "storm": storm,
    "ask": ask,
    "await_figure": await_figure,
    "follow_up": follow_up,
    "update_weights": update_weights,
    "name_weights": name_weights,
    "pause_while_loading": pause_while_loading,
    "empty_lmcache_l1": empty_l1,
    "await_metric": await_metric,
    "die_later": die_later,
    "kill_worker_during_transfer": kill_worker_during_transfer,
    "numerics": numerics,
    "rest": rest,
    "stop_worker_during_load": stop_worker_during_load,
}


def main(script_file: Path, report_file: Path) -> int:
    """Run the script; 0 when it ran to its end, 3 when the engine refused to start."""
    script = json.loads(script_file.read_text())
    try:
        engine = Engine(script)
    except Exception as error:  # whatever the engine says is what the test looks at
        refusal = {"type": type(error).__name__, "message": str(error)}
        report_file.write_text(json.dumps({"error": refusal, "results": []}))
        raise
    results = []
    for operation in script["operations"]:
        arguments = dict(operation)
        results.append(OPERATIONS[arguments.pop("op")](engine, **arguments))
    report_file.write_text(json.dumps({"error": None, "results": results}))
    return 0


# At import, because the processes that the engine starts import this module too.
if os.environ.get(FORK_VARIABLE) == "1":
    fork_processes()
    read_logging_level()
if os.environ.get(ASYNC_VARIABLE) == "1":
    keep_async_scheduling_on()
if os.environ.get(OWN_FAILURES_VARIABLE) == "1":
    give_ranks_failures_of_their_own()

if LAYOUTS_VARIABLE in os.environ:
    support_layouts(os.environ[LAYOUTS_VARIABLE].split(","))
if os.environ.get(STAGES_VARIABLE) == "1":
    run_every_stage_once()
if RANK_TIMEOUT_VARIABLE in os.environ:
    shorten_rank_timeout()

if SITE_PACKAGES_VARIABLE in os.environ:
    # Behind the environment's own: what both have comes from there.
    sys.path.append(os.environ[SITE_PACKAGES_VARIABLE])
    look_for_kernels_past_llvmlite()
if os.environ.get(STAND_IN_VARIABLE) == "1":
    StandIn().install(setattr)

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
