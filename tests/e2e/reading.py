# SPDX-License-Identifier: Apache-2.0
"""Prompts that are stored, pushed out of the engine's own cache, and asked for again."""

from __future__ import annotations

from typing import Any

from .engine_runs import BLOCK_TOKENS, Prompts, generate, num_tokens_from_tier, settle

# Copies may fail: one reading may find nothing.
NUM_READINGS = 5


def read_back(seed: int, num_blocks: int) -> dict[str, Any]:
    """Operations that store prompts of so many blocks, empty the engine's own cache, and ask again."""
    prompts = Prompts(seed)
    script: dict[str, Any] = {}
    for index in range(NUM_READINGS):
        script[f"stored {index}"] = generate([prompts.make(num_blocks * BLOCK_TOKENS + 1)], 4)
        script[f"settled {index}"] = settle()
        script[f"lost {index}"] = {"op": "reset_prefix_cache"}
        script[f"loaded {index}"] = script[f"stored {index}"]
    return {**script, "settled after reading": settle()}


def assert_is_read_back(result: dict[str, Any]) -> None:
    """The answers of `read_back` are the same, and some came from the tier."""
    assert sum(num_tokens_from_tier(result[f"loaded {index}"]) for index in range(NUM_READINGS)) > 0
    for index in range(NUM_READINGS):
        assert result[f"loaded {index}"]["tokens"] == result[f"stored {index}"]["tokens"]
