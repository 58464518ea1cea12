# SPDX-License-Identifier: Apache-2.0
"""What blocks cost is what the tier and OffloadingConnector's own arithmetic make of the same engine."""

import dataclasses
from typing import Any

import pytest
from event_mirror import EventMirror
from harness import ToyEngine, prompt_of
from kvferry.config import KvFerryConfig
from kvferry.vllm import block_costs, tier_plan
from kvferry.vllm.block_costs import BlockCosts
from kvferry.vllm.stock_offloading import stock_tier
from scenarios import CHUNKED, HYBRID, RECURRENT, REPLICATED, STORE_ALL, UNEVEN, Make
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

PROMPT_TOKENS = 512
ROOMY: dict[str, Any] = {"cpu_bytes_to_use": "64MiB", "staging_bytes": "4MiB", **STORE_ALL}
LONG: dict[str, Any] = {"num_blocks": 400, "max_model_len": PROMPT_TOKENS + 16, "max_num_batched_tokens": 96}
COARSE = {**HYBRID, "layer_pattern": "hww", "num_layers": 6}
MODELS = {"plain": {}, "window": HYBRID, "chunk": CHUNKED, "coarse": COARSE, "state": RECURRENT, "uneven": UNEVEN}


@pytest.fixture(autouse=True)
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events name blocks by what the pool finds them by."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


def config_of(engine: ToyEngine) -> KvFerryConfig:
    assert engine.config.kv_transfer_config is not None
    return KvFerryConfig.from_extra_config(engine.config.kv_transfer_config.kv_connector_extra_config)


def costs_of(engine: ToyEngine, prompt_tokens: int = PROMPT_TOKENS) -> BlockCosts:
    config = config_of(engine)
    engine.config.model_config.max_model_len = prompt_tokens
    plan = tier_plan.plan_tier(config, engine.config, engine.kv_cache_config)
    return block_costs.costs_of(config, engine.config, engine.kv_cache_config, plan)


@pytest.mark.parametrize("retention", ["dense", "engine", 128])
@pytest.mark.parametrize("interval", [0, 64, None])
@pytest.mark.parametrize("model", MODELS)
def test_as_many_blocks_are_counted_as_are_stored(
    make: Make, model: str, retention: object, interval: int | None
) -> None:
    if model == "plain":
        interval = 0  # vLLM wants no other.
    spec = {**MODELS[model], **LONG, "retention_interval": interval}
    engine = make({**ROOMY, "retention": retention}, kv_events=True, **spec)
    mirror = EventMirror(engine)
    # Ranks say in a step that their memory is ready.
    engine.generate({"warm up": prompt_of(2, 10)}, max_tokens=2)
    engine.generate({"a": prompt_of(1, PROMPT_TOKENS + 1)}, max_tokens=1)
    engine.settle_stores()
    stored = [len(mirror.held.get(number, ())) for number in range(len(engine.kv_cache_config.kv_cache_groups))]
    assert [group.prompt_blocks for group in costs_of(engine, PROMPT_TOKENS + 1).groups] == stored


@pytest.mark.parametrize("model", MODELS)
def test_prompts_fit_as_often_as_is_said(make: Make, model: str) -> None:
    engine = make({**ROOMY, "cpu_bytes_to_use": "3MiB", "retention": "dense"}, **{**MODELS[model], **LONG})
    number = 0
    while not engine.snapshot()["num_evicted_total"]:
        number += 1
        assert number < 200, "nothing is ever evicted"
        engine.generate({f"{number}": prompt_of(number, PROMPT_TOKENS + 1)}, max_tokens=1)
        engine.settle_stores()
    costs = costs_of(engine)
    assert (number - 1) * PROMPT_TOKENS <= costs.tokens_in_tier < (number + 1) * PROMPT_TOKENS
    # Slots of several sizes may leave something behind the last of a chunk.
    content = sum(group.prompt_blocks * group.block_bytes for group in costs.groups)
    assert content <= costs.prompt_bytes < 1.1 * content


