# SPDX-License-Identifier: Apache-2.0
"""How the ranks of pipeline stages divide their memory: as the first stage does, each in chunks of its own bytes."""

from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, make_kv_cache_configs, make_vllm_config, prompt_of
from kv_cache_plans import FULL, MLA, WINDOW, kv_cache
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.vllm import rank_tier, tier_plan
from scenarios import HYBRID, STORE_ALL, Make, assert_at_rest
from toy_pipeline import ToyPipeline

STAGED: dict[str, Any] = {**HYBRID, "layer_pattern": "fww", "num_layers": 10, "stages": (5, 5), "num_blocks": 60}


def vllm_config(folder: Path, **spec: Any) -> Any:
    config = make_vllm_config(folder, ToySpec(stages=(1, 2), **spec))
    config.parallel_config.distributed_executor_backend = "mp"
    return config


def divided(folder: Path, *stages: Any, **keys: Any) -> list[rank_tier.RankTier]:
    """What a rank of each stage makes of the tier."""
    config, engine = KvFerryConfig.from_extra_config(keys), vllm_config(folder)
    first = rank_tier.divide(config, engine, stages[0])
    return [first, *(rank_tier.divide_as(first, i, config, engine, stage) for i, stage in enumerate(stages[1:], 1))]


def test_a_later_stage_has_the_slots_of_the_first_one_with_its_own_bytes(folder: Path) -> None:
    first, second = divided(
        folder,
        kv_cache(WINDOW, FULL, layers=[2, 4]),
        kv_cache(WINDOW, FULL, layers=[4, 1]),
        cpu_bytes_to_use_per_rank="8MiB",
    )
    # 16 of the first one's largest blocks are a 64th of its memory.
    assert first.slots_per_chunk == second.slots_per_chunk == [16, 32]
    assert first.classes == ([1, 0], [4 * 2048, 2 * 2048])
    assert second.classes == ([1, 0], [2048, 4 * 2048])
    assert (first.chunk_bytes, first.num_chunks) == (16 * 4 * 2048, 64)
    assert (second.chunk_bytes, second.num_chunks) == (32 * 4 * 2048, 32)


def test_a_later_stage_has_no_more_chunks_than_the_first_one(folder: Path) -> None:
    first, second = divided(
        folder, kv_cache(FULL, layers=4), kv_cache(FULL, layers=1), cpu_bytes_to_use_per_rank="1MiB"
    )
    assert (first.num_chunks, second.num_chunks, second.chunk_bytes) == (128, 128, 2048)


def test_a_tier_without_a_chunk_on_a_later_stage_is_refused_until_it_is_as_large_as_is_said(folder: Path) -> None:
    stages = kv_cache(WINDOW, FULL, layers=[1, 4]), kv_cache(WINDOW, FULL, layers=[4, 1])
    # Of the small blocks of the first stage four are in a chunk, so that the second one has four large ones.
    with pytest.raises(ConfigError, match=f"set it to {4 * 4 * 2048} or more"):
        divided(folder, *stages, cpu_bytes_to_use_per_rank=2 * 4 * 2048)
    assert divided(folder, *stages, cpu_bytes_to_use_per_rank=4 * 4 * 2048)[1].num_chunks == 1


def test_a_stage_without_a_layer_of_a_group_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"stage 1 of 2 has no layer .*FullAttentionSpec.*--pipeline-parallel-size"):
        divided(folder, kv_cache(WINDOW, FULL), kv_cache(WINDOW, FULL, layers=[2, 0]))
    with pytest.raises(ConfigError, match=r"stage 0 of 2 has no layer .*VLLM_PP_LAYER_PARTITION"):
        divided(folder, kv_cache(WINDOW, FULL, layers=[0, 2]), kv_cache(WINDOW, FULL))


@pytest.mark.parametrize("remedy", [{"stages": (6, 6)}, {"stages": ()}])
def test_layers_divided_as_the_refusal_says_are_accepted(make: Make, remedy: dict[str, Any]) -> None:
    layers = {**HYBRID, "layer_pattern": "ffffww", "num_layers": 12, "num_blocks": 60}
    with pytest.raises(ConfigError, match=r"stage 0 of 3 has no layer of a KV cache group .SlidingWindowSpec."):
        make(**layers, stages=(4, 4, 4))
    engine = make(**{**layers, **remedy})
    engine.generate({"a": prompt_of(1, 100)})
    assert_at_rest(engine)


