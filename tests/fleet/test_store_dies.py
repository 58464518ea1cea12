# SPDX-License-Identifier: Apache-2.0
"""The store's master is killed, and a node of it: no wrong token, no hang, no block that stays."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest
from e2e.crowds import make_long
from e2e.engine_runs import BLOCK_TOKENS, EngineRunner
from e2e.http_clients import Answer, Patience
from e2e.parallel_engines import count
from e2e.served_checks import assert_metrics_of_idle_agree
from e2e.server_process import Metrics
from e2e.storm_checks import compare_with_alone
from nodes import Nodes, moved_bytes, nodes
from processes import from_outside

# Less than half of an engine's pool, and more than a quarter: each prompt of KNOWN pushes the next one out.
LONG_BLOCKS = 33
LONG_TOKENS = LONG_BLOCKS * BLOCK_TOKENS
KNOWN = [0, 1, 2, 3]
# A new prompt for each node while the master is dead, and two more when it is back.
WHILE_DEAD = {"near": 4, "far": 5}
BACK, LAST = 6, 7
# One that takes more than half of the pool.
BIG, BIG_BLOCKS = 8, 59
TIER = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0}
# An operation of Mooncake whose master is dead ends after this long, and several wait for each other.
FREE_S = 300.0
# An engine computes a prompt in a second.
STUCK_S = 30.0


@dataclasses.dataclass
class Lives:
    """What clients saw in each part, how long it took, and what the node counted after it."""

    answers: dict[str, list[Answer]] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    metrics: dict[str, Metrics] = dataclasses.field(default_factory=dict)
    # To the client of a prompt that takes more than half of the pool, and of which the store has lost a part.
    stuck: Answer | None = None

    def rise(self, before: str, after: str, name: str) -> float:
        return count(self.metrics[after], name) - count(self.metrics[before], name)


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(67)
    return make_long(rng, BIG, LONG_BLOCKS) + make_long(rng, 1, BIG_BLOCKS)


@pytest.fixture(scope="module")
def lives(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Lives:
    with nodes(tmp_path_factory.mktemp("nodes"), TIER, near="tier", far="store") as both:
        return live(both, requests)


def live(both: Nodes, requests: list[dict[str, Any]]) -> Lives:
    lives = Lives()

    def part(title: str, node: str, asked: list[int], free_s: float = FREE_S) -> None:
        began = time.monotonic()
        lives.answers[title] = both.ask_in_turn(node, requests, asked)
        lives.seconds[title] = time.monotonic() - began
        both.engines[node].await_metrics(
            "no block is held", lambda seen: seen["vllm:kv_cache_usage_perc"][""] == 0, timeout_s=free_s
        )
        lives.seconds[f"{title}: free"] = time.monotonic() - began
        lives.metrics[title] = both.settle(node, requests, asked[-1])

    part("near: new", "near", KNOWN)
    part("far: new", "far", KNOWN)
    part("far: again", "far", KNOWN)
    both.master.kill()
    part("near: known, no master", "near", KNOWN)
    part("far: known, no master", "far", KNOWN)
    for node, index in WHILE_DEAD.items():
        part(f"{node}: new, no master", node, [index])
    both.start_master()
    part("near: master back", "near", [BACK])
    part("far: master back", "far", [BACK])
    both.engines.pop("near").kill()
    part("far: no other node", "far", [*KNOWN, BACK, LAST])
    print({title: f"{seconds:.1f} s" for title, seconds in lives.seconds.items()})
    both.start("near")
    part("near: big", "near", [BIG])
    both.engines.pop("near").kill()
    [lives.stuck] = both.ask("far", requests, [(BIG, Patience(seconds=STUCK_S))])
    part("far: after the big one", "far", [LAST])
    return lives


def test_tokens_are_those_of_one_engine_without_a_connector(
    runner: EngineRunner, lives: Lives, requests: list[dict[str, Any]]
) -> None:
    answers = [answer for part in lives.answers.values() for answer in part]
    if lives.stuck is not None and lives.stuck.tokens:
        answers.append(lives.stuck)
    assert [answer for answer in answers if answer.error or not answer.finish_reason] == []
    compare_with_alone(runner, answers, requests)


def test_a_node_that_asks_the_store_first_loads_again_from_it_what_its_tier_has(
    runner: EngineRunner, lives: Lives
) -> None:
    loaded = [moved_bytes(lives.metrics[part], "load_get") for part in ("far: new", "far: again")]
    assert loaded == [turns * len(KNOWN) * LONG_BLOCKS * runner.block_bytes for turns in (1, 2)]
    assert count(lives.metrics["far: again"], "hit_tokens") == 0


def test_without_the_master_prompts_come_from_the_tier_whichever_is_asked_first(lives: Lives) -> None:
    for node, before in (("near", "near: new"), ("far", "far: again")):
        assert lives.rise(before, f"{node}: known, no master", "hit_tokens") == len(KNOWN) * LONG_TOKENS


def test_without_the_master_new_prompts_are_computed_and_stored_in_the_tier(lives: Lives) -> None:
    for node in WHILE_DEAD:
        before, after = f"{node}: known, no master", f"{node}: new, no master"
        assert from_outside(lives.metrics[after]) - from_outside(lives.metrics[before]) < BLOCK_TOKENS
        assert lives.rise(before, after, "stored_blocks") >= LONG_BLOCKS


def test_every_block_is_free_at_last(lives: Lives) -> None:
    for part in ("near: master back", "far: no other node", "far: after the big one"):
        assert_metrics_of_idle_agree(lives.metrics[part])


def test_a_large_request_whose_load_failed_is_answered_or_waits(lives: Lives) -> None:
    """vLLM runs it or never does, by which blocks the store has lost (docs/upstream/failed-load-keeps-room.md)."""
    assert lives.stuck is not None
    assert lives.stuck.error is None
    assert bool(lives.stuck.tokens) == bool(lives.stuck.finish_reason)
