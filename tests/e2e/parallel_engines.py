# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with two engines of data parallel, which are asked by turns."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path
from typing import Any

from .engine_runs import BLOCK_TOKENS
from .http_clients import Answer, Patience, ask
from .server_process import Metrics, ServerEnd
from .vllm_server import VllmServer

NUM_ENGINES = 2
# Prompts of which two fill the server's pool of 100 blocks.
NUM_PROMPTS = 4
PROMPT_BLOCKS = 45
ALL_TOKENS = NUM_PROMPTS * PROMPT_BLOCKS * BLOCK_TOKENS


def make_requests() -> list[dict[str, Any]]:
    rng = random.Random(5)
    num_tokens = PROMPT_BLOCKS * BLOCK_TOKENS + 1
    return [{"prompt": [rng.randrange(256) for _ in range(num_tokens)], "max_tokens": 4} for _ in range(NUM_PROMPTS)]


@dataclasses.dataclass
class Rounds:
    """Every prompt to one engine, one after the other, some times; figures behind each round."""

    answers: list[list[Answer]]
    metrics: list[list[Metrics]]
    seconds: list[float]
    end: ServerEnd

    def assert_same_tokens(self) -> None:
        """Computed or loaded, the answers are those of the first round."""
        computed = self.answers[0]
        assert [answer for answers in self.answers for answer in answers if answer.error] == []
        assert all(len(answer.tokens) == 4 for answer in computed)
        for answers in self.answers[1:]:
            assert [answer.tokens for answer in answers] == [answer.tokens for answer in computed]

    def hit_tokens(self) -> list[list[float]]:
        """Tokens that each engine had loaded behind each round."""
        return [[count(metrics, "hit_tokens") for metrics in of_engines] for of_engines in self.metrics]


def run_rounds(folder: Path, tier: dict[str, Any], engines: list[int]) -> Rounds:
    """Start a server, give every round to the engine of `engines` that it belongs to, and end it."""
    server = VllmServer(
        folder, tier, "--data-parallel-size", str(NUM_ENGINES),
        # Of several of them each sees the engines end at a moment of its own.
        "--api-server-count", "1", "--shutdown-timeout", "30", num_ranks=NUM_ENGINES,
    )  # fmt: skip
    requests = make_requests()
    answers, metrics, seconds = [], [], []
    try:
        for engine in engines:
            began = time.monotonic()
            answers.append(
                [ask(server.url, requests, [(index, Patience())], engine)[0] for index in range(NUM_PROMPTS)]
            )
            seconds.append(time.monotonic() - began)
            server.await_metrics("the engine has no transfer left", has_no_transfer, engine=engine)
            metrics.append([server.metrics(each) for each in range(NUM_ENGINES)])
        return Rounds(answers, metrics, seconds, server.stop())
    finally:
        server.kill()


def has_no_transfer(metrics: Metrics) -> bool:
    return metrics["vllm:kvferry_loads_in_flight"][""] == 0 == metrics["vllm:kvferry_stores_in_flight"][""]


def count(metrics: Metrics, name: str) -> float:
    return metrics[f"vllm:kvferry_{name}_total"][""]
