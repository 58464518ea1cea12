# SPDX-License-Identifier: Apache-2.0
"""``bench/lab/capacity.py`` counts what vLLM's own scheduler retains and what OffloadingConnector really stores."""

import sys
from pathlib import Path

import pytest
from model_families import NEEDS_FAMILIES, families, made_by_families

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "lab"))

from capacity import plan
from capacity_run import Capacity, measure

PROMPT_TOKENS = 6 * 1056 + 17
TIER_BYTES = 64 << 30
pytestmark = NEEDS_FAMILIES


def measured(name: str, num_tokens: int = PROMPT_TOKENS) -> Capacity:
    with made_by_families(name):
        scheduler, is_hybrid = plan(families(), name, num_tokens)
    return measure(scheduler, is_hybrid=is_hybrid, num_tokens=num_tokens, tier_bytes=TIER_BYTES)


@pytest.mark.parametrize(
    "name", ["llama70b", "gemma3_27b", "gemma4_31b", "mimo_v2_flash", "deepseek_v4_flash", "deepseek_v41", "qwen35_mtp"]
)
def test_as_many_blocks_are_counted_as_the_engine_retains(name: str) -> None:
    found = measured(name)
    assert [group.prompt_blocks for group in found.costs["engine"].groups] == found.retained


def test_stock_connector_gives_every_block_of_the_model_of_vllm_42085_a_whole_pool_block() -> None:
    found = measured("deepseek_v4_flash")
    costs = found.costs["engine"]
    # Of one of its two ranks: 2,007,040 on both.
    assert {group.stock_bytes: [of.block_tokens for of in costs.groups] for group in costs.groups} == {
        1_003_520: [64, 64, 256, 4, 8]
    }
    assert [group.stock_tokens for group in costs.groups] == [64, 64, 256, 4, 8]
    assert all(group.block_bytes < group.stock_bytes for group in costs.groups)
    num_chunks = sum(found.retained)
    assert found.stock_tokens == pytest.approx(PROMPT_TOKENS * (TIER_BYTES // 1_003_520) / num_chunks, rel=0.02)


def test_tier_of_groups_with_smaller_blocks_holds_more() -> None:
    found = measured("deepseek_v41")
    assert found.costs["engine"].tokens_in_tier > 1.3 * found.stock_tokens
    assert found.costs["engine"].tokens_in_tier >= found.costs["dense"].tokens_in_tier
    assert found.stock_tokens >= found.stock_dense_tokens
