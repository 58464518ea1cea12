# SPDX-License-Identifier: Apache-2.0
"""Runs one long prompt of a family in vLLM's real scheduler, with OffloadingConnector's real scheduler side."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))

from harness import ToySpec, make_scheduler, make_vllm_config, prompt_of
from kvferry.config import GIB, KvFerryConfig
from kvferry.vllm import block_costs, tier_plan
from kvferry.vllm.block_costs import BlockCosts
from kvferry.vllm.stock_offloading import stock_tier
from rigs import make_request, num_stock_chunks, run_until_idle, step
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import get_group_id
from vllm.v1.kv_cache_interface import KVCacheConfig
from worker_doubles import OffloadingWorker

BATCHED_TOKENS = 8192
# Whatever a prompt takes: nothing is evicted while it is stored.
_ROOM_BYTES = 1024 * GIB


@dataclass(frozen=True)
class Capacity:
    """The figures of one family, for prompts of one length.

    Attributes
    ----------
    costs
        The costs of kvferry's blocks, by the value of its key `retention`.
    retained
        Blocks of each group that the engine's own cache keeps of a prompt.
    stock_tokens, stock_dense_tokens
        Tokens of such prompts that OffloadingConnector's tier holds, if the engine retains blocks by default, and if it
        is told to keep all.

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
        The scheduler's configuration, with blocks for at least one prompt.
    is_hybrid
        Whether vLLM's manager of several kinds of groups is on.
    num_tokens
        Tokens of a prompt.
    tier_bytes
        Bytes of the tier.

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
    if any(group.reach in ("window", "state", "states") for group in costs["engine"].groups):
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
    """The life of one prompt, and the blocks of it that are stored.

    Attributes
    ----------
    retained
        Blocks of each KV cache group in the engine's own cache.

    """

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        scheduler, hasher = make_scheduler(vllm_config, kv_cache_config)
        scheduler.add_request(make_request("prompt", list(prompt_of(1, num_tokens)), 1, hasher))
        worker = OffloadingWorker(block_bytes=1)
        run_until_idle(scheduler, worker, lambda: step(scheduler, worker, lambda _: 7), "OffloadingConnector")
        self.retained = [0] * len(kv_cache_config.kv_cache_groups)
        for block in scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None:
                self.retained[get_group_id(block.block_hash)] += 1
        self._num_chunks = num_stock_chunks(scheduler)
        self._tier_of = partial(stock_tier, vllm_config, kv_cache_config)
        scheduler.shutdown()

    def tokens_in(self, tier_bytes: int) -> int:
        """Return the tokens of such prompts that fit into a tier, if the prompts have nothing in common."""
        return int(self._num_tokens * self._tier_of(tier_bytes).num_chunks / self._num_chunks)
