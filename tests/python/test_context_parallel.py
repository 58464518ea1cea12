# SPDX-License-Identifier: Apache-2.0
"""Ranks that divide the tokens of a block (decode context parallelism), and ranks that keep the same (prefill)."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, WrongKvError, expected_tokens, prompt_of
from kv_cache_plans import FULL
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import PROMPTS, RECURRENT, STORE_ALL, Make, assert_at_rest, store_all
from seeds import seed_range
from toy_layers import Share
from toy_worker import kvferry_of

# With the ranks that divide a block, the tokens in a row that one of them has, and all ranks.
DIVIDED = [
    pytest.param({"layer_pattern": "f"}, (2, 1, 2), id="full-2"),
    pytest.param({"layer_pattern": "f"}, (4, 2, 4), id="full-4"),
    pytest.param({"layer_pattern": "m"}, (2, 16, 4), id="latent-2-of-4"),
    pytest.param({"layer_pattern": "mM"}, (4, 4, 4), id="indexer-4"),
    pytest.param(RECURRENT, (2, 1, 2), id="recurrent-2"),
    pytest.param({**RECURRENT, "layer_pattern": "mss", "retention_interval": None}, (2, 8, 2), id="recurrent-dense-2"),
]
WHOLE_WINDOWS = pytest.param({"whole": "w", "layer_pattern": "fw", "num_layers": 4}, (2, 1, 2), id="whole-windows-2")


def divided(model: dict[str, Any], ranks: tuple[int, int, int]) -> dict[str, Any]:
    """What to give to ``ToySpec``, with as many more tokens as a block has more of them."""
    num_context_ranks, interleaving, world_size = ranks
    model = dict(model)
    if kinds := model.pop("whole", ""):
        # Layers of these kinds are on every rank as a whole: as of a drafter that knows of no division.
        layers, pattern = ToySpec(**model).layer_specs(), model["layer_pattern"]
        for number, (name, spec) in enumerate(layers.items()):
            if pattern[number % len(pattern)] in kinds:
                layers[name] = replace(spec, dcp_sharded=False)
        model["layers"] = layers
    return {
        **model,
        "num_context_ranks": num_context_ranks,
        "interleaving": interleaving,
        "world_size": world_size,
        "max_model_len": num_context_ranks * 200,
        "max_num_batched_tokens": num_context_ranks * 64,
        "num_blocks": 49,
    }


@pytest.mark.parametrize(("model", "ranks"), [*DIVIDED, WHOLE_WINDOWS])
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_of_ranks_that_divide_blocks_get_their_tokens(
    make: Make, folder: Path, seed: int, model: dict[str, Any], ranks: tuple[int, int, int]
) -> None:
    if "whole" in model and not hasattr(FULL, "dcp_sharded"):
        pytest.skip("this vLLM does not know such layers")
    rng = random.Random(seed)
    spec = divided(model, ranks)
    prompts = random_prompts(rng, 16 * ranks[0])
    # An engine of one rank, to which nothing is divided, gives the same tokens.
    alone = {**spec, "num_context_ranks": 1, "world_size": 1}
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **alone)
    link = random_link(rng, seed)
    extra = {"cpu_bytes_to_use": ranks[2] * 30 * 6144, "staging_bytes": 8 * 6144, "host_link": link}
    engine = make(extra, async_scheduling=seed % 2 == 1, **spec)
    live(engine, rng, prompts, expected, str(link), num_steps=250)
    assert_at_rest(engine)
    assert engine.snapshot()["stored"] > 0


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_stores_and_loads_its_part_of_a_block(make: Make, num_ranks: int) -> None:
    engine = make(
        {"cpu_bytes_to_use": num_ranks * 30 * 6144, "staging_bytes": 30 * 6144, **STORE_ALL},
        num_context_ranks=num_ranks,
        world_size=num_ranks,
    )
    prompt = prompt_of(1, 250)
    num_blocks = 250 // (16 * num_ranks)
    tokens = engine.generate({"a": prompt}, 1)["a"]
    engine.settle_stores()
    engine.drop_gpu_cache()
    assert engine.snapshot()["stored"] == num_blocks
    assert [worker.copy_stats()["stored_bytes"] for worker in engine.workers] == [num_blocks * 6144] * num_ranks
    assert engine.generate({"a2": prompt}, 1)["a2"] == tokens
    assert engine.external_hit_tokens["a2"] == num_blocks * 16 * num_ranks
    assert_at_rest(engine)


@pytest.mark.parametrize(("interleaving", "owner"), [(1, 1), (4, 0), (16, 0)])
def test_the_toy_notices_a_wrong_cell_on_the_rank_that_has_the_token(make: Make, interleaving: int, owner: int) -> None:
    engine = make(None, num_context_ranks=2, interleaving=interleaving, world_size=2)
    prompt = prompt_of(1, 100)
    engine.generate({"a": prompt}, 1)
    # The 36th token is the fourth of the second block.
    blocks = engine.scheduler.kv_cache_manager.block_pool.blocks
    block = next(
        block.block_id
        for block in blocks
        if block.block_hash is not None and engine.workers[0].model.has(0, block.block_id, prompt, 1)
    )
    offset = Share(2, owner, interleaving).offset(35 - 32)
    for rank, worker in enumerate(engine.workers):
        (memory,) = worker.model.memory_of(0)
        memory[-1, block, :, offset, -1] ^= rank == owner
    with pytest.raises(WrongKvError, match="first at state 35"):
        engine.generate({"again": prompt}, 1)


@pytest.mark.parametrize("pattern", ["f", "m"])
def test_prefill_ranks_keep_the_whole_of_a_block(make: Make, pattern: str) -> None:
    engine = make(
        {"cpu_bytes_to_use": 120 * 6144, "staging_bytes": 64 * 6144}, layer_pattern=pattern, world_size=4,
        num_prefill_ranks=2,
    )  # fmt: skip
    assert engine.hit_tokens == 16
    store_all(engine)
    expected = {name: end.tokens for name, end in engine.finished.items()}
    tokens = engine.generate({name + "2": engine.requests[name].prompt_token_ids for name in expected})
    assert list(tokens.values()) == list(expected.values())
    assert engine.external_hit_tokens["b2"] == 9 * 16
    assert_at_rest(engine)
    # All ranks have the same latent vectors, so they keep one copy.
    num_sharing = 4 if pattern == "m" else 1
    assert kvferry_of(engine.scheduler.connector).scheduler_side.engine.num_slots == num_sharing * 30


def test_prefill_ranks_may_divide_blocks_as_well(make: Make, folder: Path) -> None:
    spec: dict[str, Any] = {"layer_pattern": "m", "world_size": 4, "num_prefill_ranks": 2, "num_context_ranks": 2}
    engine = make({"cpu_bytes_to_use": 120 * 6144, "staging_bytes": 64 * 6144}, **spec)
    assert engine.hit_tokens == 32
    store_all(engine)
    prompts = {name + "2": engine.requests[name].prompt_token_ids for name in engine.finished}
    expected = {name + "2": end.tokens for name, end in engine.finished.items()}
    assert engine.generate(prompts) == expected
    assert engine.external_hit_tokens["b2"] == 128
    assert_at_rest(engine)


def test_engines_that_divide_blocks_otherwise_share_nothing(
    make: Make, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    path = Path(f"/dev/shm/kvferry-context-{tmp_path_factory.mktemp('tier').name}-{os.getpid()}")
    extra = {"cpu_bytes_to_use": 32 * 64 * 1024, "shared_chunk_bytes": 64 * 1024, "shared_path": str(path)}
    spec: dict[str, Any] = {"num_context_ranks": 2, "world_size": 2}
    others = [{"num_context_ranks": 1}, {"interleaving": 16}, {}]
    first = make(extra, **spec)
    store_all(first)
    found = []
    for other in others:
        engine = make(extra, **(spec | other))
        engine.generate({"first": prompt_of(99, 10)})
        engine.generate(PROMPTS)
        found.append(engine.external_hit_tokens["b"])
    assert found == [0, 0, 128]


def test_default_ring_holds_the_part_of_a_step_that_a_rank_has(make: Make) -> None:
    for num_ranks in (1, 2, 4):
        engine: ToyEngine = make(
            {"cpu_bytes_to_use": "64MiB"}, num_context_ranks=num_ranks, world_size=num_ranks, max_num_batched_tokens=256
        )
        for worker in engine.workers:
            assert worker.copy_stats()["ring_size_bytes"] == 256 // (16 * num_ranks) * 6144
