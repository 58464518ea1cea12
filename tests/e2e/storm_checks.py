# SPDX-License-Identifier: Apache-2.0
"""Requests for storms, and what a storm must have in common with a run without offload."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any

from .engine_runs import BLOCK_TOKENS, EngineRunner
from .http_clients import Answer

# One seed, and one more for every minute that the environment grants.
SEEDS = range(1 + int(os.environ.get("KVFERRY_SOAK_SECONDS", "0")) // 60)
NUM_REQUESTS = 200
NUM_REQUESTS_ALONE = 60
MAX_MODEL_LEN = 512
# The chance that a request is aborted when it is first seen in a state; see `storm.Storm`.
ABORT_CHANCES = {
    "unscheduled": 0.03,
    "loading": 0.15,
    "loaded": 0.15,
    "preempted": 0.15,
    "prefilled": 0.08,
    "decoding": 0.08,
    "stopping": 0.08,
    "stopped": 0.05,
}

# How far logarithms of probabilities may lie apart that differ only in the shape of batches, or in the order of a
# sum over ranks: at most 3e-5 was seen with the tiny model in float32.
FLOAT_NOISE = 1e-4


def make_requests(seed: int, count: int, num_families: int = 10) -> list[dict[str, Any]]:
    """Random requests of a few families with shared prefixes, some of them cut short, some alone."""
    rng = random.Random(seed)

    def tokens(num_tokens: int) -> list[int]:
        return [rng.randrange(256) for _ in range(num_tokens)]

    families = [tokens(BLOCK_TOKENS * rng.randint(2, 9)) for _ in range(num_families)]
    requests = []
    for _ in range(count):
        family = rng.choice(families)
        kept = rng.choice([len(family), len(family), rng.randrange(len(family)), 0])
        prompt = family[:kept] + tokens(rng.choice([1, 7, 40, 90, 150]))
        requests.append({"prompt": prompt, "max_tokens": rng.choice([1, 2, 12, 70])})
    return requests


def storm(
    requests: list[dict[str, Any]],
    *,
    window: int,
    abort_chances: dict[str, float] | None = None,
    reset_chance: float = 0.0,
    follow_chance: float = 0.0,
    resize_chance: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """The operation `storm`."""
    return {
        "op": "storm",
        "requests": requests,
        "window": window,
        "abort_chances": abort_chances or {},
        "reset_chance": reset_chance,
        "follow_chance": follow_chance,
        "resize_chance": resize_chance,
        "seed": seed,
    }


@dataclasses.dataclass
class Comparison:
    """A storm beside its reference."""

    num_finished: int = 0
    num_aborted: int = 0
    num_tokens: int = 0
    num_near_ties: int = 0
    largest_difference: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_finished} finished and {self.num_aborted} aborted lives, {self.num_tokens} equal tokens, "
            f"{self.num_near_ties} lives part at a near tie, logprobs differ by {self.largest_difference:.1e} at most"
        )


def compare(
    result: dict[str, Any], reference: dict[str, Any], requests: list[dict[str, Any]], noise: float
) -> Comparison:
    """Compare every life of a storm, an aborted one as far as it came, with the request's life in the reference.

    A life may part from the reference only where the two best tokens of the reference are closer than `noise`;
    what follows is another text and is not compared. Up to there the best token's logprob may be as far off.
    """
    expected = {life["request"]: life for life in reference["lives"]}
    comparison = Comparison()
    for life in result["lives"]:
        index = life["request"]
        if life["aborted"] is None:
            comparison.num_finished += 1
            assert len(life["tokens"]) == requests[index]["max_tokens"], life
        else:
            comparison.num_aborted += 1
        for position, token in enumerate(life["tokens"]):
            where = f"request {index}, position {position}"
            (best, logprob), (runner_up, second) = expected[index]["best"][position]
            if token != best:
                assert token == runner_up, f"{where}: token {token}, neither {best} nor {runner_up}"
                assert logprob - second < noise, f"{where}: token {token} and not {best}, {logprob} to {second}"
                comparison.num_near_ties += 1
                break
            difference = abs(life["best"][position][0][1] - logprob)
            assert difference <= noise, f"{where}: the logprob is off by {difference}"
            comparison.largest_difference = max(comparison.largest_difference, difference)
            comparison.num_tokens += 1
    assert {life["request"] for life in result["lives"]} == set(range(len(requests)))
    return comparison


def compare_with_alone(runner: EngineRunner, answers: list[Answer], requests: list[dict[str, Any]]) -> Comparison:
    """Compare a server's answers, also those that a client has left, with an engine that has one request at a time."""
    reference = runner.run_named(
        {"alone": storm(requests, window=1)}, None, num_gpu_blocks=400, max_model_len=2048, max_num_seqs=1
    )["alone"]
    comparison = compare({"lives": [answer.life() for answer in answers]}, reference, requests, FLOAT_NOISE)
    print(comparison)
    return comparison
