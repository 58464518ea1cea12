# SPDX-License-Identifier: Apache-2.0
"""One long prompt in vLLM's real scheduler with OffloadingConnector's real scheduler side, on a family's KV cache."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))

from harness import ToySpec, make_vllm_config, prompt_of
from kvferry.config import GIB, KvFerryConfig
from kvferry.vllm import block_costs, tier_plan
from kvferry.vllm.block_costs import BlockCosts
from kvferry.vllm.stock_offloading import stock_tier
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from worker_doubles import OffloadingWorker

BATCHED_TOKENS = 8192
# Whatever a prompt takes: nothing is evicted while it is stored.
_ROOM_BYTES = 1024 * GIB
_MAX_STEPS = 1000


@dataclass(frozen=True)
class Capacity:
    """Of one family, for prompts of one length.

    Attributes
    ----------
    costs
        Of kvferry's blocks, by the value of its key `retention`.
    retained
        Blocks of each group that the engine's own cache keeps of a prompt.
    stock_tokens, stock_dense_tokens
        Tokens of such prompts that OffloadingConnector's tier holds: as the engine retains blocks by default, and as it
        does if it is told to keep all.

    """

    costs: dict[str, BlockCosts]
    retained: list[int]
    stock_tokens: int
    stock_dense_tokens: int


def measure(kv_cache_config: KVCacheConfig, *, is_hybrid: bool, num_tokens: int, tier_bytes: int) -> Capacity:
    """Measure how many tokens fit into a tier of one rank.

    Parameters
    ----------
    kv_cache_config
        The scheduler's, with blocks for one prompt at least.
    is_hybrid
        Whether vLLM's manager of several kinds of groups is on.
    num_tokens
        Of a prompt.
    tier_bytes
        Of the tier.

    """
    costs = {}
    for retention in ("dense", "engine"):
        vllm_config = _config(kv_cache_config, is_hybrid, num_tokens, 0)
        vllm_config.model_config.max_model_len = num_tokens
        ours = KvFerryConfig.from_extra_config({"cpu_bytes_to_use": tier_bytes, "retention": retention})
        plan = tier_plan.plan_tier(ours, vllm_config, kv_cache_config)
        costs[retention] = block_costs.costs_of(ours, vllm_config, kv_cache_config, plan)
    run = _Run(_config(kv_cache_config, is_hybrid, num_tokens, 0), kv_cache_config, num_tokens)
    dense = run
    if any(group.reach in ("window", "state") for group in costs["engine"].groups):
        dense = _Run(_config(kv_cache_config, is_hybrid, num_tokens, None), kv_cache_config, num_tokens)
    stock = [one.tokens_in(tier_bytes) for one in (run, dense)]
    return Capacity(costs, run.retained, *stock)


def _config(kv_cache_config: KVCacheConfig, is_hybrid: bool, num_tokens: int, interval: int | None) -> VllmConfig:
    spec = ToySpec(
        num_blocks=kv_cache_config.num_blocks,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_model_len=num_tokens + 1,  # And what it answers.
        extra_config={"cpu_bytes_to_use": _ROOM_BYTES},
        connector="OffloadingConnector",
        connector_module=None,
        retention_interval=interval,
        hybrid_manager=is_hybrid,
    )
    with TemporaryDirectory(prefix="kvferry-lab-") as folder:
        vllm_config = make_vllm_config(Path(folder), spec)
    vllm_config.cache_config.block_size = max(
        group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups
    )
    vllm_config.cache_config.mamba_cache_mode = "align"
    vllm_config.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
    kv_cache_config.prefix_cache_retention_interval = interval
    return vllm_config


class _Run:
    """The life of one prompt, and what is stored of it.

    Attributes
    ----------
    retained
        Blocks of each KV cache group in the engine's own cache.

    """

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, num_tokens: int) -> None:
        block_tokens, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        with set_current_vllm_config(vllm_config):
            self._scheduler: Any = vllm_config.scheduler_config.get_scheduler_cls()(
                vllm_config=vllm_config,
                kv_cache_config=kv_cache_config,
                structured_output_manager=StructuredOutputManager(vllm_config),
                block_size=block_tokens,
                hash_block_size=hash_tokens,
                log_stats=False,
            )
        self._num_tokens = num_tokens
        hash_fn = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_fn)
        request = Request(
            request_id="prompt",
            prompt_token_ids=list(prompt_of(1, num_tokens)),
            sampling_params=SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
            pooling_params=None,
            block_hasher=get_request_block_hasher(hash_tokens, hash_fn),
        )
        self._scheduler.add_request(request)
        self._step_until_idle()
        self.retained = [0] * len(kv_cache_config.kv_cache_groups)
        for block in self._scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None:
                self.retained[get_group_id(block.block_hash)] += 1
        manager = self._scheduler.connector.connector_scheduler.manager
        self._num_chunks = int(manager._num_chunks - manager._get_num_free_chunks())
        self._tier_of = partial(stock_tier, vllm_config, kv_cache_config)
        self._scheduler.shutdown()

    def tokens_in(self, tier_bytes: int) -> int:
        """Tokens of such prompts, which have nothing in common, in a tier."""
        return int(self._num_tokens * self._tier_of(tier_bytes).num_chunks / self._num_chunks)

    def _step_until_idle(self) -> None:
        """Step in the order of vLLM's engine core until every store has ended."""
        worker = OffloadingWorker(block_bytes=1)
        for _ in range(_MAX_STEPS):
            if not self._scheduler.has_requests() and not worker.is_busy:
                return
            output = self._scheduler.schedule()
            report = worker.execute(output)
            ids = list(output.num_scheduled_tokens)
            requests = self._scheduler.requests
            sampled = [[7] if requests[one].num_computed_tokens >= requests[one].num_tokens else [] for one in ids]
            result = ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
                kv_connector_output=report,
            )
            self._scheduler.update_from_output(output, result)
        raise TimeoutError(f"not idle after {_MAX_STEPS} steps: {list(self._scheduler.requests)}")
