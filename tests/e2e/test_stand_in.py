# SPDX-License-Identifier: Apache-2.0
"""The real engine over the cuda back end on the stand-in driver: right tokens, nothing kept."""

from .conftest import StormReference
from .engine_runs import EngineRunner
from .idle_checks import assert_nothing_is_kept
from .reading import assert_is_read_back, read_back
from .storm_checks import ABORT_CHANCES, FLOAT_NOISE, MAX_MODEL_LEN, compare, storm

NUM_REQUESTS = 60
NUM_SLOTS = 96


def test_tokens_are_those_of_an_engine_without_tier(runner: EngineRunner, storm_reference: StormReference) -> None:
    requests = storm_reference.crowd[:NUM_REQUESTS]
    script = {
        "storm": storm(requests, window=16, abort_chances=ABORT_CHANCES, seed=storm_reference.seed),
        **read_back(storm_reference.seed, 6),
        "end": {"op": "inspect"},
    }
    result = runner.run_named(
        script,
        runner.kv_config(cpu_bytes_to_use=NUM_SLOTS * runner.block_bytes),
        num_gpu_blocks=30,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        environment={"KVFERRY_E2E_STAND_IN": "1"},
    )
    comparison = compare(result["storm"], storm_reference.results["crowd"], requests, FLOAT_NOISE)
    print(f"{comparison}; {result['end']}")
    assert comparison.num_near_ties <= 0.02 * NUM_REQUESTS
    assert_is_read_back(result)
    assert_nothing_is_kept(result["end"])
    (worker,) = result["end"]["workers"]
    assert worker["failed_transfers"] == 0
    assert worker["loaded_blocks"] > 0
