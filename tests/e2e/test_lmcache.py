# SPDX-License-Identifier: Apache-2.0
"""vLLM with LMCache's own connector, LMCache's server, and kvferry as its L2, in each of LMCache's transfer modes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvferry import tiers

from .conftest import make_model
from .engine_runs import EngineRunner, Prompts, generate, num_tokens_from_tier
from .lmcache_server import CHUNK_TOKENS, LmcacheServer, lmcache_server, metric, site_packages
from .shared_memory import tier_file

PROMPT_TOKENS = 330
NUM_PROMPTS = 6
PAGE_BYTES = 4096
# vLLM computes at least the last token of a prompt itself.
WHOLE_HITS = NUM_PROMPTS * (PROMPT_TOKENS // CHUNK_TOKENS) * CHUNK_TOKENS
ENGINE: dict[str, Any] = {"num_gpu_blocks": 200}
# LMCache's connector holds blocks until they are stored.
EMPTY_ENGINE = {"op": "reset_prefix_cache", "patience_s": 30}


@pytest.fixture(scope="module")
def engines() -> EngineRunner:
    """Runs scripts with LMCache's connector, which vLLM has in itself."""
    return EngineRunner(make_model("tiny-llama"), "LMCacheMPConnector", "")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return Prompts(seed=8).many(NUM_PROMPTS, PROMPT_TOKENS)


@pytest.fixture(scope="module")
def expected(engines: EngineRunner, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens without a connector."""
    tokens: list[list[int]] = engines.run([generate(prompts)], None, **ENGINE).results[0]["tokens"]
    return tokens


def run(engines: EngineRunner, server: LmcacheServer, mode: str, *operations: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of a fresh engine that is connected to the server."""
    kv_config = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": server.port,
            "lmcache.mp.mp_transfer_mode": mode,
        },
    }
    environment = {"KVFERRY_E2E_SITE_PACKAGES": site_packages(), "LMCACHE_TRACK_USAGE": "false"}
    # In one process, vLLM 0.32's search for Triton kernels fails over numba, which LMCache has imported by then.
    return engines.run(list(operations), kv_config, environment=environment, **ENGINE).results


@pytest.mark.parametrize("mode", ["auto", "lmcache_driven"])
def test_hits_come_from_our_l2(
    engines: EngineRunner, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path, mode: str
) -> None:
    with lmcache_server(tmp_path / "log", mode, adapter_params={"capacity": "256MiB"}) as server:
        emptied = {"op": "empty_lmcache_l1", "url": server.url}
        first, done, left, again = run(
            engines, server, mode, generate(prompts), EMPTY_ENGINE, emptied, generate(prompts)
        )
        assert (done, left) == ({"done": True}, {"num_left": 0})
        assert num_tokens_from_tier(first) == 0
        assert num_tokens_from_tier(again) == WHOLE_HITS
        assert first["tokens"] == again["tokens"] == expected
        assert metric(server.url, "lmcache_mp_lookup_hit_l1_keys") == 0
        assert metric(server.url, "lmcache_mp_lookup_hit_l2_keys") == WHOLE_HITS / CHUNK_TOKENS


@pytest.fixture
def tier() -> Iterator[Path]:
    with tier_file("e2e-lmcache") as path:
        yield path


def test_a_killed_servers_chunks_are_served_by_the_next(
    engines: EngineRunner, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path, tier: Path
) -> None:
    params = {"capacity": "256MiB", "shared_path": str(tier)}
    with lmcache_server(tmp_path / "log", "engine_driven", adapter_params=params) as server:
        run(engines, server, "engine_driven", generate(prompts), {"op": "empty_lmcache_l1", "url": server.url})
        server.kill()
        server.start()
        [again] = run(engines, server, "engine_driven", generate(prompts))
        assert again["tokens"] == expected
        assert num_tokens_from_tier(again) == WHOLE_HITS


def flip_a_bit_of_each_page(tier: Path) -> None:
    """Damage everything that a tier holds, and not what it says of that: records lie at the end of a chunk."""
    figures = tiers.inspect(str(tier)).figures
    num_chunks, chunk_bytes = figures["num_chunks"], figures["chunk_bytes"]
    with tier.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        arena = len(content) - num_chunks * chunk_bytes
        for chunk in range(arena, len(content), chunk_bytes):
            for page in range(chunk, chunk + chunk_bytes * 3 // 4, PAGE_BYTES):
                if any(content[page : page + PAGE_BYTES]):
                    content[page + 100] ^= 1


def test_damaged_chunks_are_computed_and_the_log_says_so(
    engines: EngineRunner, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path, tier: Path
) -> None:
    params = {"capacity": "256MiB", "shared_path": str(tier)}
    log = tmp_path / "log"
    with lmcache_server(log, "engine_driven", adapter_params=params) as server:
        run(engines, server, "engine_driven", generate(prompts), {"op": "empty_lmcache_l1", "url": server.url})
        flip_a_bit_of_each_page(tier)
        [again] = run(engines, server, "engine_driven", generate(prompts))
        assert again["tokens"] == expected
        assert num_tokens_from_tier(again) == 0
        assert "is not what was stored: slot" in log.read_text(errors="replace")
        # What was computed is stored again, at other places, and served.
        run(engines, server, "engine_driven", {"op": "empty_lmcache_l1", "url": server.url})
        [stored_again] = run(engines, server, "engine_driven", generate(prompts))
        assert stored_again["tokens"] == expected
        assert num_tokens_from_tier(stored_again) == WHOLE_HITS


def test_what_one_server_stored_another_serves(
    engines: EngineRunner, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path, tier: Path
) -> None:
    params = {"capacity": "256MiB", "shared_path": str(tier)}
    with (
        lmcache_server(tmp_path / "first.log", "engine_driven", adapter_params=params) as first,
        lmcache_server(tmp_path / "second.log", "engine_driven", adapter_params=params) as second,
    ):
        run(engines, first, "engine_driven", generate(prompts), {"op": "empty_lmcache_l1", "url": first.url})
        [again] = run(engines, second, "engine_driven", generate(prompts))
        assert again["tokens"] == expected
        assert num_tokens_from_tier(again) == WHOLE_HITS


def test_lmcaches_own_eviction_is_obeyed(
    engines: EngineRunner, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    # Room for half of the chunks, of which LMCache takes half away once they fill four fifths.
    room_gb = WHOLE_HITS * engines.kv_bytes_per_token / 2 / 1e9
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.5}
    with lmcache_server(
        tmp_path / "log", "auto", adapter_params={"capacity": "256MiB"}, max_capacity_gb=room_gb, eviction=eviction
    ) as server:
        emptied = {"op": "empty_lmcache_l1", "url": server.url}
        evicted = {"op": "await_metric", "url": server.url, "name": "lmcache_mp_l2_evicted_objects_chunks"}
        first, _, _, _, again = run(
            engines, server, "auto", generate(prompts), EMPTY_ENGINE, emptied, evicted,
            generate(prompts, submit="one_by_one"),
        )  # fmt: skip
        assert first["tokens"] == again["tokens"] == expected
        assert num_tokens_from_tier(again) < WHOLE_HITS
