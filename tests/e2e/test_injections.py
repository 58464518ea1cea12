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
NUM_ROUNDS = 30
# Three damaged loads in a row would end the tier's service. So few of the loads are damaged.
PROBABILITY = 4e-3
# By these ways a block comes in one piece, so that the log has one entry for it.
COPY_PATHS = ["kernel", "staged"]


@pytest.mark.parametrize("copy_path", COPY_PATHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_injected_is_counted_block_by_block_and_tokens_stay_the_same(
    runner: EngineRunner, tmp_path: Path, seed: int, copy_path: str
) -> None:
    prompts = Prompts(seed=seed + 40)
    # Most of the first prompts is shared. So one of them loads it, and the others wait for that load: one damaged
    # block is not three damaged loads.
    batch = prompts.many(4, 600, prompts.make(450)) + prompts.many(3, 500)
    script: dict[str, dict[str, Any]] = {"first": generate(batch, 8, "one_by_one"), "settled": settle()}
    for index in range(NUM_ROUNDS):
        script[f"lost {index}"] = {"op": "reset_prefix_cache"}
        script[f"again {index}"] = generate(batch, 8, "together" if index % 2 else "one_by_one")
        script[f"settled {index}"] = settle()
    script["end"] = {"op": "inspect"}
    script["metrics"] = {"op": "metrics"}

    log_file = tmp_path / "injections.jsonl"
    link: dict[str, Any] = {"inject_probability": PROBABILITY, "inject_log": str(log_file)}
    link["seed"] = 2 * seed + COPY_PATHS.index(copy_path)
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": TIER_BYTES,
        "verify": "all",
        "copy_path": copy_path,
        "host_link": link,
    }
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
    arrived = [entry["slot"] for entry in log if entry["event"] == "arrived"]
    assert arrived, "nothing was damaged: nothing is tested"
    assert tier["damaged_blocks/0"] == len(arrived)
    assert result["metrics"]["vllm:kvferry_rank_damaged_blocks/0"] == len(arrived)
    # Each of these slots is not used again.
    assert tier["num_set_aside"] == tier["num_quarantined"] == len(set(arrived))
    assert tier["failed_loads"] > 0
    assert sum(map(num_tokens_from_tier, again)) > 0
