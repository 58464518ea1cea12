# SPDX-License-Identifier: Apache-2.0
"""A tier that becomes ready slowly: requests are served from the first moment, and hits rise with it (vllm#42632)."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import EngineRunner, Prompts, generate, settle

PROMPT_BLOCKS = 8
NUM_PROMPTS = 12
NUM_SLOTS = 128
# Of the tier, ready at a time; and each takes a second.
PIECE_BLOCKS = 16


@pytest.fixture(scope="module")
def result(runner: EngineRunner) -> dict[str, dict[str, Any]]:
    prompts = Prompts(seed=21).many(NUM_PROMPTS, PROMPT_BLOCKS * 32 + 5)
    script: dict[str, dict[str, Any]] = {}
    for run in ("early", "late"):
        script |= {
            f"{run} first": generate(prompts, 4, "one_by_one"),
            f"{run} settled": settle(),
            f"{run} state": {"op": "inspect"},
            f"{run} metrics": {"op": "metrics"},
            f"{run} reset": {"op": "reset_prefix_cache"},
            f"{run} again": generate(prompts, 4, "one_by_one"),
            f"{run} wait": {"op": "wait_until_ready", "num_slots": NUM_SLOTS},
        }
    script["end metrics"] = {"op": "metrics"}
    return runner.run_named(
        script,
        runner.kv_config(
            cpu_bytes_to_use=NUM_SLOTS * runner.block_bytes,
            pinned_piece_bytes=PIECE_BLOCKS * runner.block_bytes,
            pinning_bandwidth_limit=PIECE_BLOCKS * runner.block_bytes,
        ),
        num_gpu_blocks=200,
    )


def test_requests_are_served_before_the_tier_is_ready(result: dict[str, dict[str, Any]]) -> None:
    assert 0 < result["early state"]["tier"]["num_slots"] < NUM_SLOTS
    assert result["early first"]["tokens"] == result["late again"]["tokens"] == result["early again"]["tokens"]


def test_hits_rise_as_the_tier_becomes_ready(result: dict[str, dict[str, Any]]) -> None:
    assert result["late state"]["tier"]["num_slots"] == NUM_SLOTS
    early, late = (result[f"{run} again"]["counters"]["external_kv_transfer"] for run in ("early", "late"))
    assert early < late == NUM_PROMPTS * PROMPT_BLOCKS * 32


def test_metrics_show_it(result: dict[str, dict[str, Any]]) -> None:
    early, end = (result[f"{when} metrics"] for when in ("early", "end"))
    assert 0 < early["vllm:kvferry_tier_ready_blocks"] < end["vllm:kvferry_tier_ready_blocks"] == NUM_SLOTS
    assert early["vllm:kvferry_tier_size_blocks"] == NUM_SLOTS
    assert end["vllm:kvferry_rank_ready_blocks/0"] == NUM_SLOTS
    assert 0 <= end["vllm:kvferry_rank_huge_page_ratio/0"] <= 1
    hit_tokens = sum(result[f"{run} again"]["counters"]["external_kv_transfer"] for run in ("early", "late"))
    assert end["vllm:kvferry_hit_tokens"] == hit_tokens
    assert end["vllm:kvferry_loaded_blocks"] == hit_tokens // 32
    assert end["vllm:kvferry_failed_loads"] == 0
