# SPDX-License-Identifier: Apache-2.0
"""Prompts and answers on two engines, each with NIXL beside a tier: tokens, and what came over which way."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from e2e.crowds import STAYS, make_crowd, make_long, make_round
from e2e.engine_runs import BLOCK_TOKENS, EngineRunner
from e2e.http_clients import Answer
from e2e.parallel_engines import count
from e2e.served_checks import assert_metrics_of_idle_agree
from e2e.server_process import Metrics, ServerEnd
from e2e.storm_checks import compare_with_alone
from pair import Pair, num_failed_transfers, pair, sent_bytes
from processes import NUM_GPU_BLOCKS, computed, from_outside

# Prompts that each fill more than half of an engine's pool: two push a third out.
LONG_BLOCKS = 59
NUM_LONG = 3
LONG = list(range(NUM_LONG))
LONG_TOKENS = NUM_LONG * LONG_BLOCKS * BLOCK_TOKENS
PROMPT_TOKENS = LONG_TOKENS + NUM_LONG
# Begins as the first long prompt does, and goes on with other tokens.
HALF, HALF_BLOCKS = NUM_LONG, 30
REST_TOKENS = (LONG_BLOCKS - HALF_BLOCKS) * BLOCK_TOKENS + 1
# The same, with the wish that nothing of it comes from a tier.
WISH = HALF + 1
CROWD = range(WISH + 1, WISH + 1 + 12)
NUM_CLIENTS = 60
TIER = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0}


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(41)
    requests = make_long(rng, NUM_LONG, LONG_BLOCKS)
    for others, wishes in zip(make_long(rng, 2, LONG_BLOCKS), ({}, {"max_load_tokens": 0}), strict=True):
        kept = requests[0]["prompt"][: HALF_BLOCKS * BLOCK_TOKENS]
        prompt = kept + others["prompt"][len(kept) :]
        requests.append({**others, "prompt": prompt, **({"kv_transfer_params": wishes} if wishes else {})})
    return requests + make_crowd(rng, len(CROWD), num_families=4, prefix_blocks=6)


@dataclasses.dataclass
class Visit:
    """What clients saw, what (prefill, decode) counted after each part of it, and how all ended."""

    answers: list[Answer]
    crowd: list[Answer]
    metrics: dict[str, tuple[Metrics, Metrics]]
    ends: list[ServerEnd]

    def rise(self, name: str, before: str, after: str) -> list[float]:
        return [count(new, name) - count(old, name) for old, new in self.parts(before, after)]

    def parts(self, before: str, after: str) -> list[tuple[Metrics, Metrics]]:
        return list(zip(self.metrics[before], self.metrics[after], strict=True))


@pytest.fixture(scope="module")
def visit(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    with pair(tmp_path_factory.mktemp("pair"), TIER) as engines:
        return use(engines, requests)


def use(engines: Pair, requests: list[dict[str, Any]]) -> Visit:
    metrics = {"start": engines.metrics()}
    answers = engines.ask_in_turn(requests, LONG)
    metrics["cold"] = engines.settle(requests, LONG[-1])
    answers += engines.ask_in_turn(requests, LONG)
    metrics["again"] = engines.settle(requests, LONG[-1])
    answers += engines.ask_in_turn(requests, [HALF])
    metrics["half"] = engines.settle(requests, HALF)
    # Pushes the half that both have out of the engines' own caches.
    answers += engines.ask_in_turn(requests, LONG[1:])
    metrics["between"] = engines.settle(requests, LONG[-1])
    answers += engines.ask_in_turn(requests, [WISH])
    metrics["wish"] = engines.settle(requests, WISH)
    clients = [(CROWD[client % len(CROWD)], patience) for client, patience in make_round(random.Random(5), NUM_CLIENTS)]
    crowd = engines.ask(requests, clients)
    answers += engines.ask(requests, [(index, STAYS) for index in CROWD])
    metrics["end"] = engines.settle(requests, CROWD[0])
    return Visit(answers, crowd, metrics, [engines.decode.stop(), engines.prefill.stop()])


def test_tokens_are_those_of_one_engine_without_a_connector(
    runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error or not answer.finish_reason] == []
    comparison = compare_with_alone(runner, visit.answers + visit.crowd, requests)
    assert comparison.num_aborted > 0, "no client went away: nothing was shown"


# To settle, an engine may be asked again: of what it has in its own cache, one token comes over once more.
def test_a_new_prompt_is_computed_by_one_engine_and_sent_to_the_other(visit: Visit) -> None:
    (prefill_before, decode_before), (prefill, decode) = visit.metrics["start"], visit.metrics["cold"]
    assert computed(prefill) - computed(prefill_before) == PROMPT_TOKENS
    assert PROMPT_TOKENS <= from_outside(decode) - from_outside(decode_before) < PROMPT_TOKENS + BLOCK_TOKENS
    assert sent_bytes(decode) > 0
    assert (count(prefill, "hit_tokens"), count(decode, "hit_tokens")) == (0, 0)


def test_what_was_sent_is_in_the_tiers_of_both(visit: Visit) -> None:
    for metrics in visit.metrics["cold"]:
        assert count(metrics, "stored_blocks") >= NUM_LONG * LONG_BLOCKS > NUM_GPU_BLOCKS


def test_a_prompt_that_comes_again_comes_from_the_tiers_and_is_not_sent_again(visit: Visit) -> None:
    assert visit.rise("hit_tokens", "cold", "again") == [LONG_TOKENS, LONG_TOKENS]
    (_, (decode_before, decode)) = visit.parts("cold", "again")
    assert sent_bytes(decode) == sent_bytes(decode_before)


def test_what_the_decode_engines_tier_lacks_of_a_prompt_is_computed_there(visit: Visit) -> None:
    assert visit.rise("hit_tokens", "again", "half") == [HALF_BLOCKS * BLOCK_TOKENS] * 2
    (_, (decode_before, decode)) = visit.parts("again", "half")
    assert computed(decode) - computed(decode_before) == REST_TOKENS
    assert sent_bytes(decode) == sent_bytes(decode_before)


def test_a_prompt_that_wants_nothing_of_the_tier_is_sent_whole(visit: Visit) -> None:
    (_, (decode_before, decode)) = visit.parts("between", "wish")
    assert visit.rise("hit_tokens", "between", "wish") == [0, 0]
    assert computed(decode) == computed(decode_before)
    assert LONG_BLOCKS * BLOCK_TOKENS < from_outside(decode) - from_outside(decode_before) < PROMPT_TOKENS
    assert sent_bytes(decode) > sent_bytes(decode_before)


def test_clients_that_went_away_leave_both_engines_idle(visit: Visit) -> None:
    for metrics in visit.metrics["end"]:
        assert_metrics_of_idle_agree(metrics)
        assert num_failed_transfers(metrics) == 0


def test_both_end_when_they_are_told_to(visit: Visit) -> None:
    for end in visit.ends:
        end.assert_well()
