# SPDX-License-Identifier: Apache-2.0
"""The log follows the tier's memory until it is ready, and then says once what it holds."""

from typing import Any

import pytest
from kvferry import _core
from kvferry.vllm import block_costs
from kvferry.vllm.growth_report import GrowthReport
from scenarios import MODELS, PROMPTS, Make
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

GIB = 1 << 30
READY = f"kvferry {_core.__version__} ready: "


def report(engine_tokens: int = 128_000) -> GrowthReport:
    return GrowthReport(32_768, 64 * GIB, 524_288, engine_tokens)


def test_each_further_tenth_is_a_line_and_the_last_one_says_ready() -> None:
    growing = report()
    assert [*growing.lines(0, 32_768)] == []
    assert [*growing.lines(100, 32_768)] == []
    assert [*growing.lines(10_000, 32_768)] == ["kvferry: 30 % of the tier is ready, 10000 blocks"]
    assert [*growing.lines(10_001, 32_768)] == []
    assert [*growing.lines(32_768, 32_768)] == [f"{READY}64.00 GiB = 524,288 tokens, 4.1 times the GPU's cache"]
    assert [*growing.lines(32_768, 32_768)] == []


def test_a_smaller_tier_than_planned_says_so_and_its_own_figures() -> None:
    growing = report()
    lines = [*growing.lines(16_384, 16_384)]
    assert lines == [
        "kvferry: the tier will hold 16384 blocks: some rank has no memory for more",
        f"{READY}32.00 GiB = 262,144 tokens, 2.0 times the GPU's cache",
    ]


def test_what_is_not_known_is_left_out() -> None:
    assert [*report(engine_tokens=0).lines(32_768, 32_768)] == [f"{READY}64.00 GiB = 524,288 tokens"]


def test_vllm_that_does_not_count_is_no_error(
    make: Make, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(block_costs, "get_kv_cache_capacity", fail)
    engine = make()
    engine.generate(PROMPTS)
    engine.settle_stores()
    [ready] = [line for line in log_lines if READY in line]
    assert ready.endswith(" tokens")


@pytest.mark.parametrize("spec", MODELS)
def test_an_engine_is_ready_once_and_with_vllms_own_count(
    make: Make, spec: dict[str, Any], log_lines: list[str]
) -> None:
    engine = make({"cpu_bytes_to_use": "1MiB"}, **spec)
    engine.generate(PROMPTS)
    engine.settle_stores()
    [ready] = [line for line in log_lines if READY in line]
    assert not any("100 % of the tier" in line for line in log_lines)
    scheduler = engine.scheduler
    own, _ = get_kv_cache_capacity(scheduler.vllm_config, scheduler.kv_cache_config)
    [said] = [line for line in log_lines if "the tier holds" in line and "of such prompts" in line]
    tokens = int(said.partition("the tier holds ")[2].partition(" ")[0].replace(",", ""))
    assert ready.endswith(f" = {tokens:,} tokens, {tokens / own:.1f} times the GPU's cache")
    assert ready.startswith(f"INFO {READY}")
