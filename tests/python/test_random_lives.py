# SPDX-License-Identifier: Apache-2.0
"""Clients and the engine do anything at any time: requests get their tokens, and at the end nothing is held."""

import random
from pathlib import Path
from typing import Any

import pytest
from harness import expected_tokens
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import (
    CHUNKED_MODEL,
    COARSE_MODEL,
    LATENT_MODEL,
    MODELS,
    RECURRENT_MODELS,
    REPLICATED,
    UNEVEN_MODEL,
    WIDE_MODELS,
    Make,
    assert_at_rest,
)
from seeds import seed_range
from stages import random_stages


@pytest.mark.parametrize(
    "model", [*MODELS, UNEVEN_MODEL, *WIDE_MODELS, COARSE_MODEL, CHUNKED_MODEL, LATENT_MODEL, *RECURRENT_MODELS]
)
@pytest.mark.parametrize("seed", seed_range(3))
def test_random_lives_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    model = random_stages(random.Random(f"stages {seed}"), folder, model)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **{**model, "stages": ()})
    link = random_link(rng, seed)
    retention = ("engine", "dense")[seed % 2]
    room = 2 * 30 * 6144 * max(1, len(model.get("stages", ())))
    engine = make(
        {"cpu_bytes_to_use": room, "staging_bytes": 8 * 6144, "host_link": link, "retention": retention},
        async_scheduling=is_async,
        world_size=rng.choice([1, 2]),
        **{"num_blocks": 36, **model},
    )
    live(engine, rng, prompts, expected, str(link))
    assert_at_rest(engine)


@pytest.mark.parametrize("seed", seed_range(4))
def test_random_lives_of_ranks_that_keep_one_copy_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **REPLICATED)
    world_size = rng.choice([2, 3])
    link = random_link(rng, seed)
    extra = {
        "cpu_bytes_to_use": 40 * 6144,
        "pinned_piece_bytes": world_size * rng.choice([2, 6]) * 6144,
        "staging_bytes": rng.choice([2, 8]) * 6144,
        "host_link": link,
    }
    engine = make(extra, async_scheduling=is_async, world_size=world_size, num_blocks=36, **REPLICATED)
    live(engine, rng, prompts, expected, str(extra))
    assert_at_rest(engine)
    stored = [worker.copy_stats()["stored_blocks"] for worker in engine.workers]
    assert min(stored) > 0
    # Nothing was committed that no rank copied; what was aborted was copied too.
    assert engine.snapshot()["stored"] <= sum(stored)
