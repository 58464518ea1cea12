# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel ranks, each with copies that fail on it alone: one tier, one truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import StormReference
from .engine_runs import EngineRunner, settle
from .idle_checks import assert_nothing_is_kept
from .storm_checks import ABORT_CHANCES, FLOAT_NOISE, MAX_MODEL_LEN, compare, storm

NUM_REQUESTS = 120
NUM_SLOTS = 64
LINK = {
    "bandwidth_gb_s": 0.5,
    "latency_us": 20_000,
    "jitter_us": 60_000,
    "order": "shuffled",
    "fail_probability": 0.1,
}


@pytest.fixture(scope="module")
def result(runner: EngineRunner, storm_reference: StormReference) -> dict[str, dict[str, Any]]:
    """A storm on an engine whose scheduler is in this process and whose ranks are in their own."""
    script = {
        "storm": storm(
            storm_reference.crowd[:NUM_REQUESTS],
            window=20,
            abort_chances=ABORT_CHANCES,
            seed=storm_reference.seed,
        ),
        "settled": settle(),
        "end": {"op": "inspect"},
    }
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": NUM_SLOTS * runner.block_bytes,
        "host_link": {**LINK, "seed": 100 + storm_reference.seed},
    }
    return runner.run_named(
        script,
        runner.kv_config(failure_policy="recompute", **extra),
        num_gpu_blocks=36,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        num_ranks=2,
    )


def test_tokens_are_those_of_one_rank_without_tier(
    result: dict[str, dict[str, Any]],
    storm_reference: StormReference,
    record_property: Callable[[str, object], None],
) -> None:
    requests = storm_reference.crowd[:NUM_REQUESTS]
    comparison = compare(result["storm"], storm_reference.results["crowd"], requests, FLOAT_NOISE)
    print(f"two ranks: {comparison}; {result['storm']['seen']}; {result['storm']['num_preemptions']} preemptions")
    print(f"two ranks: {result['storm']['counters']}; {result['end']}")
    record_property("comparison", str(comparison))
    assert comparison.num_near_ties <= 0.02 * NUM_REQUESTS


def test_hits_failures_and_aborted_loads_have_happened(result: dict[str, dict[str, Any]]) -> None:
    seen = Counter(result["storm"]["seen"])
    tier = result["end"]["tier"]
    assert result["storm"]["counters"]["external_kv_transfer"] > 0
    assert tier["num_evicted_total"] > 0
    assert tier["failed_loads"] > 0
    assert seen["aborted loading"] > 0
    assert seen["aborted loaded"] > 0


def test_a_block_is_stored_and_loaded_only_if_it_is_on_both_ranks(result: dict[str, dict[str, Any]]) -> None:
    tier = result["end"]["tier"]
    workers = result["end"]["workers"]
    assert len(workers) == tier["ready_ranks"] == 2
    assert all(worker["stored_blocks"] >= tier["stored"] for worker in workers)
    assert all(worker["loaded_blocks"] >= tier["loaded"] for worker in workers)
    # Some came through on one rank only.
    assert any(worker["stored_blocks"] > tier["stored"] for worker in workers)


def test_the_engine_ends_idle_and_nothing_is_kept(result: dict[str, dict[str, Any]]) -> None:
    assert_nothing_is_kept(result["end"])
