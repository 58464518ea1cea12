# SPDX-License-Identifier: Apache-2.0
"""A model whose KV cache groups have blocks of two sizes: they share the tier, and the tokens stay the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier

PROMPT_TOKENS = 650
NUM_PROMPTS = 4
# Of all layers: what a prompt's blocks take, if a block takes what its layers have.
PROMPT_BLOCKS = NUM_PROMPTS * (PROMPT_TOKENS // BLOCK_TOKENS)


def script() -> dict[str, dict[str, Any]]:
    """Named operations; the pool holds two prompts and a bit, so that others push the first ones out."""
    prompts = Prompts(seed=4)
    first = prompts.many(NUM_PROMPTS, PROMPT_TOKENS)
    others = prompts.many(NUM_PROMPTS, PROMPT_TOKENS + 50)
    return {
        "warm up": generate(prompts.many(1, 10), submit="one_by_one"),
        "first": generate(first, submit="one_by_one"),
        "others": generate(others, submit="one_by_one"),
        "again": generate(first, submit="one_by_one"),
        "others again": generate(others),
        "longer": generate([prompt + prompts.make(150) for prompt in first]),
    }


@pytest.fixture(scope="module")
def runs(hybrid_runner: EngineRunner) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], str]:
    """Results by operation without and with the connector, and the log of the latter."""
    engine: dict[str, Any] = {"num_gpu_blocks": 200}
    without = hybrid_runner.run_named(script(), None, **engine)
    report = hybrid_runner.run(
        list(script().values()),
        hybrid_runner.kv_config(cpu_bytes_to_use=128 << 20),
        environment={"VLLM_LOGGING_LEVEL": "INFO"},
        **engine,
    )
    return without, dict(zip(script(), report.results, strict=True)), report.log


@pytest.mark.parametrize("operation", script())
def test_tokens_equal_those_without_the_tier(runs: Any, operation: str) -> None:
    without, with_tier, _ = runs
    assert with_tier[operation]["tokens"] == without[operation]["tokens"]


@pytest.mark.parametrize("operation", ["again", "others again", "longer"])
def test_returning_prompts_are_served_by_the_tier(runs: Any, operation: str) -> None:
    without, with_tier, _ = runs
    assert num_tokens_from_tier(without[operation]) == 0
    assert num_tokens_from_tier(with_tier[operation]) >= PROMPT_BLOCKS // 2 * BLOCK_TOKENS


def test_the_slots_of_the_widest_group_have_two_layers(runs: Any, hybrid_runner: EngineRunner) -> None:
    # 128 MiB in chunks of at most 64 blocks of two of the five layers.
    two_layers = hybrid_runner.block_bytes * 2 // 5
    found = re.search(r"rank 0 has (\d+) slots of ([\d.]+) KiB", runs[2])
    assert found, runs[2]
    assert float(found[2]) == two_layers / 1024
    assert int(found[1]) == (128 << 20) // (two_layers * 16) * 16
