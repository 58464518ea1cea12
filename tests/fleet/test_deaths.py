# SPDX-License-Identifier: Apache-2.0
"""A prefill engine and a decode engine that are killed in the middle: no wrong token, no hang, no block that stays."""

from __future__ import annotations

import dataclasses
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e.crowds import STAYS, make_crowd, make_long
from e2e.engine_runs import BLOCK_TOKENS, EngineRunner
from e2e.http_clients import TIMEOUT_S, Answer, ask
from e2e.parallel_engines import count
from e2e.served_checks import assert_metrics_of_idle_agree
from e2e.server_process import Metrics
from e2e.storm_checks import compare_with_alone
from pair import Pair, num_failed_transfers, num_loading, pair

NUM_CROWD = 12
CROWD = list(range(NUM_CROWD))
LONG_BLOCKS = 59
# A prompt for each death that must not be in a tier already.
PREFILL_DIES, DECODE_DIES, LAST = NUM_CROWD, NUM_CROWD + 1, NUM_CROWD + 2
NUM_LONG = 3
TIER = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0}
# vLLM's default, and longer than any transfer of engines that have a core each. What is read after the end of its lease
# may be another prompt's, and vLLM's decode engine is not told (docs/DEPLOYMENT.md).
LEASE_S = 30


@dataclasses.dataclass
class Lives:
    """What clients saw in each part, and what the engines counted after it."""

    answers: dict[str, list[Answer]] = dataclasses.field(default_factory=dict)
    metrics: dict[str, Metrics] = dataclasses.field(default_factory=dict)


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(47)
    # Answers of some length: an engine is killed while clients read them.
    crowd = make_crowd(rng, NUM_CROWD, num_families=4, prefix_blocks=6, max_tokens=120)
    return crowd + make_long(rng, NUM_LONG, LONG_BLOCKS)


@pytest.fixture(scope="module")
def lives(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Lives:
    with pair(tmp_path_factory.mktemp("pair"), TIER, lease_s=LEASE_S) as engines:
        return live(engines, requests)


def live(engines: Pair, requests: list[dict[str, Any]]) -> Lives:
    lives = Lives()
    answers, metrics = lives.answers, lives.metrics

    def kill_the_sender() -> None:
        """Kill the prefill engine while the other one reads a KV cache from it."""
        where = engines.prefill_alone(requests[PREFILL_DIES])
        engines.prefill.freeze()
        told = {**requests[PREFILL_DIES], "kv_transfer_params": where}
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, engines.decode.url, [told], [(0, STAYS)])
            engines.decode.await_metrics("a request waits for a KV cache", lambda seen: num_loading(seen) == 1)
            assert not asked.done()
            engines.kill("prefill")
            [answer] = asked.result()
        answers["sender killed"] = [dataclasses.replace(answer, request=PREFILL_DIES)]

    def kill_in_the_crowd(role: str) -> list[Answer]:
        """Kill an engine while clients read answers of the decode engine; returns what they saw."""
        served = threading.Semaphore(0)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(engines.ask, requests, [(index, STAYS) for index in CROWD], served.release)
            for num_served in range(NUM_CROWD // 2):
                assert served.acquire(timeout=TIMEOUT_S), f"only {num_served} clients have a token"
            assert not asked.done()
            engines.kill(role)
            return asked.result()

    # The engines know each other, so that later only a transfer is in the middle, and no greeting.
    answers["first"] = engines.ask_in_turn(requests, CROWD[:1])
    kill_the_sender()
    metrics["sender killed"] = engines.decode.metrics()
    answers["without sender"] = engines.ask_in_turn(requests, [PREFILL_DIES, LAST])

    engines.start("prefill")
    answers["prefill killed"] = kill_in_the_crowd("prefill")

    engines.start("prefill")
    # No decode engine ever reads this one.
    engines.prefill_alone(requests[DECODE_DIES])
    answers["decode killed"] = kill_in_the_crowd("decode")
    metrics["decode killed"] = engines.prefill.await_metrics(
        "the prefill engine gives up what is never read",
        lambda seen: seen["vllm:kv_cache_usage_perc"][""] == 0,
        timeout_s=3 * LEASE_S,
    )
    engines.start("decode")
    answers["decode restarted"] = engines.ask(requests, [(index, STAYS) for index in CROWD])
    answers["decode restarted"] += engines.ask_in_turn(requests, [DECODE_DIES])

    engines.kill("prefill", "decode")
    engines.start("prefill", "decode")
    # NIXL gives a new engine five seconds for its first word, which two busy cores may not have.
    answers["both restarted"] = engines.ask_in_turn(requests, CROWD[:1])
    metrics["both know each other"] = engines.decode.metrics()
    answers["both restarted"] += engines.ask(requests, [(index, STAYS) for index in CROWD])
    for part in ("both restarted", "again"):
        answers.setdefault(part, []).extend(engines.ask_in_turn(requests, [PREFILL_DIES, DECODE_DIES, LAST]))
    metrics["prefill at the end"], metrics["decode at the end"] = engines.settle(requests, CROWD[0])
    return lives


def test_tokens_are_those_of_one_engine_without_a_connector(
    runner: EngineRunner, lives: Lives, requests: list[dict[str, Any]]
) -> None:
    compare_with_alone(runner, [answer for part in lives.answers.values() for answer in part], requests)


def test_no_client_sees_that_the_prefill_engine_died(lives: Lives) -> None:
    for part in ("first", "sender killed", "without sender", "prefill killed"):
        assert [answer for answer in lives.answers[part] if answer.error or not answer.finish_reason] == [], part


def test_a_kv_cache_whose_sender_dies_is_a_failed_load_and_is_computed(lives: Lives) -> None:
    assert num_failed_transfers(lives.metrics["sender killed"]) > 0
    assert count(lives.metrics["sender killed"], "failed_loads") == 0, "it was not the tier that failed"


def test_clients_of_a_decode_engine_that_dies_are_told_and_served_when_it_is_back(lives: Lives) -> None:
    assert any(answer.error for answer in lives.answers["decode killed"]), "it had no client: nothing was shown"
    for part in ("decode restarted", "both restarted", "again"):
        assert [answer for answer in lives.answers[part] if answer.error or not answer.finish_reason] == [], part


def test_what_was_computed_and_never_read_is_freed_after_its_lease(lives: Lives) -> None:
    metrics = lives.metrics["decode killed"]
    assert metrics["vllm:nixl_num_kv_expired_reqs_total"][""] > 0
    assert metrics["vllm:num_requests_running"][""] == metrics["vllm:num_requests_waiting"][""] == 0


def test_both_restarted_send_store_and_load_as_before(lives: Lives) -> None:
    assert count(lives.metrics["decode at the end"], "hit_tokens") >= LONG_BLOCKS * BLOCK_TOKENS
    for role in ("prefill", "decode"):
        assert_metrics_of_idle_agree(lives.metrics[f"{role} at the end"])
    num_failed = num_failed_transfers(lives.metrics["decode at the end"])
    assert num_failed == num_failed_transfers(lives.metrics["both know each other"])
    assert num_failed_transfers(lives.metrics["prefill at the end"]) == 0
