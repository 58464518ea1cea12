# SPDX-License-Identifier: Apache-2.0
"""NIXL before kvferry: what can be sent is sent. The tier serves while the prefill engine is dead."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from e2e.crowds import make_long
from e2e.engine_runs import BLOCK_TOKENS, EngineRunner
from e2e.http_clients import Answer
from e2e.parallel_engines import count
from e2e.served_checks import assert_metrics_of_idle_agree, settle
from e2e.server_process import Metrics
from e2e.storm_checks import compare_with_alone
from pair import Pair, num_failed_transfers, pair, sent_bytes

LONG_BLOCKS = 59
NUM_LONG = 3
LONG = list(range(NUM_LONG))
LONG_TOKENS = NUM_LONG * LONG_BLOCKS * BLOCK_TOKENS


@dataclasses.dataclass
class Visit:
    """What clients saw, and what the decode engine counted after each part of it."""

    answers: list[Answer]
    decode: dict[str, Metrics]
    prefill: Metrics


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_long(random.Random(43), NUM_LONG, LONG_BLOCKS)


@pytest.fixture(scope="module")
def visit(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    tier = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0}
    with pair(tmp_path_factory.mktemp("pair"), tier, first="network") as engines:
        return use(engines, requests)


def use(engines: Pair, requests: list[dict[str, Any]]) -> Visit:
    decode = {}
    answers = engines.ask_in_turn(requests, LONG)
    decode["cold"] = engines.settle(requests, LONG[-1])[1]
    answers += engines.ask_in_turn(requests, LONG)
    decode["again"] = engines.settle(requests, LONG[-1])[1]
    engines.kill("prefill")
    answers += engines.ask_in_turn(requests, LONG)
    decode["alone"] = settle(engines.decode, lambda: answers.extend(engines.ask_in_turn(requests, LONG[-1:])))
    engines.start("prefill")
    answers += engines.ask_in_turn(requests, LONG)
    prefill, decode["restarted"] = engines.settle(requests, LONG[-1])
    return Visit(answers, decode, prefill)


def test_tokens_are_those_of_one_engine_without_a_connector(
    runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error or not answer.finish_reason] == []
    compare_with_alone(runner, visit.answers, requests)


def test_a_prompt_that_comes_again_is_sent_again(visit: Visit) -> None:
    assert sent_bytes(visit.decode["again"]) >= 2 * sent_bytes(visit.decode["cold"]) > 0
    assert count(visit.decode["again"], "hit_tokens") == 0


def test_while_the_prefill_engine_is_dead_prompts_come_from_the_decode_engines_tier(visit: Visit) -> None:
    assert count(visit.decode["alone"], "hit_tokens") == LONG_TOKENS
    assert sent_bytes(visit.decode["alone"]) == sent_bytes(visit.decode["again"])


def test_when_it_is_back_prompts_are_sent_again(visit: Visit) -> None:
    # NIXL gives its first word to the new engine five seconds; what it does not send then is computed.
    num_failed = num_failed_transfers(visit.decode["restarted"]) - num_failed_transfers(visit.decode["alone"])
    assert num_failed < NUM_LONG
    sent = sent_bytes(visit.decode["restarted"]) - sent_bytes(visit.decode["alone"])
    assert sent >= sent_bytes(visit.decode["cold"]) * (NUM_LONG - num_failed) / NUM_LONG
    assert count(visit.decode["restarted"], "hit_tokens") == LONG_TOKENS


def test_both_engines_are_idle_at_the_end(visit: Visit) -> None:
    for metrics in (visit.prefill, visit.decode["restarted"]):
        assert_metrics_of_idle_agree(metrics)
