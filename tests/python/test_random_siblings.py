# SPDX-License-Identifier: Apache-2.0
"""Clients and the engine do anything, beside a sibling that loads and fails: the tier keeps nothing wrong."""

import random
from pathlib import Path

import pytest
from harness import expected_tokens
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import Make, assert_at_rest
from seeds import seed_range
from toy_sibling import SCRIPTS, Script, lend_models, siblings


@pytest.mark.parametrize("loads_async", [False, True], ids=["sync-load", "async-load"])
@pytest.mark.parametrize("seed", seed_range(4))
def test_random_lives_beside_a_sibling_that_fails_get_their_tokens(
    make: Make, request: pytest.FixtureRequest, folder: Path, is_async: bool, loads_async: bool, seed: int
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS)
    script = SCRIPTS[request.node.name] = Script(
        prompts=rng.sample(list(prompts.values()), 4), is_async=loads_async, fail_share=0.3, rng=random.Random(seed)
    )
    tier = siblings(request.node.name, is_first=rng.random() < 0.5, host_link=random_link(rng, seed))
    engine = make(**tier, async_scheduling=is_async, world_size=rng.choice([1, 2]), num_blocks=49)
    lend_models(engine)
    live(engine, rng, prompts, expected, f"sibling of seed {seed}")
    assert script.num_failures
    assert_at_rest(engine)
