# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the families whose KV cache has groups: their prefixes come back from the tier, and with them the
tokens of an engine without it.

vLLM's CPU build runs these. It stops others: DeepSeek-V3.2 and GLM-5 ("Sparse Attention is not supported on CPU."),
DeepSeek-V4 and MiMo-V2 whose values are shorter than its keys (Triton kernels, in the first step), Qwen3.5 and
MiniMax-M3 (they import torchvision). DeepSeek-V3 and Kimi-K2 run, and without AMX vLLM turns prefix caching off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .conftest import make_runner
from .engine_runs import Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

# Three to four blocks, and shorter than every prompt.
WINDOW = 100
BASE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "sliding_window": WINDOW,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1, "hidden_act": "silu",
}  # fmt: skip
FIVE_TO_ONE = ["sliding_attention"] * 5 + ["full_attention"]


class Family(NamedTuple):
    """A tiny model: what its configuration says beside `BASE`, and a block or more of its tokens.

    The blocks of recurrent families have as many tokens as vLLM's kernels for this processor ask for.
    """

    model_type: str
    architecture: str
    config: dict[str, Any]
    unit: int
    options: dict[str, Any] | None = None


FAMILIES = {
    "gemma4": Family(
        "gemma4_text", "Gemma4ForCausalLM",
        {"num_hidden_layers": 6, "layer_types": FIVE_TO_ONE, "num_key_value_heads": 4, "global_head_dim": 64,
         "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
        64,
    ),
    "mimo_v2": Family(
        "mimo_v2_flash", "MiMoV2FlashForCausalLM",
        {**EXPERTS, "num_hidden_layers": 6, "num_key_value_heads": 1, "v_head_dim": 32, "sliding_window_size": WINDOW,
         "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0], "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
         "swa_head_dim": 32, "swa_v_head_dim": 32, "add_swa_attention_sink_bias": True, "attention_bias": False,
         "moe_layer_freq": [0, 1, 1, 1, 1, 1], "layernorm_epsilon": 1e-5},
        64,
    ),
    "gpt_oss": Family(
        "gpt_oss", "GptOssForCausalLM",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_local_experts": 4,
         "num_experts_per_tok": 2},
        64,
    ),
    "gemma3": Family(
        "gemma3_text", "Gemma3ForCausalLM",
        {"num_hidden_layers": 6, "layer_types": FIVE_TO_ONE, "query_pre_attn_scalar": 32, "embedding_std": 0.02},
        64,
    ),
    "qwen3_next": Family(
        "qwen3_next", "Qwen3NextForCausalLM",
        {"num_hidden_layers": 4, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "linear_num_value_heads": 2,
         "linear_num_key_heads": 2, "full_attention_interval": 4},
        288, {"dtype": "bfloat16", "mamba_cache_mode": "align"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_prefixes_come_back_from_the_tier(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    config = {**BASE, **family.config, "model_type": family.model_type, "architectures": [family.architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    unit = family.unit
    prompts = Prompts(seed=23)
    shared = prompts.make(3 * unit)
    first, second = prompts.many(2, 6 * unit + 1, shared)
    longer, fork = prompts.make(7 * unit, second), prompts.make(5 * unit, shared)
    drop = {"op": "drop_gpu_cache"}
    script = {
        "first": generate([first, second], submit="one_by_one"),
        "stored": settle(),
        "drop": drop,
        "again": generate([first]),
        "drop again": drop,
        "longer": generate([longer]),
        "drop once more": drop,
        "fork": generate([fork]),
        "idle": {"op": "inspect"},
        # Equal tokens mean something: with wrong blocks they differ, or the blocks are found.
        "drop at last": drop,
        "spoil": {"op": "spoil_tier"},
        "wrong": generate([first]),
        "after wrong": {"op": "inspect"},
    }
    runner = make_runner(tmp_path)
    engine: dict[str, Any] = {
        "num_gpu_blocks": 160,
        "max_model_len": 8 * unit,
        "max_num_batched_tokens": 4 * unit,
        "options": {"load_format": "random", **(family.options or {})},
    }
    alone = runner.run_named({"all": generate([first, second, longer, fork], submit="one_by_one")}, None, **engine)
    with_tier = runner.run_named(
        script, runner.kv_config(failure_policy="recompute", cpu_bytes_to_use=64 << 20, verify="all"), **engine
    )

    expected = alone["all"]["tokens"]
    assert with_tier["first"]["tokens"] == expected[:2]
    assert num_tokens_from_tier(with_tier["first"]) == 0
    hit_tokens = with_tier["idle"]["hit_tokens"]
    for operation, num_shared in {"again": 6 * unit, "longer": 6 * unit, "fork": 3 * unit}.items():
        assert num_tokens_from_tier(with_tier[operation]) == num_shared // hit_tokens * hit_tokens > 0
    assert [*with_tier["again"]["tokens"], *with_tier["longer"]["tokens"], *with_tier["fork"]["tokens"]] == [
        expected[0],
        *expected[2:],
    ]
    assert with_tier["wrong"]["tokens"] == expected[:1]
    assert with_tier["after wrong"]["tier"]["damaged_blocks/0"] > 0
    assert_nothing_is_kept(with_tier["idle"])
