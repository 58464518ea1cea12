# SPDX-License-Identifier: Apache-2.0
"""Recurrent state with `mamba_cache_mode=all` (vLLM 0.30 and 0.31): every block keeps the state of its end."""

import random
from pathlib import Path
from typing import Any, get_args

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import PROMPTS, RECURRENT, STORE_ALL, Make, again, assert_at_rest, leave_to_the_tier
from seeds import seed_range
from vllm.config import cache

pytestmark = pytest.mark.skipif(
    "all" not in get_args(cache.MambaCacheMode), reason="this vLLM has no mamba_cache_mode 'all'"
)

EVERY: dict[str, Any] = {**RECURRENT, "mamba_cache_mode": "all"}
BLOCK = 16


def loads_to_boundaries(engine: ToyEngine, prompt: list[int]) -> list[int]:
    """Of each boundary of the prompt, how much a request loads that goes on there."""
    loaded = []
    for boundary in range(BLOCK, len(prompt), BLOCK):
        request_id = f"to-{boundary}"
        engine.generate({request_id: [*prompt[:boundary], 7]}, max_tokens=1)
        loaded.append(engine.external_hit_tokens[request_id])
        leave_to_the_tier(engine)
    return loaded


@pytest.mark.parametrize("pattern", ["s", "fss", "ms", "ws"])
def test_prompts_come_back_up_to_their_last_boundary(make: Make, folder: Path, is_async: bool, pattern: str) -> None:
    model = {**EVERY, "layer_pattern": pattern, "num_blocks": 121}
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make(STORE_ALL, async_scheduling=is_async, **model)
    assert engine.generate(PROMPTS) == expected
    leave_to_the_tier(engine)
    assert engine.generate(again("2")) == {f"{name}2": tokens for name, tokens in expected.items()}
    for name, prompt in PROMPTS.items():
        assert engine.external_hit_tokens[f"{name}2"] == (len(prompt) - 1) // BLOCK * BLOCK
    assert_at_rest(engine)


def test_a_load_may_end_at_any_boundary_that_one_step_has_passed(make: Make, is_async: bool) -> None:
    prompt = prompt_of(3, 150)
    every = {**EVERY, "num_blocks": 121, "max_num_batched_tokens": 256, "retention_interval": None}
    engine = make({**STORE_ALL, "retention": "dense"}, async_scheduling=is_async, **every)
    engine.generate({"r": prompt}, max_tokens=1)
    leave_to_the_tier(engine)
    assert loads_to_boundaries(engine, prompt) == list(range(BLOCK, 150, BLOCK))


def test_of_the_states_those_are_stored_that_the_engine_retains(make: Make, is_async: bool) -> None:
    prompt = prompt_of(3, 150)
    engine = make(STORE_ALL, async_scheduling=is_async, **{**EVERY, "num_blocks": 121, "max_num_batched_tokens": 256})
    engine.generate({"r": prompt}, max_tokens=1)
    leave_to_the_tier(engine)
    assert engine.snapshot()["stored"] == 9 + 2  # Nine blocks of attention, and the last state of two groups.


@pytest.mark.parametrize("retention_interval", [0, None])
@pytest.mark.parametrize("pattern", ["s", "fss", "fws"])
@pytest.mark.parametrize("seed", seed_range(4))
def test_random_lives_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int, pattern: str, retention_interval: int | None
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    model = {**EVERY, "layer_pattern": pattern, "retention_interval": retention_interval, "num_blocks": 90}
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    link = random_link(rng, seed)
    extra = {
        "cpu_bytes_to_use": 2 * 20 * 6144,
        "staging_bytes": 8 * 6144,
        "host_link": link,
        "retention": ("engine", "dense")[seed % 2],
    }
    engine = make(extra, async_scheduling=is_async, world_size=rng.choice([1, 2]), **model)
    live(engine, rng, prompts, expected, str(link))
    assert_at_rest(engine)
    assert engine.snapshot()["stored"] > 0
