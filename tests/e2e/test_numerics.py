# SPDX-License-Identifier: Apache-2.0
"""Every start of an engine computes the same bits, without the connector and with it.

Some starts on a busy machine once computed other log probabilities and the right tokens. This program looks for such a
start: ``KVFERRY_E2E_STARTS=200 pytest tests/e2e/test_numerics.py``. It names what differs in the process that is odd.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from .engine_runs import EngineRunner, Prompts
from .numeric_facts import difference
from .storm_checks import FLOAT_NOISE

# Of engines without the connector, and as many with it.
NUM_STARTS = int(os.environ.get("KVFERRY_E2E_STARTS", "2"))
TIER_BYTES = 128 << 20
PROMPTS = Prompts(seed=21).many(2, 300)


def start_and_compute(runner: EngineRunner, *, has_tier: bool, **options: Any) -> dict[str, Any]:
    """The result of `numerics` on a fresh engine."""
    script = {"numerics": {"op": "numerics", "prompts": PROMPTS, "max_tokens": 8, **options}}
    kv_config = runner.kv_config(cpu_bytes_to_use=TIER_BYTES) if has_tier else None
    return runner.run_named(script, kv_config, num_gpu_blocks=44, max_num_seqs=8)["numerics"]


@pytest.fixture(scope="module")
def first_start(runner: EngineRunner) -> dict[str, Any]:
    """What an engine without the connector computes."""
    return start_and_compute(runner, has_tier=False)


# A start takes some seconds.
@pytest.mark.timeout(600 + 60 * NUM_STARTS)
@pytest.mark.parametrize("has_tier", [False, True], ids=["without", "with"])
def test_every_start_of_an_engine_computes_the_same_bits(
    runner: EngineRunner, first_start: dict[str, Any], has_tier: bool
) -> None:
    odd = {}
    for number in range(NUM_STARTS):
        says = difference(first_start, start_and_compute(runner, has_tier=has_tier))
        if says:
            odd[number] = says
    assert not odd, f"of {NUM_STARTS} starts these are odd: {odd}"
    assert first_start["facts"]["rounding"] == ["nearest"]


def test_a_thread_that_rounds_otherwise_is_found_out(runner: EngineRunner, first_start: dict[str, Any]) -> None:
    result = start_and_compute(runner, has_tier=False, rounds_upward=True)
    assert result["tokens"] == first_start["tokens"]
    assert "upward" in result["facts"]["rounding"]
    says = difference(first_start, result)
    assert "log probabilities are off" in says
    assert "rounding: ['nearest'] and " in says
    # What was seen, and not what the order of a sum does.
    apart = [abs(a - b) for a, b in zip(first_start["logprobs"], result["logprobs"], strict=True)]
    assert FLOAT_NOISE < max(apart) < 1e-1
