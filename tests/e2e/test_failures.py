# SPDX-License-Identifier: Apache-2.0
"""Copies that fail and requests that are aborted while they load: right tokens, and nothing is kept."""

from __future__ import annotations

from typing import Any

from .engine_runs import EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

NUM_GPU_BLOCKS = 200
TIER_BYTES = 128 << 20


def test_failed_copies_are_recomputed_and_tokens_stay_the_same(runner: EngineRunner) -> None:
    prompts = Prompts(seed=4)
    shared = prompts.make(200)
    batch = prompts.many(3, 600, shared) + prompts.many(3, 500)
    script: dict[str, dict[str, Any]] = {"first": generate(batch, 8, "one_by_one")}
    for index in range(6):
        script[f"lost {index}"] = {"op": "reset_prefix_cache"}
        submit = "together" if index % 2 else "one_by_one"
        script[f"again {index}"] = generate(batch, 8, submit)
    script["settled"] = settle()
    script["end"] = {"op": "inspect"}

    link = {"fail_probability": 0.15, "seed": 7}
    extra: dict[str, Any] = {"cpu_bytes_to_use": TIER_BYTES, "host_link": link}
    kv_config = runner.kv_config(failure_policy="recompute", **extra)
    result = runner.run_named(script, kv_config, num_gpu_blocks=NUM_GPU_BLOCKS)
    reference = runner.run_named(
        {name: script[name] for name in ("first", "lost 0", "again 0", "lost 1", "again 1")},
        None,
        num_gpu_blocks=NUM_GPU_BLOCKS,
    )
    again = [result[f"again {index}"] for index in range(6)]
    assert sum(map(num_tokens_from_tier, again)) > 0
    assert result["end"]["tier"]["failed_loads"] > 0, result["end"]["tier"]
    assert result["first"]["tokens"] == reference["first"]["tokens"]
    for index in range(6):
        assert again[index]["tokens"] == reference[f"again {index % 2}"]["tokens"], index
    assert_nothing_is_kept(result["end"])


def test_requests_aborted_while_they_load_leave_nothing_behind(runner: EngineRunner) -> None:
    prompts = Prompts(seed=5)
    batch = prompts.many(6, 600, prompts.make(200))
    num_aborts = 3
    script = {
        "first": generate(batch, 4, "one_by_one"),
        "settled": settle(),
        "lost": {"op": "reset_prefix_cache"},
        "aborted": {
            "op": "abort_during_load",
            "prompts": batch,
            "max_tokens": 4,
            "num_aborts": num_aborts,
        },
        "drained": {"op": "drain"},
        "settled again": settle(),
        "end": {"op": "inspect"},
        "lost again": {"op": "reset_prefix_cache"},
        "again": generate(batch, 4, "one_by_one"),
    }
    link = {"latency_us": 100_000}
    extra: dict[str, Any] = {"cpu_bytes_to_use": TIER_BYTES, "host_link": link}
    result = runner.run_named(script, runner.kv_config(**extra), num_gpu_blocks=NUM_GPU_BLOCKS)
    aborted = result["aborted"]["aborted"]
    tokens = result["aborted"]["tokens"]
    assert len(aborted) == num_aborts
    for index, expected in enumerate(result["first"]["tokens"]):
        assert tokens[index] == (None if index in aborted else expected)
    assert_nothing_is_kept(result["end"])
    assert num_tokens_from_tier(result["again"]) > 0
    assert result["again"]["tokens"] == result["first"]["tokens"]
