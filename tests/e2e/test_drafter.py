# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with a model that drafts: its part of the KV cache comes back from the tier too."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, num_tokens_from_tier
from .idle_checks import assert_nothing_is_kept

NUM_DRAFTS = 3


@pytest.fixture(scope="module")
def drafted_run(runner: EngineRunner) -> dict[str, Any]:
    """The model drafts for itself, so that every draft is right as long as the drafter sees its own blocks."""
    prompts = Prompts(seed=31)
    script: dict[str, dict[str, Any]] = {
        "talk": {
            "op": "follow_up",
            "prompt": prompts.make(300),
            "more": prompts.make(5),
            "sampling": {"max_tokens": 40},
        },
        "end": {"op": "inspect"},
    }
    drafter = {"method": "draft_model", "model": str(runner.model), "num_speculative_tokens": NUM_DRAFTS}
    return runner.run_named(
        script,
        runner.kv_config(cpu_bytes_to_use=64 << 20),
        num_gpu_blocks=60,
        options={"speculative_config": drafter},
    )


def test_drafter_is_right_behind_blocks_from_the_tier(drafted_run: dict[str, Any]) -> None:
    talk = drafted_run["talk"]
    whole_blocks = (talk["num_text_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert num_tokens_from_tier(talk["second"]) == whole_blocks > 300
    drafts = talk["drafts"]
    # At least those of the second completion are from behind the tier's blocks.
    assert drafts["accepted"] == drafts["proposed"] >= 2 * 40 * NUM_DRAFTS // (NUM_DRAFTS + 1), drafts


def test_nothing_is_kept(drafted_run: dict[str, Any]) -> None:
    assert_nothing_is_kept(drafted_run["end"])
