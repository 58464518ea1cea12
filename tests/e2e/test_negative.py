# SPDX-License-Identifier: Apache-2.0
"""Equal tokens mean something: with one wrong block in the tier they differ, unless the block is checked."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import (
    BLOCK_TOKENS,
    EngineRunner,
    Prompts,
    generate,
    num_tokens_from_tier,
    settle,
)

NUM_SLOTS = 16


@pytest.fixture(scope="module", params=["off", "all"])
def verify(request: pytest.FixtureRequest) -> str:
    """Which loaded blocks the engine checks."""
    return str(request.param)


@pytest.fixture(scope="module")
def result(runner: EngineRunner, verify: str) -> dict[str, dict[str, Any]]:
    """A prompt that is computed, loaded, and loaded again when one slot holds another block's bytes."""
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
        "settled again": settle(),
        "end": {"op": "inspect"},
    }
    return runner.run_named(
        script,
        runner.kv_config(failure_policy="recompute", cpu_bytes_to_use=NUM_SLOTS * runner.block_bytes, verify=verify),
        num_gpu_blocks=64,
    )


def test_the_tier_is_full_of_the_prompt_and_gives_it_back(result: dict[str, dict[str, Any]]) -> None:
    tier = result["stored"]["tier"]
    assert tier["num_slots"] == tier["num_evictable"] == NUM_SLOTS
    assert result["lost"]["done"]
    assert result["lost again"]["done"]
    # The control: the same path, nothing overwritten.
    assert num_tokens_from_tier(result["loaded"]) == NUM_SLOTS * BLOCK_TOKENS
    assert result["loaded"]["tokens"] == result["computed"]["tokens"]


def test_tokens_differ_when_a_stored_slot_holds_another_blocks_bytes_and_is_not_checked(
    result: dict[str, dict[str, Any]], verify: str
) -> None:
    if verify == "off":
        assert num_tokens_from_tier(result["loaded wrong"]) == NUM_SLOTS * BLOCK_TOKENS
        assert result["loaded wrong"]["tokens"] != result["computed"]["tokens"]
        return
    # G11: the block is found, the request is computed, and the slot is not used again.
    assert result["loaded wrong"]["tokens"] == result["computed"]["tokens"]
    end = result["end"]["tier"]
    assert end["damaged_blocks/0"] == 1
    assert end["num_quarantined"] == end["num_set_aside"] == 1
