# SPDX-License-Identifier: Apache-2.0
"""Which ranks keep one copy of an MLA model's KV cache, and that they do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, make_kv_cache_configs, make_vllm_config
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError, TopologyError
from kvferry.vllm.replicas import Replicas, groups_of_ranks, replicas_of
from scenarios import PROMPTS, REPLICATED, Make, again, assert_at_rest, store_all
from toy_worker import kvferry_of

# One layer has 16 tokens of 32 values of four bytes, as the other toys' with keys and values; there are three.
SLOT_BYTES = 3 * 16 * 32 * 4


def parallel_of(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "world_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "distributed_executor_backend": "mp",
    } | changes
    values.setdefault("local_world_size", values["world_size"])
    per_tensor_rank = values["pipeline_parallel_size"] * values["prefill_context_parallel_size"]
    values.setdefault("tensor_parallel_size", values["world_size"] // per_tensor_rank)
    return SimpleNamespace(**values)


def engine_of(*, use_mla: bool = False, drafts: bool = False, **changes: Any) -> Any:
    return SimpleNamespace(
        parallel_config=parallel_of(**changes),
        model_config=SimpleNamespace(use_mla=use_mla),
        speculative_config=SimpleNamespace() if drafts else None,
    )


def kv_cache_of_kind(folder: Path, pattern: str, num_ranks: int = 2) -> Any:
    """As vLLM plans it for so many tensor-parallel ranks."""
    spec = ToySpec(layer_pattern=pattern, num_layers=4, max_model_len=200, world_size=num_ranks)
    return make_kv_cache_configs(make_vllm_config(folder, spec), spec)[0]


def test_groups_are_the_ranks_of_a_stage_on_a_node() -> None:
    assert groups_of_ranks(4, 4, 4) == [range(4)]
    # tensor 2 x pipeline 2 on one node, and on two
    assert groups_of_ranks(4, 2, 4) == [range(2), range(2, 4)]
    assert groups_of_ranks(4, 2, 2) == [range(2), range(2, 4)]
    # tensor 8 over two nodes
    assert groups_of_ranks(8, 8, 4) == [range(4), range(4, 8)]
    # tensor 4 x pipeline 3 over two nodes of six: the stage in the middle lies on both
    assert groups_of_ranks(12, 4, 6) == [range(4), range(4, 6), range(6, 8), range(8, 12)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"world_size": 1}, Replicas([(1, 0)], 1, 1)),
        ({"world_size": 4}, Replicas([(4, 0), (4, 1), (4, 2), (4, 3)], 1, 4)),
        ({"world_size": 4, "pipeline_parallel_size": 2}, Replicas([(2, 0), (2, 1)] * 2, 2, 2)),
        ({"world_size": 8, "local_world_size": 4}, Replicas([(4, 0), (4, 1), (4, 2), (4, 3)] * 2, 1, 4)),
        (
            {"world_size": 12, "local_world_size": 6, "pipeline_parallel_size": 3},
            Replicas(
                [(4, 0), (4, 1), (4, 2), (4, 3), (2, 0), (2, 1), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)], 2, 2
            ),
        ),
        # The stage in the middle lies on both nodes: each of its ranks is alone.
        (
            {"world_size": 6, "local_world_size": 3, "pipeline_parallel_size": 3},
            Replicas([(2, 0), (2, 1), (1, 0), (1, 0), (2, 0), (2, 1)], 2, 1),
        ),
        # Where Ray has put the ranks nobody says here.
        ({"world_size": 2, "distributed_executor_backend": "ray"}, Replicas([(1, 0)] * 2, 2, 1)),
        ({"world_size": 2, "decode_context_parallel_size": 2}, Replicas([(1, 0)] * 2, 2, 1)),
        ({"world_size": 2, "prefill_context_parallel_size": 2}, Replicas([(2, 0), (2, 1)], 1, 2)),
        (
            {"world_size": 8, "prefill_context_parallel_size": 2, "pipeline_parallel_size": 2},
            Replicas([(4, 0), (4, 1), (4, 2), (4, 3)] * 2, 2, 4),
        ),
        (
            {"world_size": 4, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
            Replicas([(1, 0)] * 4, 4, 1),
        ),
    ],
)
def test_ranks_share_by_stage_and_node(folder: Path, changes: dict[str, Any], expected: Replicas) -> None:
    kv_cache = kv_cache_of_kind(folder, "m", parallel_of(**changes).tensor_parallel_size)
    assert replicas_of(KvFerryConfig(), engine_of(**changes), kv_cache) == expected
    alone = Replicas([(1, 0)] * changes["world_size"], parallel_of(**changes).local_world_size, 1)
    assert replicas_of(KvFerryConfig(share_replicated_kv=False), engine_of(**changes), kv_cache) == alone


@pytest.mark.parametrize(
    ("options", "num_sharing"), [({"use_mla": True}, 2), ({}, 1), ({"use_mla": True, "drafts": True}, 1)]
)
def test_indexers_are_shared_where_the_model_has_nothing_but_mla(
    folder: Path, options: dict[str, bool], num_sharing: int
) -> None:
    kv_cache = kv_cache_of_kind(folder, "mM")
    if hasattr(kv_cache, "kv_tp_replicas"):
        pytest.skip("this vLLM counts the ranks itself")
    found = replicas_of(KvFerryConfig(), engine_of(world_size=2, **options), kv_cache)
    assert found.least_sharing == num_sharing


@pytest.mark.parametrize("pattern", ["m", "mM"])
@pytest.mark.parametrize("num_alike", [1, 2, 4])
def test_ranks_share_as_vllm_counts_them(folder: Path, pattern: str, num_alike: int) -> None:
    kv_cache = kv_cache_of_kind(folder, pattern, num_ranks=4)
    if not hasattr(kv_cache, "kv_tp_replicas"):
        pytest.skip("this vLLM does not count them")
    assert kv_cache.kv_tp_replicas == 4
    kv_cache.kv_tp_replicas = num_alike
    found = replicas_of(KvFerryConfig(), engine_of(world_size=4), kv_cache)
    assert found.places == [(num_alike, rank % num_alike) for rank in range(4)]


def test_prefill_ranks_share_no_more_than_their_tensor_ranks_do(folder: Path) -> None:
    found = replicas_of(
        KvFerryConfig(), engine_of(world_size=4, prefill_context_parallel_size=2), kv_cache_of_kind(folder, "mf")
    )
    assert found.least_sharing == 1


@pytest.mark.parametrize("pattern", ["f", "w", "mw", "mf"])
def test_ranks_with_a_layer_of_another_kind_share_nothing(folder: Path, pattern: str) -> None:
    found = replicas_of(KvFerryConfig(), engine_of(world_size=2), kv_cache_of_kind(folder, pattern))
    assert found == Replicas([(1, 0), (1, 0)], 2, 1)


def test_name_of_a_group_is_that_of_its_first_rank() -> None:
    sharing = Replicas([(2, 0), (2, 1), (2, 0), (2, 1)], 2, 2)
    assert [sharing.group_of("e", rank) for rank in range(4)] == ["e/0", "e/0", "e/2", "e/2"]


def test_budget_of_ranks_that_share_is_one_arenas() -> None:
    config = KvFerryConfig.from_extra_config({"cpu_bytes_to_use": 100_000})
    assert config.tier_bytes(10_000, num_local_arenas=1, num_sharing=4) == 100_000
    assert config.tier_bytes(10_000, num_local_arenas=2, num_sharing=2) == 50_000
    per_rank = KvFerryConfig.from_extra_config({"cpu_bytes_to_use_per_rank": 4500})
    assert per_rank.tier_bytes(10_000, num_local_arenas=1, num_sharing=4) == 18_000
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use_per_rank is 4500; .* set it to 5000 or more"):
        per_rank.tier_bytes(10_000, num_local_arenas=1, num_sharing=2)
    with pytest.raises(ConfigError, match=r"groups of 2 ranks that share one copy; set it to 240000 or more"):
        config.tier_bytes(120_000, num_local_arenas=2, num_sharing=2)


def stored_bytes(engine: ToyEngine) -> list[int]:
    return [worker.copy_stats()["stored_bytes"] for worker in engine.workers]


@pytest.mark.parametrize("world_size", [2, 3])
def test_mla_is_stored_once_and_loaded_by_every_rank(make: Make, is_async: bool, world_size: int) -> None:
    # Pieces of two slots, so that every store has blocks of several ranks.
    extra = {
        "cpu_bytes_to_use": 60 * SLOT_BYTES,
        "pinned_piece_bytes": 2 * world_size * SLOT_BYTES,
        "staging_bytes": 64 * SLOT_BYTES,  # no block is gathered by one rank and skipped by another
    }
    engine = make(extra, **REPLICATED, world_size=world_size, async_scheduling=is_async)
    # A tier that is still growing evicts what it has no room for yet.
    engine.run_until(lambda: engine.snapshot()["num_slots"] == 60)
    store_all(engine)
    view = engine.snapshot()
    # 6, 9 and 2 whole blocks; the rest of the budget is not divided among the ranks.
    assert view["stored"] >= 17
    assert sum(stored_bytes(engine)) == view["stored"] * SLOT_BYTES
    assert min(stored_bytes(engine)) > 0
    tokens = {request_id: end.tokens for request_id, end in engine.finished.items()}
    assert engine.generate(again("2")) == {request_id + "2": tokens[request_id] for request_id in PROMPTS}
    assert engine.external_hit_tokens["b2"] == 9 * 16
    loaded = [worker.copy_stats()["loaded_bytes"] for worker in engine.workers]
    assert loaded == [17 * SLOT_BYTES] * world_size
    assert_at_rest(engine)


def test_without_sharing_every_rank_stores_a_copy_of_its_own(make: Make) -> None:
    extra = {"cpu_bytes_to_use": 60 * SLOT_BYTES, "staging_bytes": 64 * SLOT_BYTES, "share_replicated_kv": False}
    engine = make(extra, **REPLICATED, world_size=2)
    store_all(engine)
    assert stored_bytes(engine) == [engine.snapshot()["stored"] * SLOT_BYTES] * 2
    assert engine.snapshot()["num_slots"] == 30


def test_rank_that_shares_otherwise_than_the_scheduler_is_refused(folder: Path) -> None:
    extra = {"cpu_bytes_to_use": 60 * SLOT_BYTES}
    engine = ToyEngine(folder, ToySpec(**REPLICATED, world_size=2, extra_config=extra))
    alone = ToyEngine(folder, ToySpec(**REPLICATED, world_size=2, extra_config={**extra, "share_replicated_kv": False}))
    try:
        alone.workers, engine.workers = engine.workers, alone.workers
        with pytest.raises(TopologyError, match="ranks that share its KV cache 1, the scheduler was told 2"):
            engine.generate(PROMPTS)
    finally:
        engine.close()
        alone.close()


def test_log_says_who_shares(make: Make) -> None:
    engine = make({"cpu_bytes_to_use": 60 * SLOT_BYTES}, **REPLICATED, world_size=2)
    for worker in engine.workers:
        assert "shared with 1 other rank" in kvferry_of(worker.connector).worker_side.engine.arena()
