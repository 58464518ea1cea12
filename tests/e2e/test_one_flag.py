# SPDX-License-Identifier: Apache-2.0
"""Engines that are told the connector's name and nothing of its module: every process of vLLM finds it by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier

NUM_GPU_BLOCKS = 44
PROMPT_TOKENS = 300
NUM_HIT_TOKENS = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
PROMPTS = Prompts(seed=21).many(3, PROMPT_TOKENS)
SCRIPT: dict[str, dict[str, Any]] = {
    "first": generate(PROMPTS, max_tokens=8),
    # In the process that serves the metrics.
    "settled": {"op": "await_figure", "name": "vllm:kvferry_stored_blocks", "least": 3 * NUM_HIT_TOKENS / BLOCK_TOKENS},
    "lost": {"op": "reset_prefix_cache"},
    "again": generate(PROMPTS, max_tokens=8),
    # The end of a load is told with a later step.
    "told": {"op": "await_figure", "name": "vllm:kvferry_loaded_blocks", "least": 3 * NUM_HIT_TOKENS / BLOCK_TOKENS},
    "end": {"op": "metrics"},
}
SHORT: dict[str, Any] = {
    "kv_connector": "KvFerryConnector",
    "kv_role": "kv_both",
    # The tiny model computes as fast as it loads.
    "kv_connector_extra_config": {"cpu_bytes_to_use": 128 << 20, "min_load_tokens": 0},
}


@pytest.mark.parametrize("is_child", [False, True], ids=["alone", "child"])
def test_engine_that_is_told_a_name_stores_and_loads(runner: EngineRunner, tmp_path: Path, is_child: bool) -> None:
    if runner.connector != SHORT["kv_connector"]:
        pytest.skip("the name is kvferry's")
    config, options = SHORT, {}
    if is_child:
        beside = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
        }
        extra = {"connectors": [SHORT, beside]}
        config = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        options = {"disable_hybrid_kv_cache_manager": True}  # ExampleConnector knows no groups
    results = runner.run_named(SCRIPT, config, num_gpu_blocks=NUM_GPU_BLOCKS, multiprocessing=True, options=options)
    assert results["lost"]["done"]
    assert results["again"]["tokens"] == results["first"]["tokens"]
    assert num_tokens_from_tier(results["first"]) == 0
    assert num_tokens_from_tier(results["again"]) == 3 * NUM_HIT_TOKENS
    assert results["end"]["vllm:kvferry_loaded_blocks"] == 3 * NUM_HIT_TOKENS / BLOCK_TOKENS
