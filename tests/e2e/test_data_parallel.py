# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with two engines of data parallel: each has a tier of its own, and figures of its own."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS
from .http_clients import Answer, Patience, ask
from .vllm_server import Metrics, ServerEnd, VllmServer

NUM_ENGINES = 2
# Prompts of which two fill the server's pool of 100 blocks.
NUM_PROMPTS = 4
PROMPT_BLOCKS = 45
TIER = {"cpu_bytes_to_use": "128MiB", "min_load_tokens": 0}


def make_requests() -> list[dict[str, Any]]:
    rng = random.Random(5)
    num_tokens = PROMPT_BLOCKS * BLOCK_TOKENS + 1
    return [{"prompt": [rng.randrange(256) for _ in range(num_tokens)], "max_tokens": 4} for _ in range(NUM_PROMPTS)]


@dataclasses.dataclass
class Rounds:
    """Every prompt to the first engine, twice, and then to the second one, twice; figures behind each round."""

    answers: list[list[Answer]]
    metrics: list[list[Metrics]]
    end: ServerEnd


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    server = VllmServer(
        tmp_path_factory.mktemp("server"), TIER, "--data-parallel-size", str(NUM_ENGINES),
        # Of several of them each sees the engines end at a moment of its own.
        "--api-server-count", "1", "--shutdown-timeout", "30", num_ranks=NUM_ENGINES,
    )  # fmt: skip
    requests = make_requests()
    answers, metrics = [], []
    try:
        for engine in range(NUM_ENGINES):
            for _ in range(2):
                answers.append(
                    [ask(server.url, requests, [(index, Patience())], engine)[0] for index in range(NUM_PROMPTS)]
                )
                server.await_metrics("the engine has no load left", has_no_load, engine=engine)
                metrics.append([server.metrics(each) for each in range(NUM_ENGINES)])
        return Rounds(answers, metrics, server.stop())
    finally:
        server.kill()


def has_no_load(metrics: Metrics) -> bool:
    return metrics["vllm:kvferry_loads_in_flight"][""] == 0


def count(metrics: Metrics, name: str) -> float:
    return metrics[f"vllm:kvferry_{name}_total"][""]


def test_every_engine_gives_the_same_tokens_computed_or_loaded(rounds: Rounds) -> None:
    computed = rounds.answers[0]
    assert [answer for answers in rounds.answers for answer in answers if answer.error] == []
    assert all(len(answer.tokens) == 4 for answer in computed)
    for answers in rounds.answers[1:]:
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in computed]


def test_an_engine_has_from_the_tier_what_it_stored_itself(rounds: Rounds) -> None:
    hits = [[count(metrics, "hit_tokens") for metrics in of_engines] for of_engines in rounds.metrics]
    all_tokens = NUM_PROMPTS * PROMPT_BLOCKS * BLOCK_TOKENS
    # When a round comes to a prompt, those between have pushed it out of the pool.
    assert hits[0] == [0, 0]
    assert hits[1] == [all_tokens, 0]
    assert hits[2] == [all_tokens, 0], "the second engine had no tier of its own"
    assert hits[3] == [all_tokens, all_tokens]


def test_figures_are_the_engines_own(rounds: Rounds) -> None:
    first, second = rounds.metrics[1]
    assert count(first, "stored_blocks") >= NUM_PROMPTS * PROMPT_BLOCKS
    assert count(second, "stored_blocks") == 0
    for metrics in rounds.metrics[3]:
        assert sum(metrics["vllm:kvferry_tier_blocks"].values()) == metrics["vllm:kvferry_tier_size_blocks"][""] > 0
        assert count(metrics, "failed_loads") == count(metrics, "failed_stores") == 0


def test_the_server_ends_and_leaves_nothing(rounds: Rounds) -> None:
    rounds.end.assert_well()
