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


CACHED_TOKENS = 300 // 32 * 32


def serve_behind(
    runner: EngineRunner, link: dict[str, float], batch: list[list[int]], again: list[list[int]]
) -> dict[str, Any]:
    """Store a batch, load it over a link with room for one load, and then `again`; a load waits half a second."""
    script = {
        "first": generate(batch, 8, "one_by_one"),
        "settled": settle(),
        "lost": {"op": "reset_prefix_cache"},
        "stalled": generate(batch, 8),
        "lost again": {"op": "reset_prefix_cache"},
        "again": generate(again, 8),
        "settled again": settle(),
        "end": {"op": "inspect"},
        "metrics": {"op": "metrics"},
    }
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": TIER_BYTES,
        "host_link": link,
        "max_in_flight_bytes": runner.block_bytes,
        "load_timeout_s": 0.5,
    }
    result = runner.run_named(
        script, runner.kv_config(failure_policy="recompute", **extra), num_gpu_blocks=NUM_GPU_BLOCKS
    )
    assert result["stalled"]["tokens"] == result["first"]["tokens"]
    assert num_tokens_from_tier(result["stalled"]) == CACHED_TOKENS, "the first one had begun, and was waited for"
    assert result["end"]["tier"]["expired_loads"] == 3
    assert result["metrics"]["vllm:kvferry_expired_loads"] == 3
    assert_nothing_is_kept(result["end"])
    return result


def test_loads_behind_a_link_that_stalls_are_computed_and_the_engine_lives_on(runner: EngineRunner) -> None:
    batch = Prompts(seed=32).many(4, 300)
    # A load, which is one copy, takes three seconds.
    result = serve_behind(runner, {"h2d_gb_s": 9 * runner.block_bytes / 3 / 1e9}, batch, batch[3:])
    assert result["again"]["tokens"] == result["first"]["tokens"][3:]
    assert num_tokens_from_tier(result["again"]) == CACHED_TOKENS, "nothing says that its blocks are bad"


def test_engine_behind_a_link_that_stalls_once_serves_all_and_loads_again_when_it_has_recovered(
    runner: EngineRunner,
) -> None:
    batch = Prompts(seed=34).many(4, 300)
    result = serve_behind(runner, {"stall_us": 3e6}, batch, batch)
    assert result["again"]["tokens"] == result["first"]["tokens"]
    assert num_tokens_from_tier(result["again"]) == 4 * CACHED_TOKENS, "nothing is left of the stall"


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
