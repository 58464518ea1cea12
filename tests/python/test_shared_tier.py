# SPDX-License-Identifier: Apache-2.0
"""Engines that share one tier: what they find of each other, and what they must not find."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, ToySpec, expected_tokens, make_vllm_config, prompt_of
from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.vllm.shared_tier import check_engine, shared_tier_of
from random_lives import NUM_TOKENS, live_together, random_prompts
from scenarios import (
    HYBRID,
    MODELS,
    PROMPTS,
    RECURRENT_MODELS,
    STORE_ALL,
    UNEVEN_MODEL,
    Make,
    again,
    assert_at_rest,
    store_all,
)
from seeds import seed_range
from test_features_keys import PROMPT, accept_items, items, run
from toy_worker import kvferry_of
from vllm.v1.kv_cache_layout import KVCacheLayout

_numbers = itertools.count()
# A plain toy's block has 6 KiB: ten slots in each of sixteen chunks.
TIER = {"cpu_bytes_to_use": 16 * 64 * 1024, "shared_chunk_bytes": 64 * 1024}


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path(f"/dev/shm/kvferry-test-{os.getpid()}-{next(_numbers)}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def make_sharing(make: Make, path: Path) -> Make:
    """Make engines that share a tier, all of which is ready for them."""

    def make_engine(extra: dict[str, Any] | None = None, **spec: Any) -> ToyEngine:
        engine = make({**TIER, "shared_path": str(path), **(extra or {})}, **spec)
        side = kvferry_of(engine.scheduler.connector).scheduler_side
        engine.generate({"first": prompt_of(99, 10)})
        engine.run_until(lambda: side.engine.num_slots == side.engine.max_slots)
        del engine.finished["first"], engine.requests["first"]
        return engine

    return make_engine


def tokens_of(engine: ToyEngine, suffix: str) -> dict[str, list[int]]:
    """What the prompts give under ids with a suffix, by their own ids."""
    found = engine.generate(again(suffix))
    return {request_id: found[request_id + suffix] for request_id in PROMPTS}


def found_elsewhere(engine: ToyEngine) -> int:
    return engine.snapshot()["num_guests_total"]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL, *RECURRENT_MODELS])
def test_what_one_engine_stored_another_loads(
    make_sharing: Make, folder: Path, is_async: bool, world_size: int, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    first, second = (make_sharing(async_scheduling=is_async, world_size=world_size, **model) for _ in range(2))
    store_all(first)
    assert tokens_of(second, "2") == expected
    assert second.external_hit_tokens["b2"] > 0
    assert found_elsewhere(second) > 0
    assert found_elsewhere(first) == 0
    for engine in (first, second):
        assert_at_rest(engine)


def test_what_another_engine_has_is_not_stored_again(make_sharing: Make, expected: dict[str, list[int]]) -> None:
    first, second = make_sharing(), make_sharing({"min_load_tokens": 10**6})
    store_all(first)
    assert tokens_of(second, "2") == expected
    second.settle_stores()
    assert first.snapshot()["stored"] >= 17
    assert second.snapshot()["stored"] == 0


def test_ended_engine_leaves_its_blocks_and_the_last_one_no_file(
    make_sharing: Make, path: Path, expected: dict[str, list[int]]
) -> None:
    first, second = make_sharing(), make_sharing()
    store_all(first)
    first.close()
    assert tokens_of(second, "2") == expected
    assert second.external_hit_tokens["b2"] == 9 * 16
    second.close()
    assert not path.exists()


def test_kept_file_serves_the_next_engine(make_sharing: Make, path: Path, expected: dict[str, list[int]]) -> None:
    first = make_sharing({"shared_keep": True})
    store_all(first)
    first.close()
    assert path.exists()
    second = make_sharing()
    assert tokens_of(second, "2") == expected
    assert second.external_hit_tokens["b2"] == 9 * 16
    second.close()
    assert not path.exists()


def test_behind_a_reset_an_engine_shares_nothing(make_sharing: Make, expected: dict[str, list[int]]) -> None:
    first, second = make_sharing(), make_sharing()
    store_all(first)
    assert second.scheduler.reset_connector_cache()
    assert tokens_of(second, "2") == expected
    assert found_elsewhere(second) == 0
    second.settle_stores()
    second.drop_gpu_cache()
    assert tokens_of(second, "3") == expected
    assert second.external_hit_tokens["b3"] == 9 * 16, "its own blocks"
    assert tokens_of(first, "4") == expected
    assert found_elsewhere(first) == 0


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL, *RECURRENT_MODELS])
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_of_two_engines_get_their_tokens(
    make_sharing: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    link = {"bandwidth_gb_s": rng.choice([0, 0.01]), "fail_probability": rng.choice([0, 0.1]), "seed": seed}
    world_size = rng.choice([1, 2])
    # Six chunks for both: neither can have what it wants.
    extra = {"cpu_bytes_to_use": world_size * 6 * 64 * 1024, "staging_bytes": 8 * 6144, "host_link": link}
    engines = [
        make_sharing(extra, async_scheduling=is_async, world_size=world_size, **{"num_blocks": 36, **model})
        for _ in range(2)
    ]
    # Behind its first reset an engine shares nothing any more.
    reset_share = 0.001 if seed == 0 else 0
    live_together(engines, rng, prompts, expected, str(link), reset_share)
    for engine in engines:
        assert_at_rest(engine)
        num_calls, _, difference, last_error = _core.replay_recording(str(engine.recording))
        assert (difference, last_error) == (None, None)
        assert num_calls > 400
    if seed > 0:
        assert sum(found_elsewhere(engine) for engine in engines) > 0


def test_engines_of_different_models_share_the_memory_only(make_sharing: Make, folder: Path) -> None:
    plain, hybrid = make_sharing(STORE_ALL), make_sharing(STORE_ALL, **HYBRID)
    expected = expected_tokens(folder, PROMPTS)
    store_all(plain)
    assert tokens_of(hybrid, "2") == expected_tokens(folder, PROMPTS, **HYBRID)
    assert found_elsewhere(hybrid) == 0
    hybrid.settle_stores()
    assert tokens_of(plain, "3") == expected
    assert plain.external_hit_tokens["b3"] == 9 * 16
    assert plain.snapshot()["num_chunks"] > 0
    assert hybrid.snapshot()["num_chunks"] > 0


# Each engine has three chunks or so.
ROOM_FOR_MANY = {"cpu_bytes_to_use": 96 * 64 * 1024, **STORE_ALL}


@pytest.mark.parametrize("model", MODELS)
def test_engines_of_every_pair_of_layouts_share_nothing_unless_they_are_equal(
    make_sharing: Make, folder: Path, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    for layout in KVCacheLayout:
        # Those before it have stored the same prompts in all other layouts.
        engine = make_sharing(ROOM_FOR_MANY, layout=layout, **model)
        assert tokens_of(engine, "1") == expected, layout
        engine.settle_stores()
        assert found_elsewhere(engine) == 0, layout
    for layout in KVCacheLayout:
        engine = make_sharing(ROOM_FOR_MANY, layout=layout, **model)
        assert tokens_of(engine, "2") == expected, layout
        assert found_elsewhere(engine) > 0, layout
        assert engine.snapshot()["stored"] <= 3, "all that was in the tier is not stored again"


def test_kept_file_serves_no_engine_of_another_layout(
    make_sharing: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    first = make_sharing({"shared_keep": True}, async_scheduling=is_async)
    store_all(first)
    first.close()
    second = make_sharing({"shared_keep": True}, async_scheduling=is_async, layout=KVCacheLayout.LBNHC)
    assert tokens_of(second, "2") == expected
    assert found_elsewhere(second) == 0


def replace_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"others")


def test_engine_with_other_weights_of_the_same_name_loads_nothing(make_sharing: Make, folder: Path) -> None:
    first = make_sharing()
    store_all(first)
    replace_weights(folder)
    second = make_sharing()
    second.generate(again("2"))
    assert found_elsewhere(second) == 0


def test_engine_whose_weights_are_not_known_says_so_and_shares_nothing(
    make: Make, make_sharing: Make, log_lines: list[str], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr("kvferry.vllm.weights_mark._FROM_FOLDER", frozenset())
    first, second = make_sharing(), make_sharing()
    store_all(first)
    second.generate(again("2"))
    assert found_elsewhere(second) == 0
    said = [line for line in log_lines if "shares the memory of" in line]
    assert len(said) == 2
    assert all(line.startswith("WARNING") and str(path) in line and "load_format 'auto'" in line for line in said)
    assert tokens_of(first, "3") == tokens_of(second, "4")
    assert first.external_hit_tokens["b3"] == 9 * 16, "its own"


@pytest.mark.parametrize("model", [*MODELS, *RECURRENT_MODELS])
def test_requests_with_items_stay_out_of_a_shared_tier(
    make_sharing: Make, is_async: bool, model: dict[str, Any]
) -> None:
    # Two clients may give one UUID to two pictures.
    spec: dict[str, Any] = {"num_blocks": 64, "async_scheduling": is_async, **model}
    first, second = (accept_items(make_sharing(STORE_ALL, **spec)) for _ in range(2))
    before = first.snapshot()["stored"]
    _, num_hit = run(first, "first", items(("a client's UUID", 40)))
    assert num_hit == 0
    assert first.snapshot()["stored"] == before
    for engine in (first, second):
        assert run(engine, "again", items(("a client's UUID", 40)))[1] == 0
    # Text is shared as ever.
    tokens, _ = run(first, "text", {})
    assert run(second, "text", {}) == (tokens, 96)
    assert found_elsewhere(second) > 0
    for engine in (first, second):
        assert_at_rest(engine)


def test_requests_with_items_share_where_the_user_vouches_for_them(make_sharing: Make) -> None:
    extra = {**STORE_ALL, "shared_multimodal": True}
    first, second = (accept_items(make_sharing(extra, num_blocks=64)) for _ in range(2))
    tokens, _ = run(first, "first", items(("of one picture", 40)))
    assert run(second, "second", items(("of one picture", 40))) == (tokens, 96)


def test_a_tier_of_its_own_keeps_requests_with_items(make: Make) -> None:
    engine = accept_items(make())
    tokens, _ = run(engine, "first", items(("of one picture", 40)))
    assert run(engine, "second", items(("of one picture", 40))) == (tokens, 96)
    assert len(PROMPT) == 100


def test_the_first_request_of_an_engine_finds_what_others_have(
    make_sharing: Make, make: Make, path: Path, expected: dict[str, list[int]], is_async: bool
) -> None:
    # It is asked before a rank has said anything: the step in which they do needs no token.
    store_all(make_sharing(async_scheduling=is_async))
    engine = make({**TIER, "shared_path": str(path)}, async_scheduling=is_async)
    assert tokens_of(engine, "2") == expected
    assert engine.external_hit_tokens["b2"] > 0


def test_engine_takes_no_more_than_its_limit(make_sharing: Make) -> None:
    engine = make_sharing({**STORE_ALL, "shared_bytes_limit": 2 * 64 * 1024})
    store_all(engine)
    view = engine.snapshot()
    assert view["num_chunks"] == 2
    assert view["num_evictable"] <= view["num_slots"] == 20


def vllm_config_of(folder: Path, extra: dict[str, Any] | None = None, **spec: Any) -> Any:
    return make_vllm_config(folder, ToySpec(extra_config=extra or {}, **spec))


def check(folder: Path, change: Callable[[Any], None]) -> None:
    config = vllm_config_of(folder)
    change(config)
    check_engine(KvFerryConfig.from_extra_config({"shared_path": "/dev/shm/tier"}), config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: setattr(config, "lora_config", object()), "without --enable-lora"),
        (lambda config: setattr(config.parallel_config, "nnodes", 2), "on several nodes"),
        (lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2), "allowed is 1"),
        (
            lambda config: setattr(config.cache_config, "prefix_caching_hash_algo", "xxhash"),
            "PYTHONHASHSEED is not set",
        ),
    ],
)
def test_engine_that_cannot_share_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], said: str
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ConfigError, match=said):
        check(folder, change)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"shared_weight": 2}, "shared_weight is set and shared_path is not"),
        ({"shared_path": "tier"}, "absolute path of a file in shared memory"),
        ({"shared_path": "/dev/shm/"}, "absolute path of a file in shared memory"),
        ({"shared_path": "/dev/shm/tier", "shared_weight": 0}, "from 1 to 1000"),
        ({"shared_path": "/dev/shm/" + "x" * 5000}, "absolute path of a file in shared memory"),
        ({"shared_path": "/dev/shm/\udcff"}, "absolute path of a file in shared memory"),
        # It was taken, and torn apart by the core's message that there is no such directory (make soak).
        ({"shared_path": "/dev/shm/\red/tier"}, "absolute path of a file in shared memory"),
        ({"shared_path": "/dev/shm/tier", "shared_multimodal": "yes"}, "true or false"),
        ({"shared_multimodal": True}, "shared_multimodal is set and shared_path is not"),
        ({"shared_path": "/dev/shm/tier", "pages": "huge"}, "leave pages out"),
    ],
)
def test_keys_that_mean_nothing_are_refused(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KvFerryConfig.from_extra_config(extra)


def test_block_that_is_larger_than_a_chunk_is_refused(folder: Path) -> None:
    config = KvFerryConfig.from_extra_config({"shared_path": "/dev/shm/tier", **TIER})
    with pytest.raises(ConfigError, match=r"a block of the KV cache has 65537 bytes .* raise cpu_bytes_to_use"):
        shared_tier_of(config, vllm_config_of(folder), [65537])


def test_engine_that_asks_for_another_size_is_told_both(make_sharing: Make) -> None:
    make_sharing()
    with pytest.raises(ConfigError, match=r"16 chunks .* 8 chunks|8 chunks .* 16 chunks"):
        make_sharing({"cpu_bytes_to_use": 8 * 64 * 1024})
