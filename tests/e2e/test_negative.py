# SPDX-License-Identifier: Apache-2.0
"""Equal tokens mean something: with one wrong block in the tier they differ."""

from __future__ import annotations

from .engine_runs import (
    BLOCK_TOKENS,
    EngineRunner,
    Prompts,
    generate,
    num_tokens_from_tier,
    settle,
)

NUM_SLOTS = 16


def test_tokens_differ_when_a_stored_slot_holds_another_blocks_bytes(runner: EngineRunner) -> None:
    # The prompt fills the tier exactly, so that whichever two slots are taken hold blocks of it.
    prompt = Prompts(seed=2).make(NUM_SLOTS * BLOCK_TOKENS + 5)
    ask = generate([prompt], max_tokens=16)
    script = {
        "computed": ask,
        "settled": settle(),
        "stored": {"op": "inspect"},
        "lost": {"op": "reset_prefix_cache"},
        "loaded": ask,
        "lost again": {"op": "reset_prefix_cache"},
        "overwritten": {"op": "overwrite_slot", "source": 3, "to": 7},
        "loaded wrong": ask,
        "end": {"op": "inspect"},
    }
    result = runner.run_named(
        script,
        runner.kv_config(cpu_bytes_to_use=NUM_SLOTS * runner.block_bytes),
        num_gpu_blocks=64,
    )
    tier = result["stored"]["tier"]
    assert tier["num_slots"] == tier["num_evictable"] == NUM_SLOTS
    assert result["lost"]["done"]
    assert result["lost again"]["done"]

    # The control: the same path, nothing overwritten.
    assert num_tokens_from_tier(result["loaded"]) == NUM_SLOTS * BLOCK_TOKENS
    assert result["loaded"]["tokens"] == result["computed"]["tokens"]

    assert num_tokens_from_tier(result["loaded wrong"]) == NUM_SLOTS * BLOCK_TOKENS
    assert result["loaded wrong"]["tokens"] != result["computed"]["tokens"]
