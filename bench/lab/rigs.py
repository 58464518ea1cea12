# SPDX-License-Identifier: Apache-2.0
"""Engines, one for each connector: vLLM's real scheduler, the connector's scheduler side, and stand-in workers."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))

from harness import Hasher, ToySpec, make_kv_cache_configs, make_scheduler, make_vllm_config
from hook_clock import Cost, HookClock
from vllm.config import set_current_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from worker_doubles import KvFerryWorker, OffloadingWorker, SimpleWorker, WorkerDouble

BLOCK_TOKENS = 16
MAX_BATCHED_TOKENS = 8192
MAX_SEQS = 64
LONG_TOKENS = 131_072
_ALIGNMENT = 4096  # OffloadingConnector rounds the bytes of a block up to this.
_MAX_STEPS = 1000


@dataclass(frozen=True)
class Kind:
    """A connector.

    Attributes
    ----------
    name
        Name for tables.
    connector, module
        Its names for vLLM.
    extra
        Further keys of its configuration.

    """

    name: str
    connector: str
    module: str | None
    extra: Mapping[str, Any] = field(default_factory=dict)


# Every life should store its blocks, as with the other connectors; all other keys have their defaults.
_OURS = {"admission": "always", "min_load_tokens": 0}
# What the recorder costs: the same without it.
UNRECORDED = Kind("unrecorded", "KvFerryConnector", "kvferry.vllm", {**_OURS, "recorder_bytes": 0})
KINDS = (
    Kind("kvferry", "KvFerryConnector", "kvferry.vllm", _OURS),
    Kind("SimpleCPUOffload", "SimpleCPUOffloadConnector", None),
    Kind("Offloading", "OffloadingConnector", None),
)


def make_request(request_id: str, tokens: list[int], max_tokens: int, hasher: Hasher) -> Request:
    """Make a request that adds some tokens."""
    return Request(
        request_id=request_id,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=hasher,
    )


def step(
    scheduler: Any, worker: WorkerDouble, sample: Callable[[str], int]
) -> tuple[SchedulerOutput, dict[int, EngineCoreOutputs]]:
    """Make one step, in the order of vLLM's engine core; `sample` returns a request's next token."""
    scheduler.has_requests()
    output = scheduler.schedule()
    report = worker.execute(output)
    ids = list(output.num_scheduled_tokens)
    requests = scheduler.requests
    sampled = [
        [sample(request_id)] if requests[request_id].num_computed_tokens >= requests[request_id].num_tokens else []
        for request_id in ids
    ]
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
        kv_connector_output=report,
    )
    return output, scheduler.update_from_output(output, result)


def run_until_idle(scheduler: Any, worker: WorkerDouble, take_step: Callable[[], object], name: str) -> None:
    """Step until there are no requests, and all transfers have ended and were reported."""
    for _ in range(_MAX_STEPS):
        if not scheduler.has_requests() and not worker.is_busy:
            return
        take_step()
    raise TimeoutError(f"{name}: not idle after {_MAX_STEPS} steps: {list(scheduler.requests)}")


def num_stock_chunks(scheduler: Any) -> int:
    """Return the number of chunks that the tier of an OffloadingConnector holds now."""
    manager = scheduler.connector.connector_scheduler.manager
    return int(manager._num_chunks - manager._get_num_free_chunks())


class Rig:
    """One engine.

    Parameters
    ----------
    kind
        Its connector.
    num_blocks
        Number of blocks in the GPU pool.
    num_slots
        Number of blocks that the tier holds.
    model
        Arguments for ``ToySpec`` instead of one layer of full attention.

    Attributes
    ----------
    scheduler
        vLLM's scheduler.
    worker
        The stand-in for its ranks.
    hit_tokens, local_tokens
        Tokens that the engine has taken from the tier, and from its own cache.
    request_ns
        Nanoseconds that vLLM took to make and hash each 128k-token request.

    """

    def __init__(self, kind: Kind, num_blocks: int, num_slots: int, model: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        spec = replace(self._spec(kind, num_blocks, tier_bytes=2**30), **(model or {}))
        with TemporaryDirectory(prefix="kvferry-lab-") as folder:
            config = make_vllm_config(Path(folder), spec)
            with set_current_vllm_config(config):
                (worker_config,) = make_kv_cache_configs(config, spec)
                block_bytes = worker_config.kv_cache_tensors[0].size // worker_config.num_blocks
                self.block_bytes = block_bytes
                slot_bytes = (
                    -(-block_bytes // _ALIGNMENT) * _ALIGNMENT
                    if kind.connector == "OffloadingConnector"
                    else block_bytes
                )
                assert config.kv_transfer_config is not None
                config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] = num_slots * slot_bytes
                kv_cache_config = generate_scheduler_kv_cache_config([worker_config])
                self.worker: WorkerDouble
                if kind.connector == "KvFerryConnector":
                    self.worker = KvFerryWorker(config, worker_config, spec.layout)
                elif kind.connector == "OffloadingConnector":
                    self.worker = OffloadingWorker(block_bytes)
                else:
                    self.worker = SimpleWorker()
                self.scheduler, self._hasher = make_scheduler(config, kv_cache_config)
        self._ids: Iterator[int] = count()
        self.hit_tokens = 0
        self.local_tokens = 0
        self.request_ns: list[int] = []
        self.clock = HookClock(self.scheduler.connector)

    @staticmethod
    def _spec(kind: Kind, num_blocks: int, tier_bytes: int) -> ToySpec:
        return ToySpec(
            num_blocks=num_blocks,
            block_size=BLOCK_TOKENS,
            num_layers=1,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            max_num_seqs=MAX_SEQS,
            max_model_len=LONG_TOKENS + 4096,
            extra_config={"cpu_bytes_to_use": tier_bytes, **kind.extra},
            connector=kind.connector,
            connector_module=kind.module,
        )

    def close(self) -> None:
        """Shut both sides down."""
        self.scheduler.shutdown()
        self.worker.close()

    def add(self, prompt: Sequence[int], max_tokens: int = 1) -> str:
        """Add a request; return its id."""
        request_id = f"request-{next(self._ids)}"
        tokens = list(prompt)
        began = time.thread_time_ns()
        request = make_request(request_id, tokens, max_tokens, self._hasher)
        if len(tokens) >= LONG_TOKENS:
            self.request_ns.append(time.thread_time_ns() - began)
        self.scheduler.add_request(request)
        return request_id

    def abort(self, request_ids: list[str]) -> None:
        """Abort requests."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def step(self) -> SchedulerOutput:
        """Make one step of the engine, in the order of vLLM's engine core."""
        output, all_outputs = step(self.scheduler, self.worker, self._sample)
        for outputs in all_outputs.values():
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    self.hit_tokens += one.prefill_stats.num_external_cached_tokens
                    self.local_tokens += one.prefill_stats.num_local_cached_tokens
        return output

    def _sample(self, request_id: str) -> int:
        """Return the next token of a request."""
        return 7

    def timed_step(self) -> Cost:
        """Make one step, and return the cost of its hooks."""
        self.clock.take()
        self.step()
        return self.clock.take()

    def run(self) -> None:
        """Step until there are no requests, and all transfers have ended and were reported."""
        run_until_idle(self.scheduler, self.worker, self.step, self.kind.name)

    def life(self, prompt: Sequence[int]) -> Cost:
        """Run one request from its arrival until its last transfer is reported; return the cost of all its hooks."""
        self.clock.take()
        self.add(prompt)
        self.run()
        return self.clock.take()

    def drop_gpu_cache(self) -> None:
        """Empty the engine's own prefix cache; the tier stays."""
        if not self.scheduler.reset_prefix_cache():
            raise RuntimeError(f"{self.kind.name}: blocks are in use")

    @property
    def num_stored(self) -> int:
        """Return the number of blocks that the tier holds now."""
        connector = self.scheduler.connector
        if self.kind.connector == "KvFerryConnector":
            view = connector.scheduler_side.engine.snapshot()
            return int(view["num_evictable"] + view["num_leased"])
        if self.kind.connector == "OffloadingConnector":
            return num_stock_chunks(self.scheduler)
        return len(connector.scheduler_manager.cpu_block_pool.cached_block_hash_to_block)

    @property
    def num_evicted(self) -> int:
        """Return the number of blocks that kvferry's tier has evicted since the start."""
        return int(self.scheduler.connector.scheduler_side.engine.snapshot()["num_evicted_total"])
