# SPDX-License-Identifier: Apache-2.0
"""The real engine with a slow link, short time-outs, rests and stops: a time-out costs a request at most."""

from __future__ import annotations

from typing import Any

from .engine_runs import EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept
from .rests import RANK_TIMEOUT_VARIABLE

NUM_GPU_BLOCKS = 200
TIER_BYTES = 128 << 20
RANK_TIMEOUT_S = 1.0


def test_engine_that_rested_longer_than_the_rank_timeout_serves_the_next_request(runner: EngineRunner) -> None:
    prompts = Prompts(seed=31)
    long, other = prompts.make(600), prompts.make(100)
    script = {
        # More steps than a silent rank has at least; the store takes longer.
        "long": generate([long], 24),
        "rest": {"op": "rest", "seconds": 3 * RANK_TIMEOUT_S},
        "other": generate([other], 24),
        "second rest": {"op": "rest", "seconds": 3 * RANK_TIMEOUT_S},
        "settled": settle(),
        "lost": {"op": "reset_prefix_cache"},
        "again": generate([long], 24),
        "settled again": settle(),
        "end": {"op": "inspect"},
    }
    # A store of the long prompt takes two seconds.
    rate = runner.kv_bytes_per_token * 600 // 2
    result = runner.run_named(
        script,
        runner.kv_config(cpu_bytes_to_use=TIER_BYTES, store_bandwidth_limit=rate, max_in_flight_bytes="64KiB"),
        num_gpu_blocks=NUM_GPU_BLOCKS,
        async_scheduling=True,
        environment={RANK_TIMEOUT_VARIABLE: str(RANK_TIMEOUT_S)},
    )
    assert result["rest"]["before"]["num_stores_in_flight"] > 0, "it ended before the rest: nothing is shown"
    assert result["again"]["tokens"] == result["long"]["tokens"]
    assert num_tokens_from_tier(result["again"]) == 600 // 32 * 32
    assert result["end"]["tier"]["num_quarantined"] == 0
    assert_nothing_is_kept(result["end"])


def test_loads_behind_a_link_that_stalls_are_computed_and_the_engine_lives_on(runner: EngineRunner) -> None:
    prompts = Prompts(seed=32)
    batch = prompts.many(4, 300)
    script = {
        "first": generate(batch, 8, "one_by_one"),
        "settled": settle(),
        "lost": {"op": "reset_prefix_cache"},
        "stalled": generate(batch, 8),
        "lost again": {"op": "reset_prefix_cache"},
        "one": generate(batch[3:], 8),
        "settled again": settle(),
        "end": {"op": "inspect"},
        "metrics": {"op": "metrics"},
    }
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": TIER_BYTES,
        # A load, which is one copy, takes three seconds, and there is room for one of them.
        "host_link": {"h2d_gb_s": 9 * runner.block_bytes / 3 / 1e9},
        "max_in_flight_bytes": runner.block_bytes,
        "load_timeout_s": 0.5,
    }
    result = runner.run_named(
        script, runner.kv_config(failure_policy="recompute", **extra), num_gpu_blocks=NUM_GPU_BLOCKS
    )
    assert result["stalled"]["tokens"] == result["first"]["tokens"]
    assert num_tokens_from_tier(result["stalled"]) == 300 // 32 * 32, "the first one had begun, and was waited for"
    assert result["one"]["tokens"] == result["first"]["tokens"][3:]
    assert num_tokens_from_tier(result["one"]) == 300 // 32 * 32, "nothing says that its blocks are bad"
    assert result["end"]["tier"]["expired_loads"] == 3
    assert result["metrics"]["vllm:kvferry_expired_loads"] == 3
    assert_nothing_is_kept(result["end"])


def test_engine_behind_a_link_that_stalls_once_serves_all_and_loads_again_when_it_has_recovered(
    runner: EngineRunner,
) -> None:
    prompts = Prompts(seed=34)
    batch = prompts.many(4, 300)
    stall_s = 3
    script = {
        "first": generate(batch, 8, "one_by_one"),
        "settled": settle(),
        "lost": {"op": "reset_prefix_cache"},
        "stalled": generate(batch, 8),
        "lost again": {"op": "reset_prefix_cache"},
        "recovered": generate(batch, 8),
        "settled again": settle(),
        "end": {"op": "inspect"},
    }
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": TIER_BYTES,
        "host_link": {"stall_us": stall_s * 1e6},
        # Room for one load, so that the others wait behind the one that stalls.
        "max_in_flight_bytes": runner.block_bytes,
        "load_timeout_s": 0.5,
    }
    result = runner.run_named(
        script, runner.kv_config(failure_policy="recompute", **extra), num_gpu_blocks=NUM_GPU_BLOCKS
    )
    cached = 300 // 32 * 32
    assert result["stalled"]["tokens"] == result["first"]["tokens"]
    assert num_tokens_from_tier(result["stalled"]) == cached, "the first one had begun, and was waited for"
    assert result["end"]["tier"]["expired_loads"] == 3
    assert result["recovered"]["tokens"] == result["first"]["tokens"]
    assert num_tokens_from_tier(result["recovered"]) == 4 * cached, "nothing is left of the stall"
    assert_nothing_is_kept(result["end"])


def test_worker_that_was_stopped_longer_than_its_time_out_goes_on(runner: EngineRunner) -> None:
    prompts = Prompts(seed=33)
    batch = prompts.many(3, 300)
    stop = {"op": "stop_worker_during_load", "prompts": batch, "max_tokens": 8, "stop_s": 3.0}
    script = {"first": generate(batch, 8, "one_by_one"), "stopped": stop, "behind": generate(batch, 8, "one_by_one")}
    result = runner.run_named(
        script,
        runner.kv_config(
            cpu_bytes_to_use=TIER_BYTES,
            host_link={"latency_us": 300_000},
            max_in_flight_bytes=runner.block_bytes,
            transfer_timeout_s=1,
        ),
        num_gpu_blocks=64,
        num_ranks=2,
        multiprocessing=True,
        environment={"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},  # for functions that run in a worker
    )
    assert result["stopped"]["tokens"] == result["first"]["tokens"]
    assert result["behind"]["tokens"] == result["first"]["tokens"]
    # Of the ranks' halves of 9 blocks each.
    assert result["stopped"]["loaded_bytes"] == [3 * 9 * runner.block_bytes // 2] * 2
