# SPDX-License-Identifier: Apache-2.0
"""A model with short convolutions beside attention (LFM2): their states come back from the tier too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from .conftest import CONNECTOR
from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

MODEL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    # Small ones would leave the next token to the embedding alone.
    "initializer_range": 0.3,
    # What vLLM's model reads beside.
    "conv_dim": 128,
    "conv_dim_out": 128,
    "block_dim": 128,
    "block_ff_dim": 256,
}
NUM_PROMPTS = 4
PROMPT_BLOCKS = 9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Results by operation without and with the connector."""
    directory: Path = tmp_path_factory.mktemp("lfm2")
    torch.manual_seed(2)
    Lfm2ForCausalLM(Lfm2Config(**MODEL)).save_pretrained(directory)  # type: ignore[no-untyped-call]
    runner = EngineRunner(directory, *CONNECTOR.split(":"))
    # One token behind the boundary: what it gives depends on the state there.
    prompts = Prompts(seed=17).many(NUM_PROMPTS, PROMPT_BLOCKS * BLOCK_TOKENS + 1)
    script = {
        "first": generate(prompts, submit="one_by_one"),
        "stored": settle(),
        "reset": {"op": "reset_prefix_cache"},
        "again": generate(prompts, submit="one_by_one"),
        "reset again": {"op": "reset_prefix_cache"},
        "longer": generate([[*prompt, 7, 8, 9] for prompt in prompts], submit="one_by_one"),
        "end": {"op": "inspect"},
    }
    engine: dict[str, Any] = {
        "num_gpu_blocks": 120,
        "options": {"mamba_cache_mode": "align"},
    }
    without = runner.run_named({name: script[name] for name in ("first", "longer")}, None, **engine)
    return without, runner.run_named(script, runner.kv_config(cpu_bytes_to_use=64 << 20), **engine)


@pytest.mark.parametrize("operation", ["first", "longer"])
def test_tokens_equal_those_without_the_tier(runs: Any, operation: str) -> None:
    without, with_tier = runs
    assert with_tier[operation]["tokens"] == without[operation]["tokens"]


def test_prompts_come_back_with_the_state_of_their_last_whole_block(runs: Any) -> None:
    _, with_tier = runs
    assert with_tier["again"]["tokens"] == with_tier["first"]["tokens"]
    for operation in ("again", "longer"):
        assert num_tokens_from_tier(with_tier[operation]) == NUM_PROMPTS * PROMPT_BLOCKS * BLOCK_TOKENS


def test_nothing_is_kept(runs: Any) -> None:
    assert_nothing_is_kept(runs[1]["end"])
