# SPDX-License-Identifier: Apache-2.0
"""Blocks that are damaged at random: each is found, none is invented, and every request gets its tokens (G11)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .storm_checks import SEEDS

NUM_GPU_BLOCKS = 200
TIER_BYTES = 128 << 20
NUM_ROUNDS = 12
# Three damaged loads in a row would end the tier's service. So few of the loads are damaged.
PROBABILITY = 3e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_injected_is_counted_block_by_block_and_tokens_stay_the_same(
    runner: EngineRunner, tmp_path: Path, seed: int
) -> None:
    prompts = Prompts(seed=seed + 40)
    batch = prompts.many(4, 600, prompts.make(200)) + prompts.many(3, 500)
    script: dict[str, dict[str, Any]] = {"first": generate(batch, 8, "one_by_one"), "settled": settle()}
    for index in range(NUM_ROUNDS):
        script[f"lost {index}"] = {"op": "reset_prefix_cache"}
        script[f"again {index}"] = generate(batch, 8, "together" if index % 2 else "one_by_one")
        script[f"settled {index}"] = settle()
    script["end"] = {"op": "inspect"}
    script["metrics"] = {"op": "metrics"}

    log_file = tmp_path / "injections.jsonl"
    link = {"inject_probability": PROBABILITY, "inject_log": str(log_file), "seed": seed + 1}
    extra: dict[str, Any] = {"cpu_bytes_to_use": TIER_BYTES, "verify": "all", "host_link": link}
    kv_config = runner.kv_config(failure_policy="recompute", **extra)
    result = runner.run_named(script, kv_config, num_gpu_blocks=NUM_GPU_BLOCKS)
    reference = runner.run_named(
        {name: script[name] for name in ("first", "lost 0", "again 0", "lost 1", "again 1")},
        None,
        num_gpu_blocks=NUM_GPU_BLOCKS,
    )

    # No request is lost, and each has the tokens of an engine without a tier.
    again = [result[f"again {index}"] for index in range(NUM_ROUNDS)]
    assert result["first"]["tokens"] == reference["first"]["tokens"]
    for index in range(NUM_ROUNDS):
        assert again[index]["tokens"] == reference[f"again {index % 2}"]["tokens"], index

    log = [json.loads(line) for line in log_file.read_text().splitlines()]
    tier = result["end"]["tier"]
    print(Counter((entry["event"], entry["way"], entry["kind"]) for entry in log), tier)
    print([num_tokens_from_tier(one) for one in again])
    # A damaged slot is not used again, so that each arrives once; each of its runs has an entry.
    arrived = {entry["slot"] for entry in log if entry["event"] == "arrived"}
    assert arrived, "nothing was damaged: nothing is tested"
    assert tier["damaged_blocks/0"] == len(arrived)
    assert tier["num_set_aside"] == tier["num_quarantined"] == len(arrived)
    assert result["metrics"]["vllm:kvferry_rank_damaged_blocks/0"] == len(arrived)
    assert tier["failed_loads"] > 0
    # The tier went on serving.
    assert sum(map(num_tokens_from_tier, again)) > 0
    assert num_tokens_from_tier(again[-1]) > 0
