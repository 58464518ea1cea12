# SPDX-License-Identifier: Apache-2.0
"""A value that is not allowed stops the start with one line that says what is; nothing half-started stays."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import EngineRunner, Prompts, generate

GENERATE = generate([Prompts(seed=6).make(300)], 4)

# extra config -> what the message must say: the value, what is allowed, the remedy
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown_key": (
        {"cpu_byte_to_use": "1GiB"},
        ["cpu_byte_to_use", "cpu_bytes_to_use"],
    ),
    "unknown_link_key": (
        {"host_link": {"bandwith_gb_s": 1}},
        ["bandwith_gb_s", "bandwidth_gb_s"],
    ),
    "size_that_does_not_parse": (
        {"cpu_bytes_to_use": "one gigabyte"},
        ["cpu_bytes_to_use", "one gigabyte", "8GiB"],
    ),
    "budget_above_the_machine": (
        {"cpu_bytes_to_use": "100TiB"},
        ["cpu_bytes_to_use", "100.00 TiB", "leaves", "ask for less"],
    ),
    "tier_smaller_than_a_block": (
        {"cpu_bytes_to_use": 1000},
        ["cpu_bytes_to_use", "1000"],
    ),
    "missing_back_end": (
        {"backend": "cuda"},
        ["backend", "cuda", "host"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_engine_says_why_it_does_not_start(runner: EngineRunner, case: str) -> None:
    extra, said = CASES[case]
    report = runner.run([GENERATE], runner.kv_config(**extra), num_gpu_blocks=64, must_start=False)
    assert report.returncode != 0
    assert report.results == []
    assert report.error is not None, report.log
    assert report.error["type"] in ("ConfigError", "ResourceError"), report.error
    message = report.error["message"]
    for words in said:
        assert words in message
    assert len(message.splitlines()) == 1


def test_an_engine_in_processes_of_its_own_says_why_too(runner: EngineRunner) -> None:
    extra, said = CASES["unknown_key"]
    report = runner.run(
        [GENERATE],
        runner.kv_config(**extra),
        num_gpu_blocks=64,
        multiprocessing=True,
        must_start=False,
    )
    assert report.returncode != 0
    assert report.results == []
    lines = [line for line in report.log.splitlines() if "ConfigError" in line]
    assert any(all(words in line for words in said) for line in lines), report.log


def test_a_tier_smaller_than_the_longest_request_warns_and_works(runner: EngineRunner) -> None:
    num_slots = 8
    report = runner.run(
        [GENERATE, GENERATE],
        runner.kv_config(cpu_bytes_to_use=num_slots * runner.block_bytes),
        num_gpu_blocks=64,
    )
    warnings = [line for line in report.log.splitlines() if "WARNING" in line]
    assert any("max_model_len" in line and "cpu_bytes_to_use" in line for line in warnings), report.log
    assert report.results[0]["tokens"] == report.results[1]["tokens"]
