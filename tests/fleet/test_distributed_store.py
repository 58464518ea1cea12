# SPDX-License-Identifier: Apache-2.0
"""Two nodes, each with Mooncake's store beside a tier: tokens, what comes from where, and the bytes over each link."""

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
from nodes import Nodes, link_bytes, nodes, num_failed_keys
from processes import computed, from_outside

LONG_BLOCKS = 59
LONG_TOKENS = LONG_BLOCKS * BLOCK_TOKENS
NUM_LONG = 6
LONG = list(range(NUM_LONG))
# The last three fit into a node's tier, and do not fit into an engine's pool.
NEAR, FAR = LONG[3:], LONG[:2]
# Begins as a prompt of FAR does, and goes on with other tokens.
HALF, HALF_BLOCKS = NUM_LONG, 30
# A prompt of FAR, with the wish that nothing of it comes from a tier.
WISH = HALF + 1
CROWD = range(WISH + 1, WISH + 1 + 12)
NUM_CLIENTS = 40
# 213 blocks, of which every one is stored and the oldest ones leave.
TIER = {"cpu_bytes_to_use": "40MiB", "min_load_tokens": 0, "eviction": "lru", "admission": "always"}
FIRST, OTHER = "first", "other"


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(61)
    requests = make_long(rng, NUM_LONG, LONG_BLOCKS)
    [others] = make_long(rng, 1, LONG_BLOCKS)
    kept = requests[FAR[0]]["prompt"][: HALF_BLOCKS * BLOCK_TOKENS]
    requests.append({**others, "prompt": kept + others["prompt"][len(kept) :]})
    requests.append({**requests[FAR[0]], "kv_transfer_params": {"max_load_tokens": 0}})
    return requests + make_crowd(rng, len(CROWD), num_families=4, prefix_blocks=6)


@dataclasses.dataclass
class Visit:
    """What clients saw, what a node counted before and after each part of it, and how all ended."""

    answers: list[Answer] = dataclasses.field(default_factory=list)
    crowd: list[Answer] = dataclasses.field(default_factory=list)
    parts: dict[str, tuple[Metrics, Metrics]] = dataclasses.field(default_factory=dict)
    ends: list[ServerEnd] = dataclasses.field(default_factory=list)

    def rise(self, part: str, name: str) -> float:
        """Of one of kvferry's counters."""
        before, after = self.parts[part]
        return count(after, name) - count(before, name)

    def bytes(self, part: str) -> dict[str, float]:
        """Over each link."""
        before, after = (link_bytes(metrics) for metrics in self.parts[part])
        return {link: after[link] - before[link] for link in after}


