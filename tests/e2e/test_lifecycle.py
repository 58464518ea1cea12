# SPDX-License-Identifier: Apache-2.0
"""A storm of requests, aborts, preemptions and failing copies, a tier too small: right tokens, nothing kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import StormReference
from .engine_runs import BLOCK_TOKENS, STORE_ALL, EngineRunner, settle
from .idle_checks import assert_nothing_is_kept
from .reading import assert_is_read_back, read_back
from .storm_checks import ABORT_CHANCES, FLOAT_NOISE, MAX_MODEL_LEN, compare, storm

NUM_GPU_BLOCKS = 30
WINDOW = 24
NUM_SLOTS = 96
NUM_REQUESTS_OF_RESETS = 80
NUM_BLOCKS_READ_BACK = 6
# A step stores more blocks, and its stores take longer than the next step: there is no room for them.
NUM_SLOTS_OF_FULL_TIER = 12
NUM_REQUESTS_OF_FULL_TIER = 80
LINK = {
    "bandwidth_gb_s": 0.5,
    "latency_us": 20_000,
    "jitter_us": 60_000,
    "order": "shuffled",
    "fail_probability": 0.1,
}


@pytest.fixture(scope="module", params=["sync_scheduling", "async_scheduling"])
def result(
    runner: EngineRunner, storm_reference: StormReference, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """One storm, and one in which the tier is emptied now and then, on one engine.

    With asynchronous scheduling ids get no suffix from the engine: aborted requests come again under the very
    same id (vllm#51637).
    """
    seed = storm_reference.seed
    crowd = storm_reference.crowd
    script = {
        "storm": storm(crowd, window=WINDOW, abort_chances=ABORT_CHANCES, follow_chance=0.8, seed=seed),
        "settled": settle(),
        "after storm": {"op": "inspect"},
        "resets": storm(
            crowd[:NUM_REQUESTS_OF_RESETS], window=WINDOW, abort_chances=ABORT_CHANCES, reset_chance=0.01, seed=seed
        ),
        "settled again": settle(),
        "after resets": {"op": "inspect"},
        **read_back(seed, NUM_BLOCKS_READ_BACK),
    }
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": NUM_SLOTS * runner.block_bytes,
        "host_link": {**LINK, "seed": seed},
        **STORE_ALL,  # What is read back in the end comes once before.
    }
    asynchronous = request.param == "async_scheduling"
    return runner.run_named(
        script,
        runner.kv_config(failure_policy="recompute", **extra),
        num_gpu_blocks=NUM_GPU_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        async_scheduling=asynchronous,
        environment={"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": str(int(asynchronous))},
    )


@pytest.mark.parametrize("name", ["storm", "resets"])
def test_tokens_are_those_of_an_engine_without_tier(
    result: dict[str, dict[str, Any]],
    storm_reference: StormReference,
    record_property: Callable[[str, object], None],
    name: str,
) -> None:
    requests = storm_reference.crowd if name == "storm" else storm_reference.crowd[:NUM_REQUESTS_OF_RESETS]
    comparison = compare(result[name], storm_reference.results["crowd"], requests, FLOAT_NOISE)
    print(f"{name}: {comparison}; {result[name]['seen']}; {result[name]['num_preemptions']} preemptions")
    print(f"{name}: {result[name]['counters']}; {result[f'after {name}']}")
    record_property("comparison", str(comparison))
    assert comparison.num_near_ties <= 0.02 * len(requests)


def test_all_that_a_storm_is_made_of_has_happened(result: dict[str, dict[str, Any]]) -> None:
    seen = Counter(result["storm"]["seen"])
    tier = result["after storm"]["tier"]
    assert result["storm"]["num_preemptions"] > 0
    assert result["storm"]["counters"]["external_kv_transfer"] > 0
    assert result["storm"]["counters"]["local_cache_hit"] > 0
    assert tier["num_evicted_total"] > NUM_SLOTS
    assert tier["failed_loads"] > 0
    assert tier["failed_stores"] > 0
    # In the middle of a load, after its report, in the step that stops: vllm#43226, vllm#18485, dynamo#6681.
    for state in ABORT_CHANCES:
        assert seen[f"aborted {state}"] > 0, state
    assert seen["aborted twice"] > 0
    assert seen["came again"] > 0
    assert seen["followed up"] > 0


def test_the_tier_was_emptied_while_blocks_were_on_their_way(result: dict[str, dict[str, Any]]) -> None:
    seen = Counter(result["resets"]["seen"])
    assert seen["resets while loading"] > 0
    assert seen["resets while storing"] > 0
    # It still takes blocks, and serves them.
    assert result["after resets"]["tier"]["stored"] > result["after storm"]["tier"]["stored"]
    assert_is_read_back(result)


@pytest.mark.parametrize("name", ["after storm", "after resets"])
def test_the_engine_ends_idle_and_nothing_is_kept(result: dict[str, dict[str, Any]], name: str) -> None:
    assert_nothing_is_kept(result[name])


def test_counters_of_engine_scheduler_side_and_worker_agree(result: dict[str, dict[str, Any]]) -> None:
    tier = result["after storm"]["tier"]
    (worker,) = result["after storm"]["workers"]
    assert worker["stored_blocks"] == tier["stored"]
    assert worker["loaded_blocks"] == tier["loaded"]
    assert worker["failed_transfers"] >= tier["failed_loads"]
    # What was stored is there, was evicted, or was forgotten with a failed load.
    assert tier["stored"] >= tier["num_evicted_total"] + tier["num_evictable"]
    num_tokens_loaded = tier["loaded"] * BLOCK_TOKENS
    assert result["storm"]["counters"]["external_kv_transfer"] <= num_tokens_loaded <= tier["hit_tokens"]


def test_async_scheduling_is_what_the_test_says(
    result: dict[str, dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    mode = request.node.callspec.params["result"]
    assert result["after storm"]["async_scheduling"] is (mode == "async_scheduling")


def test_a_tier_without_room_is_passed_by(
    runner: EngineRunner, storm_reference: StormReference, record_property: Callable[[str, object], None]
) -> None:
    # What is stored or loaded at a time fills it: stores find nothing to evict, and are left out (vllm#42085).
    requests = storm_reference.crowd[:NUM_REQUESTS_OF_FULL_TIER]
    seed = storm_reference.seed
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": NUM_SLOTS_OF_FULL_TIER * runner.block_bytes,
        "host_link": {**LINK, "seed": seed},
        **STORE_ALL,
    }
    script = {
        "storm": storm(requests, window=WINDOW, abort_chances=ABORT_CHANCES, seed=seed),
        "settled": settle(),
        "after storm": {"op": "inspect"},
    }
    # It still takes what fits, and serves it.
    script |= read_back(seed, NUM_SLOTS_OF_FULL_TIER // 2)
    script["end"] = {"op": "inspect"}
    result = runner.run_named(
        script,
        runner.kv_config(failure_policy="recompute", **extra),
        num_gpu_blocks=NUM_GPU_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
    )
    comparison = compare(result["storm"], storm_reference.results["crowd"], requests, FLOAT_NOISE)
    seen = Counter(result["storm"]["seen"])
    tier = result["after storm"]["tier"]
    print(f"full tier: {comparison}; {seen}; {result['storm']['num_preemptions']} preemptions; {result['end']}")
    record_property("comparison", str(comparison))
    assert comparison.num_near_ties <= 0.02 * len(requests)
    assert tier["skipped_exhausted"] > 0
    assert tier["num_evicted_total"] > NUM_SLOTS_OF_FULL_TIER
    assert seen["steps with a full tier"] > seen["steps with room"]
    assert_nothing_is_kept(result["after storm"])
    assert_is_read_back(result)
    assert_nothing_is_kept(result["end"])


def test_requests_alone_bring_exactly_the_same_with_failures_and_tier_pressure(
    runner: EngineRunner, storm_reference: StormReference, record_property: Callable[[str, object], None]
) -> None:
    # A step is one block of one prompt, or one token, with and without tier: no batch has another shape.
    # The tier cannot hold all blocks, and has its default policy.
    requests = storm_reference.alone
    seed = storm_reference.seed
    num_slots = 64
    link = {**LINK, "latency_us": 2_000, "jitter_us": 5_000, "fail_probability": 0.2, "seed": seed}
    extra: dict[str, Any] = {"cpu_bytes_to_use": num_slots * runner.block_bytes, "host_link": link}
    result = runner.run_named(
        {
            "storm": storm(requests, window=1, abort_chances=ABORT_CHANCES, seed=seed),
            "settled": settle(),
            "end": {"op": "inspect"},
        },
        runner.kv_config(failure_policy="recompute", **extra),
        num_gpu_blocks=18,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=BLOCK_TOKENS,
        max_num_seqs=BLOCK_TOKENS,
    )
    comparison = compare(result["storm"], storm_reference.results["alone"], requests, noise=0.0)
    print(f"alone: {comparison}; {result['storm']['seen']}; {result['end']['tier']}")
    record_property("comparison", str(comparison))
    assert comparison.num_near_ties == 0
    tier = result["end"]["tier"]
    assert result["storm"]["counters"]["external_kv_transfer"] > 0
    assert tier["failed_loads"] > 0
    assert tier["num_evicted_total"] > 0
    assert result["storm"]["seen"]["steps with a full tier"] > 0
    # The model runner returns early while nothing but a load is on its way.
    assert result["storm"]["seen"]["steps without forward"] > 0
    assert_nothing_is_kept(result["end"])
