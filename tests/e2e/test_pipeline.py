# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages, each with the blocks of its own layers: the tokens are those of one process without tier."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

PROMPT_TOKENS = 650
NUM_PROMPTS = 4
NUM_GPU_BLOCKS = 72
NUM_STAGES = 2


def script() -> dict[str, dict[str, Any]]:
    """Named operations; the pool holds two prompts and a bit, so that others push the first ones out."""
    prompts = Prompts(seed=6)
    first = prompts.many(NUM_PROMPTS, PROMPT_TOKENS)
    others = prompts.many(NUM_PROMPTS, PROMPT_TOKENS + 50)
    return {
        "first": generate(first, submit="one_by_one"),
        "others": generate(others, submit="one_by_one"),
        "again": generate(first, submit="one_by_one"),
        "longer": generate([prompt + prompts.make(150) for prompt in first], submit="one_by_one"),
        "settled": settle(),
        "end": {"op": "inspect"},
    }


@pytest.fixture(scope="module")
def runs(runner: EngineRunner) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], str]:
    """Results by operation of one process without the connector and of two stages with it, and the log of those."""
    generations = {name: operation for name, operation in script().items() if operation["op"] == "generate"}
    without = runner.run_named(generations, None, num_gpu_blocks=NUM_GPU_BLOCKS)
    report = runner.run(
        list(script().values()),
        runner.kv_config(cpu_bytes_to_use=128 << 20),
        num_gpu_blocks=NUM_GPU_BLOCKS,
        num_stages=NUM_STAGES,
        environment={"VLLM_LOGGING_LEVEL": "INFO"},
    )
    return without, dict(zip(script(), report.results, strict=True)), report.log


@pytest.mark.parametrize("operation", ["first", "others", "again", "longer"])
def test_tokens_are_those_of_one_process_without_tier(runs: Any, operation: str) -> None:
    without, with_tier, _ = runs
    assert with_tier[operation]["tokens"] == without[operation]["tokens"]


@pytest.mark.parametrize("operation", ["again", "longer"])
def test_returning_prompts_are_served_by_the_tier(runs: Any, operation: str) -> None:
    _, with_tier, _ = runs
    prompt_tokens = NUM_PROMPTS * (PROMPT_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS
    assert num_tokens_from_tier(with_tier[operation]) >= prompt_tokens // 2


def test_a_stage_keeps_its_own_layers(runs: Any, runner: EngineRunner) -> None:
    sizes = dict(re.findall(r"rank (\d) has \d+ slots of ([\d.]+) KiB", runs[2]))
    half = runner.block_bytes / NUM_STAGES / 1024
    assert {rank: float(size) for rank, size in sizes.items()} == {"0": half, "1": half}


def test_the_engine_ends_idle_and_nothing_is_kept(runs: Any) -> None:
    assert_nothing_is_kept(runs[1]["end"])
