# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with two engines of data parallel: each has a tier of its own, and figures of its own."""

from __future__ import annotations

import pytest

from .parallel_engines import ALL_TOKENS, NUM_PROMPTS, PROMPT_BLOCKS, Rounds, count, run_rounds

TIER = {"cpu_bytes_to_use": "128MiB", "min_load_tokens": 0}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return run_rounds(tmp_path_factory.mktemp("server"), TIER, [0, 0, 1, 1])


def test_every_engine_gives_the_same_tokens_computed_or_loaded(rounds: Rounds) -> None:
    rounds.assert_same_tokens()


def test_an_engine_has_from_the_tier_what_it_stored_itself(rounds: Rounds) -> None:
    hits = rounds.hit_tokens()
    # When a round comes to a prompt, those between have pushed it out of the pool.
    assert hits[0] == [0, 0]
    assert hits[1] == [ALL_TOKENS, 0]
    assert hits[2] == [ALL_TOKENS, 0], "the second engine had no tier of its own"
    assert hits[3] == [ALL_TOKENS, ALL_TOKENS]


def test_figures_are_the_engines_own(rounds: Rounds) -> None:
    first, second = rounds.metrics[1]
    assert count(first, "stored_blocks") >= NUM_PROMPTS * PROMPT_BLOCKS
    assert count(second, "stored_blocks") == 0
    for metrics in rounds.metrics[3]:
        assert sum(metrics["vllm:kvferry_tier_blocks"].values()) == metrics["vllm:kvferry_tier_size_blocks"][""] > 0
        assert count(metrics, "failed_loads") == count(metrics, "failed_stores") == 0


def test_the_server_ends_and_leaves_nothing(rounds: Rounds) -> None:
    rounds.end.assert_well()
