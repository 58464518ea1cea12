# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel ranks of an MLA model, each a process: they keep one copy, and both load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import CONNECTOR
from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier, settle

# vLLM's kernels for MLA on processors use it.
HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text()
pytestmark = pytest.mark.skipif(not HAS_AMX, reason="this processor has no AMX")

NUM_LAYERS = 3
# vLLM's kernels for MLA on processors want vectors of this length.
LATENT_VALUES = 512 + 64
BLOCK_BYTES = NUM_LAYERS * LATENT_VALUES * 2 * BLOCK_TOKENS
NUM_SLOTS = 300

MODEL = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": NUM_LAYERS,
    "first_k_dense_replace": NUM_LAYERS,  # no experts
    "n_routed_experts": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


@pytest.fixture(scope="module", params=[True, False], ids=["one copy", "a copy each"])
def result(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What a tier brings that has lost nothing, behind an engine that has lost its own cache."""
    directory: Path = tmp_path_factory.mktemp("mla")
    (directory / "config.json").write_text(json.dumps(MODEL))
    prompts = Prompts(seed=3).many(6, 6 * BLOCK_TOKENS + 8)
    runner = EngineRunner(directory, *CONNECTOR.split(":"))
    extra: dict[str, Any] = {"cpu_bytes_to_use": NUM_SLOTS * BLOCK_BYTES, "pinned_piece_bytes": 4 * BLOCK_BYTES}
    num_slots = NUM_SLOTS if request.param else NUM_SLOTS // 2
    script = {
        # A tier that is still growing evicts what it has no room for yet.
        "ready": {"op": "wait_until_ready", "num_slots": num_slots},
        "first": generate(prompts),
        "stored": settle(),
        "reset": {"op": "reset_prefix_cache", "patience_s": 10.0},
        "again": generate(prompts),
        "end": {"op": "inspect"},
    }
    return {
        **runner.run_named(
            script,
            runner.kv_config(share_replicated_kv=request.param, **extra),
            num_gpu_blocks=64,
            max_model_len=512,
            max_num_batched_tokens=512,
            num_ranks=2,
            options={"dtype": "bfloat16", "load_format": "dummy"},
        ),
        "is": {"shared": request.param},
    }


def test_what_is_stored_adds_up_to_one_copy_or_to_one_of_each_rank(result: dict[str, dict[str, Any]]) -> None:
    tier, workers = result["end"]["tier"], result["end"]["workers"]
    stored = [worker["stored_blocks"] for worker in workers]
    assert tier["stored"] >= 36
    if result["is"]["shared"]:
        assert sum(stored) == tier["stored"]
        assert min(stored) > 0
        assert tier["num_slots"] == NUM_SLOTS
    else:
        assert stored == [tier["stored"]] * 2
        assert tier["num_slots"] == NUM_SLOTS // 2


def test_tokens_are_those_that_were_computed(result: dict[str, dict[str, Any]]) -> None:
    assert result["again"]["tokens"] == result["first"]["tokens"]


def test_every_rank_loads_all_of_it(result: dict[str, dict[str, Any]]) -> None:
    assert num_tokens_from_tier(result["again"]) == 6 * 6 * BLOCK_TOKENS
    assert [worker["loaded_blocks"] for worker in result["end"]["workers"]] == [36, 36]