def test_stages_whose_ranks_share_otherwise_are_refused_until_nothing_is_shared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = vllm_config(folder, world_size=2)
    first, second = kv_cache(MLA), kv_cache(MLA)
    monkeypatch.setattr(
        "kvferry.vllm.versions.kv_tp_replicas", lambda of: 2 if of is first or of.num_blocks == 8 else 1
    )
    second.num_blocks = 7
    config = KvFerryConfig.from_extra_config({})
    tier = rank_tier.divide(config, engine, first)
    with pytest.raises(
        ConfigError, match=r"stage 1 has KV cache layers that 1 ranks .* 2 do.*share_replicated_kv to false"
    ):
        rank_tier.divide_as(tier, 1, config, engine, second)
    config = KvFerryConfig.from_extra_config({"share_replicated_kv": False})
    rank_tier.divide_as(rank_tier.divide(config, engine, first), 1, config, engine, second)


def test_ranks_of_other_stages_hear_when_the_first_one_refuses(folder: Path) -> None:
    spec = ToySpec(stages=(1, 2))
    engine, config = vllm_config(folder), KvFerryConfig.from_extra_config({})
    pipeline = ToyPipeline(spec)
    with pipeline.as_rank(0), pytest.raises(ConfigError, match=r"stage 0 of 2 has no layer"):
        rank_tier.tier_of_rank(config, engine, kv_cache(FULL, layers=0))
    with pipeline.as_rank(1), pytest.raises(ConfigError, match="first pipeline stage refuses to start"):
        rank_tier.tier_of_rank(config, engine, kv_cache(FULL))


def test_the_plan_of_all_stages_counts_what_the_poorest_one_has(folder: Path) -> None:
    spec = ToySpec(**STAGED)
    engine = make_vllm_config(folder, spec)
    configs = make_kv_cache_configs(engine, spec)
    config = KvFerryConfig.from_extra_config({"cpu_bytes_to_use_per_rank": "4MiB"})
    known, whole = (tier_plan.plan_tier(config, engine, configs[0], later) for later in ((), configs[1:]))
    # The second stage has two layers of the windows of which the first one has one, and the other way round.
    assert [stage.classes.slot_bytes for stage in whole.stages] == [[4096, 4096, 2048], [4096, 2048, 4096]]
    assert known.stages == whole.stages[:1]
    assert (known.slot_bytes, known.chunk_bytes, known.num_chunks) == ([4096, 4096, 2048], 16 * 4096, 64)
    assert (whole.slot_bytes, whole.chunk_bytes, whole.num_chunks) == ([4096, 4096, 4096], 32 * 4096, 32)


def test_blocks_of_every_stage_come_back(make: Make, is_async: bool) -> None:
    engine = make({**STORE_ALL, "cpu_bytes_to_use": "16MiB"}, **STAGED, world_size=2, async_scheduling=is_async)
    prompts = {f"p{i}": prompt_of(i, 100 + i) for i in range(3)}
    expected = engine.generate(prompts)
    engine.settle_stores()
    engine.drop_gpu_cache()
    assert list(engine.generate({name + "'": prompt for name, prompt in prompts.items()}).values()) == list(
        expected.values()
    )
    assert engine.external_hit_tokens == {**dict.fromkeys(prompts, 0), **{name + "'": 96 for name in prompts}}
    # Each rank loaded blocks of its own layers.
    assert all(worker.copy_stats()["loaded_bytes"] > 0 for worker in engine.workers)
    assert_at_rest(engine)


def test_the_size_of_the_tier_is_that_of_the_poorest_rank(make: Make, log_lines: list[str]) -> None:
    engine = make({"cpu_bytes_to_use_per_rank": 100 * 2048}, num_layers=3, stages=(1, 2))
    side = engine.scheduler.connector.scheduler_side
    assert side.engine.max_slots == 100
    engine.generate({"a": prompt_of(1, 100)})
    assert side.engine.max_slots == 50
    assert any("holds at most 100 blocks" in line for line in log_lines)
    assert any("will hold 50 blocks: some rank has no memory for more" in line for line in log_lines)
    engine.run_until(lambda: side.engine.num_slots == 50)


def test_stages_that_divide_their_chunks_otherwise_are_told_apart(make: Make, folder: Path) -> None:
    """A rank of a later stage that was not told would be found out by its first report."""
    engine = make(**STAGED)
    other: ToyEngine = make(**{**STAGED, "stages": (4, 6)})
    engine.workers[1] = other.workers[1]
    with pytest.raises(Exception, match="rank 1"):
        engine.generate({"a": prompt_of(1, 20)})
