# SPDX-License-Identifier: Apache-2.0
"""The KV caches of model families under vLLM's own scheduler, made small: each comes back from the tier as it was."""

import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, WrongKvError, make_kv_cache_configs, make_vllm_config, prompt_of
from kvferry.vllm import preflight
from model_families import NEEDS_FAMILIES, Setting, family_names
from random_lives import live, random_link, random_prompts
from scenarios import STORE_ALL, Make, assert_at_rest, assert_pool_is_whole
from seeds import seed_range
from stages import random_division
from vllm.config import set_current_vllm_config
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

pytestmark = NEEDS_FAMILIES

NUM_TOKENS = 24


@pytest.fixture(params=family_names())
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """Each family that vLLM knows and kvferry takes."""
    return Setting.of(request.param, monkeypatch)


def expected_of(
    folder: Path, setting: Setting, prompts: dict[str, list[int]], stages: tuple[int, ...] = (), **more: Any
) -> tuple[Any, float]:
    """Tokens of an engine without connector, and how many blocks the longest request may hold with those stages."""
    spec = {**setting.spec(**more), "num_drafts": 0, "num_blocks": 2000, "extra_config": None}
    engine = ToyEngine(folder, ToySpec(**spec))
    tokens = {name: engine.generate({name: prompt}, NUM_TOKENS)[name] for name, prompt in prompts.items()}
    engine.close()
    staged = ToySpec(**spec, stages=stages)
    config = make_vllm_config(folder, staged)
    with set_current_vllm_config(config):
        planned = make_kv_cache_configs(config, staged)[0]
        requests = get_max_concurrency_for_kv_cache_config(config, planned)
    return tokens, planned.num_blocks / requests


def test_prompts_come_back_up_to_their_last_boundary(make: Make, folder: Path, setting: Setting) -> None:
    lengths = [setting.unit * 3 + 5, setting.unit * 10, setting.unit * 2 + setting.hit_tokens // 2]
    prompts = {f"p{i}": prompt_of(i, length) for i, length in enumerate(lengths)}
    expected, _ = expected_of(folder, setting, prompts, max_num_batched_tokens=2 * setting.unit)
    spec = setting.spec(max_num_batched_tokens=2 * setting.unit, num_blocks=2000)
    room = 4 * sum(lengths) * setting.token_bytes
    engine = make({"cpu_bytes_to_use": room, "staging_bytes": room, **STORE_ALL}, **spec)
    setting.prepare(engine)
    for again in ("", "'"):
        tokens = engine.generate({name + again: prompt for name, prompt in prompts.items()}, NUM_TOKENS)
        assert tokens == {name + again: expected[name] for name in prompts}
        engine.settle_stores()
        # What the engine's own cache would give.
        own = {name: engine.own_hit_tokens(prompt) for name, prompt in prompts.items()}
        engine.drop_gpu_cache()
    for name, prompt in prompts.items():
        boundary = (len(prompt) - 1) // setting.hit_tokens * setting.hit_tokens
        # With a drafter's layers the engine's own cache gives a block less, and may not have what is after that.
        least = own[name] if setting.family.num_drafts else boundary
        # A circular buffer is empty after a load: the engine cannot go back by one token into what was loaded.
        most = boundary if setting.has_scratch else len(prompt) // setting.hit_tokens * setting.hit_tokens
        if boundary <= setting.replay_tokens:
            least = most = 0  # vLLM does not take a hit that it would have to compute again.
        assert least <= engine.external_hit_tokens[name + "'"] <= most
    assert_at_rest(engine)


def test_the_toy_notices_one_wrong_cell_of_any_layer(folder: Path, setting: Setting) -> None:
    spec = setting.spec(max_num_batched_tokens=2 * setting.unit, num_blocks=2000, num_drafts=0, extra_config=None)
    engine = ToyEngine(folder, ToySpec(**spec))
    prompt = prompt_of(1, setting.unit * 10)
    kept = [number for number, group in enumerate(engine.kv_cache_config.kv_cache_groups) if preflight.is_kept(group)]
    memories = [memory for group in kept for memory in engine.workers[0].model.memory_of(group)]
    assert len(memories) >= len(kept)
    for number, memory in enumerate(memories):
        engine.generate({f"first {number}": prompt}, 1)
        # The last cell of a block in the last head of the last of these layers.
        cells = memory[(-1, slice(1, None)) + (-1,) * (memory.ndim - 2)]
        cells ^= 1
        with pytest.raises(WrongKvError, match="wrong"):
            engine.generate({f"again {number}": prompt}, 1)
        engine.abort(f"again {number}")
        engine.drop_gpu_cache()
    assert_pool_is_whole(engine)


# One life of each family, half of them with asynchronous scheduling; a soak has more.
@pytest.mark.parametrize("seed", seed_range(1))
def test_random_lives_of_families_get_their_tokens(make: Make, folder: Path, setting: Setting, seed: int) -> None:
    rng = random.Random(f"{setting.name} {seed}")
    unit = setting.unit
    prompts = random_prompts(rng, unit)
    more = {
        "max_num_batched_tokens": rng.choice([2 * unit, 3 * unit + 7, 6 * unit]),
        "async_scheduling": (zlib.crc32(setting.name.encode()) + seed) % 2 == 1,
    }
    # Of draws of its own, so that the rest of a seed is as it was.
    stages = random_division(random.Random(f"stages of {setting.name} {seed}"), setting)
    expected, most_blocks = expected_of(folder, setting, prompts, stages, **more)
    link = random_link(rng, seed)
    link["bandwidth_gb_s"] *= setting.token_bytes / 384
    link["fail_probability"] /= 5
    extra = {
        # Few blocks of windows are stored, so that what is small for one family is large for another.
        "cpu_bytes_to_use": max(1, len(stages))
        * max(8 * setting.most_bytes, rng.choice([5, 20, 60]) * unit * setting.token_bytes),
        "staging_bytes": max(2 * setting.most_bytes, 4 * unit * setting.token_bytes),
        "host_link": link,
    }
    engine = make(
        extra,
        **setting.spec(world_size=setting.family.num_context_ranks * rng.choice([1, 2]), **more),
        stages=stages,
        num_blocks=int(rng.uniform(1.1, 1.8) * most_blocks) + 1,
    )
    setting.prepare(engine)
    if engine.spec.num_drafts:
        propose(engine, {tuple(prompt): expected[name] for name, prompt in prompts.items()})
    live(engine, rng, prompts, expected, f"{more} {extra}", num_steps=150, num_tokens=NUM_TOKENS)
    assert_at_rest(engine)
    assert engine.snapshot()["stored"] > 0


def propose(engine: ToyEngine, answers: dict[tuple[int, ...], list[int]]) -> None:
    """Let the ranks propose what follows a prompt, with every fourth token wrong."""

    def drafts(request_id: str, position: int, num_drafts: int) -> list[int]:
        prompt = engine.requests[request_id].prompt_token_ids
        text = [*prompt, *answers[tuple(prompt)]]
        return [text[at] if at % 4 and at < len(text) else -1 for at in range(position, position + num_drafts)]

    for worker in engine.workers:
        worker.model.drafts = drafts
