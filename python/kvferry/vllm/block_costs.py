# SPDX-License-Identifier: Apache-2.0
"""The bytes of blocks and tokens of an engine's KV cache groups in the tier, and in OffloadingConnector's."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

from kvferry.config import KvFerryConfig
from kvferry.sizes import format_size
from kvferry.vllm import preflight, topology
from kvferry.vllm.stock_offloading import StockTier, stock_tier
from kvferry.vllm.tier_plan import TierPlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvferry")

_SEEN = {
    "all": "all tokens",
    "state": "recurrent state",
    "states": "recurrent state",
    "none": "not cached by the engine, left out",
}


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """The costs of one KV cache group.

    Attributes
    ----------
    kind
        The kind of its layers, by vLLM's name.
    num_layers
        Layers that the scheduler knows: with pipeline stages those of the first stage.
    reach, reach_tokens
        How far back a token sees: ``"all"``, ``"window"``, ``"chunk"``, ``"state"`` or ``"states"``, or ``"none"``
        for a group that is left out.
    block_tokens
        Tokens of a block.
    block_bytes
        Bytes of a block in the tier, on the rank where they are most; 0 if the group is left out.
    prompt_blocks
        Blocks of a long prompt that are stored.
    stock_bytes, stock_tokens
        Bytes and tokens of a chunk of OffloadingConnector on each rank; 0: it leaves the group out, or gave no answer.

    """

    kind: str
    num_layers: int
    reach: str
    reach_tokens: int
    block_tokens: int
    block_bytes: int
    prompt_blocks: int
    stock_bytes: int
    stock_tokens: int


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """The costs of an engine's blocks.

    Attributes
    ----------
    groups
        The groups, in the engine's order.
    retention
        The configuration key of this name.
    prompt_tokens
        Tokens of the long prompt whose blocks are counted: the model's maximum length.
    prompt_bytes
        Bytes that this prompt takes on the rank where they are most, including unused bytes at the ends of chunks.
    tier_bytes
        Bytes of one arena.
    tokens_in_tier
        Tokens of such prompts that fit into the tier, if the prompts have nothing in common.
    engine_tokens
        Tokens of such prompts that the engine's own KV cache holds, by vLLM's own count; 0: not known.
    stock_prompt_bytes, stock_tokens_in_tier
        The same for OffloadingConnector with as much memory; 0: it gave no answer.

    """

    groups: list[GroupCost]
    retention: str | int
    prompt_tokens: int
    prompt_bytes: int
    tier_bytes: int
    tokens_in_tier: int
    engine_tokens: int
    stock_prompt_bytes: int
    stock_tokens_in_tier: int


def costs_of(
    config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", plan: TierPlan
) -> BlockCosts:
    """Compute the costs of an engine's blocks.

    Parameters
    ----------
    config
        The connector's configuration.
    vllm_config, kv_cache_config
        The engine's configuration.
    plan
        The engine's tier.

    """
    prompt_tokens = int(vllm_config.model_config.max_model_len)
    stock = _stock_tier(vllm_config, kv_cache_config, plan.first.tier_bytes * plan.num_arenas)
    counts = _BlockCounts(vllm_config, plan)
    slots = plan.slot_bytes
    groups, num_chunks, num_stock_chunks = [], 0.0, 0
    for number, group in enumerate(plan.groups):
        is_kept = preflight.is_kept(group)
        of_class = plan.of_groups[number]
        prompt_blocks = counts.of_prompt(number, prompt_tokens, config.retention) if is_kept else 0
        num_chunks += prompt_blocks / plan.first.slots_per_chunk[of_class]
        reach, reach_tokens = plan.reaches[number]
        stock_tokens = stock.chunk_tokens[number] if stock else 0
        # OffloadingConnector stores what the engine's own cache retains.
        num_stock_chunks += counts.of_prompt(number, prompt_tokens, "engine") if stock_tokens else 0
        cost = GroupCost(
            kind=type(topology.first_spec(group.kv_cache_spec)).__name__,
            num_layers=len(group.layer_names),
            reach=reach,
            reach_tokens=reach_tokens,
            block_tokens=preflight.block_tokens(vllm_config, group),
            block_bytes=slots[of_class] if is_kept else 0,
            prompt_blocks=prompt_blocks,
            stock_bytes=stock.chunk_bytes if stock and stock_tokens else 0,
            stock_tokens=stock_tokens,
        )
        groups.append(cost)
    return BlockCosts(
        groups=groups,
        retention=config.retention,
        prompt_tokens=prompt_tokens,
        prompt_bytes=math.ceil(num_chunks * plan.chunk_bytes),
        tier_bytes=plan.first.tier_bytes,
        tokens_in_tier=_tokens(prompt_tokens, plan.start_chunks, num_chunks),
        engine_tokens=_engine_tokens(vllm_config, kv_cache_config),
        stock_prompt_bytes=num_stock_chunks * stock.chunk_bytes if stock else 0,
        stock_tokens_in_tier=_tokens(prompt_tokens, stock.num_chunks, num_stock_chunks) if stock else 0,
    )


def _tokens(prompt_tokens: int, num_chunks: int, chunks_of_prompt: float) -> int:
    return int(prompt_tokens * num_chunks / chunks_of_prompt) if chunks_of_prompt else 0


def _engine_tokens(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> int:
    try:
        return int(get_kv_cache_capacity(vllm_config, kv_cache_config)[0])
    except Exception as error:  # The figure is only for people; the engine does not need it.
        logger.debug("kvferry: vLLM did not count the tokens of its KV cache: %r", error)
        return 0


def _stock_tier(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", tier_bytes: int) -> StockTier | None:
    try:
        return stock_tier(vllm_config, kv_cache_config, tier_bytes)
    except Exception as error:  # The figure is only for comparison; the engine does not need it.
        logger.debug("kvferry: OffloadingConnector did not compute its tier: %r", error)
        return None


class _BlockCounts:
    """How many blocks are stored of a prompt that has nothing in common with others."""

    def __init__(self, vllm_config: "VllmConfig", plan: TierPlan) -> None:
        self._reaches = plan.reaches
        self._groups = plan.groups
        self._block_tokens = [plan.sizes.block_tokens(number) for number in range(len(plan.groups))]
        self._hit_tokens = plan.sizes.hit_tokens
        self._step_tokens = int(vllm_config.scheduler_config.max_num_batched_tokens)
        self._engine_interval = vllm_config.cache_config.prefix_cache_retention_interval

    def of_prompt(self, number: int, num_tokens: int, retention: str | int) -> int:
        """Count the stored blocks of a group: all, or those that loads need which end where the engine expects it."""
        block_tokens = self._block_tokens[number]
        reach, reach_tokens = self._reaches[number]
        # For any value of the key, the engine's own cache has all existing states, and all blocks of chunks.
        has_states = reach in ("state", "states")
        if not (has_states or reach == "window") or (reach == "window" and retention == "dense"):
            return num_tokens // block_tokens
        is_drafter = bool(getattr(self._groups[number], "is_eagle_group", False))
        per_end = 1 if has_states else -(-(reach_tokens - 1) // block_tokens) + is_drafter
        interval = self._hit_tokens if self._engine_interval is None else self._engine_interval
        if isinstance(retention, int) and reach == "window":
            interval = min(interval or retention, retention or interval)
        if reach == "state" and interval:
            # States exist only at the ends of steps.
            interval = math.lcm(interval, max(1, self._step_tokens // block_tokens) * block_tokens)
        # The next request with the same prompt continues from the last of these.
        ends = {(num_tokens - 1) // self._hit_tokens * self._hit_tokens}
        ends.update(range(interval, num_tokens + 1, interval) if interval else ())
        starts = [0, *sorted(ends)]
        return sum(min(per_end, end // block_tokens - start // block_tokens) for start, end in pairwise(starts))


def lines_of(costs: BlockCosts) -> Iterator[str]:
    """Yield the costs as lines for a log."""
    yield "what the KV cache costs in the tier on a rank (in brackets: with vLLM's OffloadingConnector):"
    for cost, same in groupby(costs.groups):
        number = sum(1 for _ in same)
        layers = f"{number} groups of {cost.num_layers}" if number > 1 else f"a group of {cost.num_layers}"
        yield f"  {layers} layers, {cost.kind}, {_seen(cost)}: {_block(cost)}"
    stock = ""
    if costs.stock_tokens_in_tier:
        stock = f" ({format_size(costs.stock_prompt_bytes)}, {costs.stock_tokens_in_tier:,} tokens)"
    yield (
        f"  a prompt of {costs.prompt_tokens:,} tokens, retention {costs.retention!r}: "
        f"{format_size(costs.prompt_bytes)}; the tier holds {costs.tokens_in_tier:,} tokens of such prompts{stock}"
    )


def _seen(cost: GroupCost) -> str:
    if cost.reach in ("window", "chunk"):
        return f"{cost.reach} of {cost.reach_tokens} tokens"
    return _SEEN[cost.reach]


def _block(cost: GroupCost) -> str:
    if not cost.block_bytes:
        return "nothing"
    token_bytes = cost.block_bytes / cost.block_tokens
    text = f"{cost.block_bytes:,} B a block of {cost.block_tokens} tokens, {token_bytes:,.0f} B a token"
    if cost.stock_bytes:
        text += f" ({cost.stock_bytes:,} B, {cost.stock_bytes / cost.stock_tokens:,.0f} B)"
    return text
