# SPDX-License-Identifier: Apache-2.0
"""The toy engine: vLLM's scheduler, the toy's ranks, and what goes on between them."""

import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from toy_config import VOCABULARY, ToySpec, make_kv_cache_configs, make_vllm_config
from toy_hashes import HashCheck
from toy_pipeline import ToyPipeline
from toy_worker import ToyWorker, kvferry_of
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_scheduler_kv_cache_config,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

Hasher = Callable[[Request], list[BlockHash]]


def make_scheduler(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> tuple[Any, Hasher]:
    """Make vLLM's scheduler, and what hashes the blocks of its requests."""
    block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    with set_current_vllm_config(vllm_config):
        scheduler = vllm_config.scheduler_config.get_scheduler_cls()(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
    hash_fn = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_fn)
    return scheduler, get_request_block_hasher(hash_block_size, hash_fn)


class PoolError(AssertionError):
    """A GPU block was freed twice, or lost."""


@dataclass
class Finished:
    """How a request ended: its output tokens and its status."""

    tokens: list[int]
    status: RequestStatus


class ToyEngine:
    """The engine; see `harness`.

    Parameters
    ----------
    folder
        For the model's configuration.
    spec
        What kind of engine.

    Attributes
    ----------
    scheduler
        vLLM's scheduler.
    workers
        One per rank.
    requests
        Request id to vLLM's request; an id that is used again overwrites.
    finished
        Request id to how it ended; an id that is used again overwrites.
    external_hit_tokens
        Request id to tokens of its prompt that the engine took from the tier, once its first token is out.
    prefills
        Request id to what vLLM counted of its prompt, once its first token is out.
    failed_loads
        Request ids whose load was reported as failed, in order.
    hashes
        What vLLM's prefix cache said and was wrong about.
    on_step
        Called with the engine before each step.

    """

    def __init__(self, folder: Path, spec: ToySpec | None = None) -> None:
        self.spec = spec = spec if spec is not None else ToySpec()
        self.config = config = make_vllm_config(folder, spec)
        with set_current_vllm_config(config):
            kv_cache_configs = make_kv_cache_configs(config, spec)
            self.kv_cache_config = generate_scheduler_kv_cache_config(kv_cache_configs)
            pipeline = ToyPipeline(spec)
            self.workers = [
                ToyWorker(config, kv_cache_config, rank, spec, pipeline)
                for rank, kv_cache_config in enumerate(kv_cache_configs)
            ]
            self.hit_tokens, self.hash_tokens = resolve_kv_cache_block_sizes(self.kv_cache_config, config)
            self.scheduler, self._hasher = make_scheduler(config, self.kv_cache_config)
        self._aggregator = KVOutputAggregator(spec.num_ranks)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.requests: dict[str, Request] = {}
        self.finished: dict[str, Finished] = {}
        self.external_hit_tokens: dict[str, int] = {}
        self.prefills: dict[str, PrefillStats] = {}
        self.failed_loads: list[str] = []
        self.connector_stats: list[dict[str, Any]] = []  # as they reach the process that logs them
        self.num_steps = 0
        self._num_free_checked = -1
        self.on_step: Callable[[ToyEngine], None] | None = None
        self.hashes = HashCheck(self)

    def close(self) -> None:
        """Shut both sides of the connector down."""
        self.scheduler.shutdown()
        for worker in self.workers:
            if worker.connector is not None:
                worker.connector.shutdown()

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 4,
        options: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Request:
        """Make a request, without adding it. `options` go to vLLM's `Request`, `params` to its `SamplingParams`."""
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hasher,
            **(options or {}),
        )

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 4,
        options: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Request:
        """Add a request; see `make_request`."""
        request = self.make_request(request_id, prompt, max_tokens, options, **params)
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        """Abort a request, as a client that disconnects."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self._note_finished()

    def step(self) -> None:
        """Schedule and execute one step, and take in the output of the oldest one in flight when it is time."""
        output = self.launch()
        # As vLLM: a batch in each stage of a pipeline, and two at least with asynchronous scheduling.
        depth = max(2 if self.spec.async_scheduling else 1, self.spec.num_stages)
        if len(self._in_flight) >= depth or output.total_num_scheduled_tokens == 0:
            self.take_output()

    def launch(self) -> SchedulerOutput:
        """Do the first half of a step: schedule and execute it; its output is now in flight."""
        if self.on_step is not None:
            self.on_step(self)
        output = self.scheduler.schedule()
        self.hashes.before_execution()
        self._in_flight.append((output, self._execute(output)))
        self.hashes.check(output)
        self.num_steps += 1
        return output

    def take_output(self) -> None:
        """Do the second half of a step: let the scheduler take in the oldest output in flight."""
        output, result = self._in_flight.popleft()
        connector_output: KVConnectorOutput | None = result.kv_connector_output
        if connector_output is not None:
            self.failed_loads.extend(sorted(connector_output.failed_recving))
            self.hashes.before_output(connector_output.invalid_block_ids)
        for outputs in self.scheduler.update_from_output(output, result).values():
            if outputs.scheduler_stats is not None and outputs.scheduler_stats.kv_connector_stats is not None:
                self.connector_stats.append(outputs.scheduler_stats.kv_connector_stats)
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    self.external_hit_tokens[one.request_id] = one.prefill_stats.num_external_cached_tokens
                    self.prefills[one.request_id] = one.prefill_stats
        if self.spec.num_drafts and not self.spec.async_scheduling:
            self._propose(output)
        self._note_finished()
        self.hashes.check()
        if self._num_free_checked != self.num_free_blocks:
            self.check_pool()

    def check_pool(self) -> None:
        """Check that every block is either held or free, and free once.

        Raises
        ------
        PoolError
            One is not.

        """
        self._num_free_checked = self.num_free_blocks
        pool = self.scheduler.kv_cache_manager.block_pool
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        # The null block's count means nothing.
        holders = {block.block_id: block.ref_cnt for block in pool.blocks if not block.is_null}
        if twice := [block for block, count in holders.items() if count < 0]:
            raise PoolError(f"blocks freed too often: {twice[:9]}")
        unheld = {block for block, count in holders.items() if count == 0}
        if len(free) != len(set(free)) or len(free) != self.num_free_blocks or set(free) != unheld:
            raise PoolError(
                f"{len(free)} blocks in the free list, {self.num_free_blocks} by its count, {len(unheld)} unheld; "
                f"not in both: {sorted(unheld.symmetric_difference(free))[:9]}"
            )

    def can_reuse(self, request_id: str) -> bool:
        """Whether vLLM has forgotten the request, and no output in flight would be taken for that of another one."""
        in_flight = any(request_id in output.num_scheduled_tokens for output, _ in self._in_flight)
        return request_id not in self.scheduler.requests and not in_flight

    @property
    def has_outputs_in_flight(self) -> bool:
        """Whether steps were executed whose output the scheduler has not taken in."""
        return bool(self._in_flight)

    def drain_outputs(self) -> None:
        """Take in the outputs of all steps in flight."""
        while self._in_flight:
            self.take_output()

    def run(self, timeout_s: float = 60.0) -> None:
        """Step until the engine has no work.

        Raises
        ------
        TimeoutError
            It still has after `timeout_s` seconds.

        """
        self.run_until(lambda: not self.scheduler.has_requests() and not self._in_flight, timeout_s)

    def run_until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Step until `done`; otherwise like `run`."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                states = {r: request.status.name for r, request in self.scheduler.requests.items()}
                raise TimeoutError(
                    f"not done after {timeout_s} s and {self.num_steps} steps; requests: {states}; {self.snapshot()}; "
                    f"ranks: {[worker.copy_stats() for worker in self.workers]}"
                )
            if self._in_flight and not self.scheduler.has_requests():
                self.take_output()
            else:
                self.step()

    def generate(self, prompts: Mapping[str, Sequence[int]], max_tokens: int = 4) -> dict[str, list[int]]:
        """Run requests to their end, all at once; return their output tokens."""
        for request_id, prompt in prompts.items():
            self.add(request_id, prompt, max_tokens)
        self.run()
        return {request_id: self.finished[request_id].tokens for request_id in prompts}

    def drop_gpu_cache(self) -> None:
        """Empty the engine's own prefix cache and spoil the memory behind it; the tier stays."""
        assert self.scheduler.reset_prefix_cache(), "requests are running"
        for worker in self.workers:
            for tensor in worker.kv_caches.values():
                tensor.view(torch.int32).fill_(-1)

    def own_hit_tokens(self, prompt: Sequence[int]) -> int:
        """Tokens at the beginning of a prompt that a new request would find in the engine's own prefix cache."""
        request = self.make_request("probe", prompt)
        return int(self.scheduler.kv_cache_manager.get_computed_blocks(request)[1])

    def settle_stores(self, timeout_s: float = 60.0) -> None:
        """Step, empty steps mostly, until no store is on its way and no block waits for its turn."""
        self.run_until(
            lambda: self.snapshot()["num_stores_in_flight"] == 0 and self.snapshot()["num_backlog"] == 0, timeout_s
        )

    def snapshot(self) -> dict[str, int]:
        """Levels and counters of the scheduler side."""
        return dict(kvferry_of(self.scheduler.connector).scheduler_side.engine.snapshot())

    @property
    def recording(self) -> Path:
        """The file in which the scheduler side records."""
        path = self.scheduler.connector.scheduler_side._recorder.path
        assert path is not None
        return Path(path)

    @property
    def state_groups(self) -> set[int]:
        """KV cache groups of recurrent state."""
        groups = enumerate(self.kv_cache_config.kv_cache_groups)
        return {number for number, group in groups if isinstance(group.kv_cache_spec, MambaSpec)}

    @property
    def misled(self) -> set[str]:
        """Requests whose tokens are anything: they read KV that was known to be wrong, or vLLM lost track of them."""
        return self.hashes.lost_track.union(*(worker.model.misled for worker in self.workers))

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the GPU pool that nobody holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        results: list[ModelRunnerOutput] = []
        told: dict[str, list[int]] | None = None
        # The last pipeline stage samples. It comes first, as stages have nothing else from each other here.
        num_ranks = len(self.workers) // self.spec.num_stages
        for start in reversed(range(0, len(self.workers), num_ranks)):
            ranks = self.workers[start : start + num_ranks]
            # As between processes: no rank shares an object with the scheduler or another rank.
            of_stage = [worker.execute(pickle.loads(pickle.dumps(output)), told) for worker in ranks]
            results = pickle.loads(pickle.dumps(of_stage)) + results
            told = dict(zip(results[0].req_ids, results[0].sampled_token_ids, strict=True))
        if len(results) == 1:
            return results[0]
        for result in results[1:]:
            assert result.sampled_token_ids == results[0].sampled_token_ids, "ranks computed different tokens"
        return self._aggregator.aggregate(results)

    def _propose(self, output: SchedulerOutput) -> None:
        """Have drafts scheduled next; which ones they are, the ranks know themselves."""
        request_ids = list(output.num_scheduled_tokens)
        drafts = [[0] * self.spec.num_drafts for _ in request_ids]
        self.scheduler.update_draft_token_ids(DraftTokenIds(request_ids, drafts))

    def _note_finished(self) -> None:
        for request_id, request in list(self.requests.items()):
            if request.is_finished():
                self.finished[request_id] = Finished(list(request.output_token_ids), request.status)


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    """Make a prompt that differs from that of any other seed in its first token already."""
    return [(seed * 7919 + i * 104_729 + (i * i) % 97) % VOCABULARY for i in range(num_tokens)]


def expected_tokens(
    folder: Path, prompts: Mapping[str, Sequence[int]], max_tokens: int = 4, **spec: Any
) -> dict[str, list[int]]:
    """Output tokens of an engine without connector and with room for everything; `spec` goes to `ToySpec`."""
    engine = ToyEngine(folder, ToySpec(**{**spec, "num_blocks": 512, "extra_config": None}))
    return engine.generate(prompts, max_tokens)
