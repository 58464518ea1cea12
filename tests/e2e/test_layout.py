# SPDX-License-Identifier: Apache-2.0
"""The key `kv_cache_layout`: a block is one run of memory, and the tokens are those of the engine's own layout."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import EngineReport, EngineRunner, Prompts, generate, num_tokens_from_tier, settle

# vLLM's CPU attention claims the first only; it reads the other as well, because it goes by the tensors' strides.
BOTH = {"KVFERRY_E2E_CPU_LAYOUTS": "LBHNC,BLHNC", "VLLM_LOGGING_LEVEL": "INFO"}


def operations() -> list[dict[str, Any]]:
    """Prompts that come, are pushed out by others, and come again."""
    prompts = Prompts(seed=9)
    first, others = prompts.many(3, 300), prompts.many(6, 650)
    steps = [generate(first), settle(), generate(others), settle(), generate(first)]
    return [*steps[:4], {"op": "reset_prefix_cache"}, steps[4]]


def run(runner: EngineRunner, environment: dict[str, str], must_start: bool = True, **extra: Any) -> EngineReport:
    return runner.run(
        operations(),
        runner.kv_config(cpu_bytes_to_use=128 << 20, **extra),
        num_gpu_blocks=72,
        environment=environment,
        must_start=must_start,
    )


def test_block_is_one_run_and_tokens_are_the_same(runner: EngineRunner) -> None:
    own, block = run(runner, BOTH), run(runner, BOTH, kv_cache_layout="BLHNC")
    for step in (0, 2, 5):
        assert block.results[step]["tokens"] == own.results[step]["tokens"]
    assert num_tokens_from_tier(own.results[5]) > 0
    assert num_tokens_from_tier(block.results[5]) == num_tokens_from_tier(own.results[5])
    assert "a block is 1 contiguous run(s)" in block.log
    assert "Using BLHNC KV cache layout" in block.log
    assert "a block is 1 contiguous run(s)" not in own.log


@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC"])
def test_layout_that_the_back_end_cannot_have_is_refused(runner: EngineRunner, layout: str) -> None:
    report = run(runner, {}, must_start=False, kv_cache_layout=layout)
    assert report.returncode != 0 or report.error is not None
    assert (
        f"kv_cache_layout is '{layout}' and the engine's KV cache has the layout LBHNC" in f"{report.error}{report.log}"
    )
