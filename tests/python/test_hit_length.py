# SPDX-License-Identifier: Apache-2.0
"""The tier's hits are as long as vLLM's own coordinator would find them if its pool held the same blocks."""

import itertools
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from event_mirror import EventMirror
from harness import ToyEngine
from random_lives import NUM_TOKENS, random_prompts
from scenarios import CHUNKED, HYBRID, RECURRENT, STORE_ALL, Make
from vllm.config import VllmConfig
from vllm.v1.core.block_pool import BlockHashToBlockMap
from vllm.v1.core.kv_cache_utils import KVCacheBlock, make_block_hash_with_group_id
from vllm.v1.core.single_type_kv_cache_manager import (
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from vllm.v1.request import Request

# By kinds of layers: every one that kvferry keeps, alone and together; those of "h" have blocks of twice the tokens.
PATTERNS = ["f", "w", "c", "m", "s", "fw", "fc", "mw", "fs", "ws", "ms", "fwc", "fws", "fcs", "hw", "hww"]
# Those that vLLM has with decode context parallelism, and how many ranks divide a block.
DIVIDED = [("f", 2), ("m", 4), ("mM", 2), ("fs", 2), ("fs", 4), ("ms", 2)]
# Those with windows of which vLLM keeps more than a token sees, and how many tokens more: a block's, or none's.
KEPT_LONGER = [("w", 2), ("fw", 10), ("mw", 26), ("hww", 10)]


@pytest.fixture(autouse=True)
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events name blocks by what the pool finds them by."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


@contextmanager
def pool_with(engine: ToyEngine, held: dict[int, set[bytes]]) -> Iterator[None]:
    """Let vLLM's pool find these blocks, by KV cache group, and no others.

    vLLM may end its own hits in the middle of a block. A connector is asked for whole ones.
    """
    pool, coordinator = engine.scheduler.kv_cache_manager.block_pool, engine.scheduler.kv_cache_manager.coordinator
    blocks = BlockHashToBlockMap()
    for number, (group, block_hash) in enumerate((group, one) for group, hashes in held.items() for one in hashes):
        blocks.insert(make_block_hash_with_group_id(block_hash, group), KVCacheBlock(number + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "cached_block_hash_to_block", blocks)
        patch.setattr(coordinator, "enable_partial_hash_hits", False)
        for manager in coordinator.single_type_managers:
            if isinstance(manager, SlidingWindowManager):
                # vLLM's own hits do without what no token sees. A load has to bring all for which it has blocks.
                need, more = SlidingWindowManager._contiguous_blocks_for_hit, manager.extra_retained_tokens
                patch.setattr(
                    SlidingWindowManager,
                    "_contiguous_blocks_for_hit",
                    lambda window_size, *rest, need=need, more=more, **named: need(window_size + more, *rest, **named),
                )
                break
        yield


def expected_length(engine: ToyEngine, request: Request, held: dict[int, set[bytes]], num_local: int) -> int:
    """Tokens behind the local ones, by vLLM's coordinator."""
    num_groups = len(engine.kv_cache_config.kv_cache_groups)
    local = set(request.block_hashes[: num_local // engine.hash_tokens])
    both = {group: held.get(group, set()) | local for group in range(num_groups)}
    coordinator = engine.scheduler.kv_cache_manager.coordinator
    with pool_with(engine, both):
        longest = int(coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens)[1])
        if longest == request.num_tokens and not may_step_back(coordinator.single_type_managers, longest):
            longest = int(coordinator.find_longest_cache_hit(request.block_hashes, longest - 1)[1])
    return max(0, longest - num_local)


def may_step_back(managers: Iterable[SingleTypeKVCacheManager], num_tokens: int) -> bool:
    """Whether the last token sees no block that vLLM's managers drop when it is computed, and no state."""
    return all(
        not isinstance(manager, MambaManager)
        and manager.get_num_skipped_tokens(num_tokens - 1) // manager.block_size
        == manager.get_num_skipped_tokens(num_tokens) // manager.block_size
        for manager in managers
    )


def assert_same_lengths(engine: ToyEngine, mirror: EventMirror, requests: list[Request]) -> int:
    """Compare all requests, with none to all of their blocks in the engine's own cache; how many have a hit."""
    side = engine.scheduler.connector.scheduler_side
    num_hits = 0
    for request in requests:
        side.on_new_request(request)
        for num_local in range(0, len(request.block_hashes) * engine.hash_tokens + 1, engine.hit_tokens):
            found = side.engine.lookup(request.request_id, request.block_hashes, num_local, request.num_tokens)
            expected = expected_length(engine, request, mirror.held, num_local)
            assert found == expected, f"{request.request_id} behind {num_local} tokens"
            num_hits += found > 0
        side.on_finished(request)
    return num_hits


@pytest.mark.parametrize(("pattern", "num_unseen"), KEPT_LONGER)
def test_hits_have_all_that_vllm_keeps_of_a_window(
    make: Make, pattern: str, num_unseen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drafters of several modules make vLLM do so; it calls them the tokens that are computed again.
    monkeypatch.setattr(VllmConfig, "num_prefill_lookahead_tokens", num_unseen + 1)
    test_hits_are_as_long_as_vllm_would_find_them(make, pattern, 1)


@pytest.mark.parametrize(("pattern", "num_ranks"), [*((pattern, 1) for pattern in PATTERNS), *DIVIDED])
def test_hits_are_as_long_as_vllm_would_find_them(make: Make, pattern: str, num_ranks: int) -> None:
    num_hits = num_evicted = 0
    for seed in range(4):
        rng = random.Random(seed)
        # Evictions and copies that fail leave holes anywhere.
        link = {"order": "shuffled", "jitter_us": 300, "fail_probability": 0.2, "seed": seed}
        spec = {**(CHUNKED if "c" in pattern else HYBRID), "num_blocks": 49}
        # Layers of "h" have half the bytes of others.
        tier_bytes = (20 if "h" in pattern else 30) * 6144
        if "s" in pattern:
            # States are few and small: four layers of 64 bytes.
            spec |= RECURRENT | {"retention_interval": None}
            tier_bytes = 16 * 4 * 64 if pattern == "s" else 12 * 6144
        spec["layer_pattern"] = pattern
        # A block has as many more tokens, and each rank as many bytes of it as without.
        spec |= {"num_context_ranks": num_ranks, "world_size": num_ranks, "max_model_len": num_ranks * 200}
        spec["max_num_batched_tokens"] = num_ranks * spec.get("max_num_batched_tokens", 256)
        extra = {
            "cpu_bytes_to_use": num_ranks * tier_bytes,
            "host_link": link,
            "retention": "dense" if seed % 2 else "engine",
        }
        engine = make({**extra, **STORE_ALL}, kv_events=True, **spec)
        mirror = EventMirror(engine)
        prompts = random_prompts(rng, 16 * num_ranks)
        ids = itertools.count()
        for _ in range(6):
            names = rng.sample(sorted(prompts), 4)
            engine.generate({f"r{next(ids)}": prompts[name] for name in names}, max_tokens=NUM_TOKENS)
            engine.settle_stores()
            view = engine.snapshot()
            assert mirror.num_held() == view["num_evictable"] + view["num_leased"]
            requests = [engine.make_request(f"probe{next(ids)}", prompt) for prompt in prompts.values()]
            num_hits += assert_same_lengths(engine, mirror, requests)
        num_evicted += view["num_evicted_total"]
    assert num_hits > 20
    # With chunks alone nothing but a prompt's last chunk is ever computed.
    assert num_evicted > 20 or pattern == "c"
