# SPDX-License-Identifier: Apache-2.0
"""Blocks go to the tier, are lost by the engine and come back; the tokens are those without the tier."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier

PREFIX_TOKENS = 8 * BLOCK_TOKENS
NUM_GPU_BLOCKS = 72
TIER_BYTES = 128 << 20


def script() -> dict[str, dict[str, Any]]:
    """Named operations; the pool holds two prompts and a bit, so each group pushes the one before out."""
    prompts = Prompts(seed=1)
    prefix = prompts.make(PREFIX_TOKENS)
    first = prompts.many(4, 650, prefix)
    longer = [prompt + prompts.make(150) for prompt in first]
    others = prompts.many(4, 700)
    crowd = prompts.many(6, 400, prompts.make(PREFIX_TOKENS)) + prompts.many(6, 333)
    turns = [prompts.make(200), prompts.make(90), prompts.make(133), prompts.make(170)]
    return {
        "first": generate(first, submit="one_by_one"),
        "others": generate(others, submit="one_by_one"),
        "again": generate(first, submit="one_by_one"),
        "longer": generate(longer, submit="one_by_one"),
        "chat": {"op": "chat", "turns": turns, "others": others[:3], "max_tokens": 24},
        "crowd": generate(crowd),
        "others together": generate(others),
        "crowd again": generate(crowd),
    }


@pytest.fixture(scope="module", params=["in_process", "multiprocessing"])
def runs(
    runner: EngineRunner, request: pytest.FixtureRequest
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Results by operation without and with the connector, the engine core in this or in its own process."""

    def results(kv_config: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
        return runner.run_named(
            script(),
            kv_config,
            num_gpu_blocks=NUM_GPU_BLOCKS,
            multiprocessing=request.param == "multiprocessing",
        )

    return results(None), results(runner.kv_config(cpu_bytes_to_use=TIER_BYTES))


@pytest.mark.parametrize("operation", script())
def test_tokens_equal_those_without_the_tier(
    runs: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]], operation: str
) -> None:
    without, with_tier = runs
    assert with_tier[operation]["tokens"] == without[operation]["tokens"]


@pytest.mark.parametrize("operation", ["again", "longer", "chat", "crowd again"])
def test_returning_prompts_are_served_by_the_tier(
    runs: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]], operation: str
) -> None:
    without, with_tier = runs
    assert num_tokens_from_tier(without[operation]) == 0
    assert num_tokens_from_tier(with_tier[operation]) > 0


def test_a_prompt_that_returns_alone_computes_only_its_last_block(
    runs: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]],
) -> None:
    _, with_tier = runs
    result = with_tier["again"]
    num_prompts = len(result["tokens"])
    assert result["counters"]["local_compute"] <= num_prompts * BLOCK_TOKENS
    assert num_tokens_from_tier(result) >= 650 // BLOCK_TOKENS * BLOCK_TOKENS


def test_prompts_never_seen_are_not_served_by_the_tier(
    runs: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]],
) -> None:
    _, with_tier = runs
    assert num_tokens_from_tier(with_tier["others"]) == 0
