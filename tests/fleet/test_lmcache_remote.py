# SPDX-License-Identifier: Apache-2.0
"""LMCache with kvferry as the L2 of each node and Redis as an L2 of all: what comes from where, and Redis killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from e2e.conftest import make_model
from e2e.engine_runs import EngineRunner, Prompts, generate, num_tokens_from_tier
from e2e.lmcache_server import CHUNK_TOKENS
from lmcache_node import LmcacheNode, Redis
from processes import Processes

PROMPT_TOKENS = 330
NUM_PROMPTS = 6
NUM_CHUNKS = NUM_PROMPTS * (PROMPT_TOKENS // CHUNK_TOKENS)
WHOLE_HITS = NUM_CHUNKS * CHUNK_TOKENS
# LMCache's connector holds blocks until they are stored.
EMPTY_ENGINE = {"op": "reset_prefix_cache", "patience_s": 30}


@pytest.fixture(scope="module")
def engines() -> EngineRunner:
    """Runs scripts with LMCache's connector, which vLLM has in itself."""
    return EngineRunner(make_model("tiny-llama"), "LMCacheMPConnector", "")


@dataclasses.dataclass
class Story:
    """Results of each prompt's turns, and what each node had loaded from which L2 after them."""

    results: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    loads: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    # That Redis was sent, and has sent.
    redis_bytes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return Prompts(seed=9).many(2 * NUM_PROMPTS, PROMPT_TOKENS)


class Servers(Processes):
    """Redis, and a node with room for everything, one with room for a part, and one that comes late."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.redis = Redis(self._next_log("redis"))
        self._all.append(self.redis)
        self.redis.await_answer()

    def start(self, name: str, capacity: str) -> LmcacheNode:
        node = LmcacheNode(self._next_log(name), capacity, self.redis)
        self._all.append(node)
        node.await_answer()
        return node


@pytest.fixture(scope="module")
def story(engines: EngineRunner, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Story:
    servers = Servers(tmp_path_factory.mktemp("lmcache"))
    try:
        return tell(servers, engines, prompts)
    finally:
        servers.end()


def tell(servers: Servers, engines: EngineRunner, prompts: list[list[int]]) -> Story:
    known, unknown = generate(prompts[:NUM_PROMPTS]), generate(prompts[NUM_PROMPTS:])
    story = Story()

    def turn(title: str, node: LmcacheNode, *operations: dict[str, Any]) -> None:
        *_, story.results[title] = node.run(engines, *operations)
        story.loads[title] = node.num_loads()
        story.redis_bytes[title] = servers.redis.moved_bytes()

    small = servers.start("small", "8MiB")
    first, _ = small.run(engines, known, small.empty_l1())
    story.results["new"] = first
    story.redis_bytes["new"] = servers.redis.moved_bytes()
    turn("partly evicted", small, known)
    large = servers.start("large", "256MiB")
    turn("new to this node", large, known)
    turn("again", large, large.empty_l1(), known)
    turn("computed here", large, unknown, EMPTY_ENGINE, large.empty_l1(), unknown)
    servers.redis.kill()
    *_, story.results["without Redis"] = large.run(engines, unknown)
    *_, story.results["all lost"] = large.run(engines, known)
    return story


def test_tokens_are_those_of_an_engine_without_a_connector(
    engines: EngineRunner, story: Story, prompts: list[list[int]]
) -> None:
    [alone] = engines.run([generate(prompts)], None, num_gpu_blocks=200).results
    for title, result in story.results.items():
        known = title not in ("computed here", "without Redis")
        expected = alone["tokens"][:NUM_PROMPTS] if known else alone["tokens"][NUM_PROMPTS:]
        assert result["tokens"] == expected, title


def test_what_the_tier_has_evicted_comes_from_redis_and_only_that(engines: EngineRunner, story: Story) -> None:
    assert num_tokens_from_tier(story.results["partly evicted"]) == WHOLE_HITS
    assert all(count > 0 for count in story.loads["partly evicted"].values())
    sent = story.redis_bytes["partly evicted"][1] - story.redis_bytes["new"][1]
    assert 0 < sent < WHOLE_HITS * engines.kv_bytes_per_token


def test_what_another_node_computed_comes_from_redis_each_time(story: Story) -> None:
    for title in ("new to this node", "again"):
        assert num_tokens_from_tier(story.results[title]) == WHOLE_HITS
        assert story.loads[title]["resp"] > 0 == story.loads[title]["native_plugin"]


def test_what_a_node_computed_comes_from_its_tier(story: Story) -> None:
    assert num_tokens_from_tier(story.results["computed here"]) == WHOLE_HITS
    assert story.loads["computed here"]["native_plugin"] > 0
    assert story.loads["computed here"]["resp"] == story.loads["again"]["resp"]


def test_without_redis_the_tier_serves_and_the_rest_is_computed(story: Story) -> None:
    assert num_tokens_from_tier(story.results["without Redis"]) == WHOLE_HITS
    assert num_tokens_from_tier(story.results["all lost"]) == 0