@pytest.mark.parametrize("model", MODELS)
def test_stock_figures_are_those_of_the_real_connector(make: Make, model: str) -> None:
    engine = make(ROOMY, **{**MODELS[model], **LONG})
    costs = costs_of(engine)
    transfer = engine.config.kv_transfer_config
    assert transfer is not None
    transfer.kv_connector_extra_config = {"cpu_bytes_to_use": 64 << 20}
    stock: Any = OffloadingConnector(engine.config, KVConnectorRole.SCHEDULER, engine.kv_cache_config)
    manager, config = stock.connector_scheduler.manager, stock.connector_scheduler.config
    assert [group.stock_tokens for group in costs.groups] == [of.tokens_per_chunk for of in config.kv_group_configs]
    (chunk_bytes,) = {group.stock_bytes for group in costs.groups}
    assert manager._num_chunks == (64 << 20) // chunk_bytes
    # A whole block of the pool, whatever the group needs of it.
    pool = engine.kv_cache_config.kv_cache_tensors[0].size // engine.kv_cache_config.num_blocks
    assert chunk_bytes == -(-pool // 4096) * 4096
    assert costs.stock_tokens_in_tier == PROMPT_TOKENS * manager._num_chunks * chunk_bytes // costs.stock_prompt_bytes
    stock.shutdown()


def test_ranks_that_share_an_arena_count_once(make: Make) -> None:
    engine = make(ROOMY, **REPLICATED, world_size=2)
    alone = make({**ROOMY, "share_replicated_kv": False}, **REPLICATED, world_size=2)
    assert costs_of(engine).tokens_in_tier == 2 * costs_of(alone).tokens_in_tier
    assert costs_of(engine).groups == costs_of(alone).groups


def test_figures_do_not_need_the_stock_connector(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(ROOMY)
    costs = costs_of(engine)
    monkeypatch.setattr(block_costs, "stock_tier", lambda *_: 1 / 0)
    alone = costs_of(engine)
    assert (alone.stock_prompt_bytes, alone.stock_tokens_in_tier) == (0, 0)
    assert [dataclasses.replace(group, stock_bytes=0, stock_tokens=0) for group in costs.groups] == alone.groups
    assert alone.tokens_in_tier == costs.tokens_in_tier


def test_stock_tier_of_an_engine_that_the_stock_connector_refuses_is_an_error(make: Make) -> None:
    engine = make(ROOMY)
    with pytest.raises(Exception, match="cpu_bytes_to_use must be specified"):
        stock_tier(engine.config, engine.kv_cache_config, 0)


def test_log_says_it_once_at_the_start(make: Make, log_lines: list[str]) -> None:
    make({**ROOMY, "retention": "dense"}, **{**UNEVEN, "max_model_len": 512, "num_blocks": 120})
    said = [line for line in log_lines if "in the tier on a rank" in line]
    assert len(said) == 1
    of_groups = log_lines[log_lines.index(said[0]) + 1 :]
    assert of_groups[0] == (
        "INFO kvferry:   a group of 2 layers, FullAttentionSpec, all tokens: 4,096 B a block of 16 tokens, 256 B a "
        "token (4,096 B, 256 B)"
    )
    assert of_groups[1].startswith(
        "INFO kvferry:   a group of 2 layers, SlidingWindowSpec, window of 40 tokens: 4,096 B"
    )
    assert of_groups[2].startswith(
        "INFO kvferry:   a group of 1 layers, SlidingWindowSpec, window of 40 tokens: 2,048 B"
    )
    assert of_groups[2].endswith("(4,096 B, 256 B)")
    # 32 blocks of each: the third ones in slots of half the size.
    assert "a prompt of 512 tokens, retention 'dense': 320.00 KiB; the tier holds 104,857 tokens" in of_groups[3]
    assert "(384.00 KiB" not in of_groups[3]  # Of windows it stores less.