@pytest.fixture(scope="module")
def visit(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    with nodes(tmp_path_factory.mktemp("nodes"), TIER, **{FIRST: "tier", OTHER: "tier"}) as both:
        return use(both, requests)


def use(both: Nodes, requests: list[dict[str, Any]]) -> Visit:
    visit = Visit()
    latest = {name: engine.metrics() for name, engine in both.engines.items()}

    def part(title: str, node: str, asked: list[int]) -> None:
        visit.answers.extend(both.ask_in_turn(node, requests, asked))
        before, latest[node] = latest[node], both.settle(node, requests, asked[-1])
        visit.parts[title] = before, latest[node]

    part("new", FIRST, LONG)
    part("new to this node", OTHER, LONG)
    part("near", OTHER, NEAR)
    part("evicted", FIRST, FAR)
    part("half", OTHER, [HALF])
    part("between", OTHER, NEAR[1:])
    part("rest", OTHER, FAR[:1])
    part("between again", OTHER, NEAR[1:])
    part("wish", OTHER, [WISH])
    for node in (FIRST, OTHER):
        clients = [(CROWD[client % len(CROWD)], stays) for client, stays in make_round(random.Random(5), NUM_CLIENTS)]
        visit.crowd += both.ask(node, requests, clients)
        visit.answers += both.ask(node, requests, [(index, STAYS) for index in CROWD])
        visit.parts[f"{node} at the end"] = latest[node], both.settle(node, requests, CROWD[0])
    visit.ends = [engine.stop() for engine in both.engines.values()]
    return visit


def test_tokens_are_those_of_one_engine_without_a_connector(
    runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error or not answer.finish_reason] == []
    comparison = compare_with_alone(runner, visit.answers + visit.crowd, requests)
    assert comparison.num_aborted > 0, "no client went away: nothing was shown"


def test_what_one_node_computed_the_other_finds_in_the_store(visit: Visit) -> None:
    before, after = visit.parts["new to this node"]
    # The last token of each prompt, and when the node is asked to settle.
    assert computed(after) - computed(before) < NUM_LONG * BLOCK_TOKENS
    assert from_outside(after) - from_outside(before) == NUM_LONG * LONG_TOKENS
    assert visit.rise("new to this node", "hit_tokens") == 0
    assert count(visit.parts["new"][1], "evicted_blocks") > len(FAR) * LONG_BLOCKS


def test_what_came_from_the_store_goes_to_the_tier_and_is_served_from_it(runner: EngineRunner, visit: Visit) -> None:
    size = runner.block_bytes
    assert visit.rise("new to this node", "stored_blocks") >= NUM_LONG * LONG_BLOCKS
    assert visit.rise("near", "hit_tokens") == len(NEAR) * LONG_TOKENS
    assert visit.bytes("near") == {
        "to the tier": 0, "from the tier": len(NEAR) * LONG_BLOCKS * size, "to the store": 0, "from the store": 0,
    }  # fmt: skip


def test_what_a_nodes_tier_has_evicted_comes_from_the_store(runner: EngineRunner, visit: Visit) -> None:
    assert visit.rise("evicted", "hit_tokens") == 0
    assert visit.bytes("evicted")["from the store"] == len(FAR) * LONG_BLOCKS * runner.block_bytes


def test_each_block_is_stored_once_in_each_and_loaded_once(runner: EngineRunner, visit: Visit) -> None:
    for part in visit.parts:
        print(f"{part}: " + ", ".join(f"{size / 1e6:.1f} MB {link}" for link, size in visit.bytes(part).items()))
    size = NUM_LONG * LONG_BLOCKS * runner.block_bytes
    assert visit.bytes("new") == {"to the tier": size, "from the tier": 0, "to the store": size, "from the store": 0}
    assert visit.bytes("new to this node") == {
        "to the tier": size, "from the tier": 0, "to the store": 0, "from the store": size,
    }  # fmt: skip


def test_if_the_tier_has_the_beginning_of_a_prompt_the_rest_is_computed(visit: Visit) -> None:
    before, after = visit.parts["rest"]
    assert visit.rise("rest", "hit_tokens") == HALF_BLOCKS * BLOCK_TOKENS
    assert visit.bytes("rest")["from the store"] == 0
    assert computed(after) - computed(before) >= (LONG_BLOCKS - HALF_BLOCKS) * BLOCK_TOKENS


def test_a_prompt_that_wants_nothing_of_the_tier_comes_from_the_store(runner: EngineRunner, visit: Visit) -> None:
    assert visit.rise("wish", "hit_tokens") == 0
    assert visit.bytes("wish")["from the store"] == LONG_BLOCKS * runner.block_bytes


def test_clients_that_went_away_leave_both_engines_idle(visit: Visit) -> None:
    for node in (FIRST, OTHER):
        _, metrics = visit.parts[f"{node} at the end"]
        assert_metrics_of_idle_agree(metrics)
        assert num_failed_keys(metrics, "save_put") == num_failed_keys(metrics, "load_get") == 0


def test_both_end_when_they_are_told_to(visit: Visit) -> None:
    for end in visit.ends:
        end.assert_well()
