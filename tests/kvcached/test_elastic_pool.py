# SPDX-License-Identifier: Apache-2.0
"""Stores and loads while kvcached takes the memory of freed blocks away at once."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic import COMPOUND_BYTES, StandIn, elastic_engine, elastic_spec, expected_without_kvcached
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import PROMPTS, SLOW_STORES, again

EXTRA = {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0}


def extra(link: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return EXTRA | ({"host_link": link} if link is not None else {}) | more


def test_blocks_that_are_free_read_zero_at_once(folder: Path, device: StandIn) -> None:
    # What makes the tests behind this one hard: without it they would show nothing.
    with elastic_engine(folder, elastic_spec(extra_config=None)) as engine:
        engine.add("a", PROMPTS["a"])
        engine.step()
        tensor = next(iter(engine.workers[0].kv_caches.values()))
        held = [block.block_id for block in engine.scheduler.kv_cache_manager.block_pool.blocks if block.ref_cnt > 0]
        assert all(tensor[block].any() for block in held[:6])
        num_unmaps, used = device.num_unmaps(), device.used_bytes()
        engine.run()
        assert device.num_unmaps() > num_unmaps
        assert device.used_bytes() < used
        assert not any(tensor[block].any() for block in held[4:])


def test_stores_have_what_their_step_computed_though_the_pages_are_gone(folder: Path, device: StandIn) -> None:
    expected = expected_without_kvcached(folder, PROMPTS)
    with elastic_engine(folder, elastic_spec(extra_config=extra(SLOW_STORES, staging_bytes=64 * 6144))) as engine:
        idle = device.used_bytes()
        assert engine.generate(PROMPTS) == expected
        # The copies have hardly begun, and nothing is held for them.
        assert engine.snapshot()["num_stores_in_flight"] > 0
        assert engine.num_held_blocks == 0
        assert device.used_bytes() == idle
        engine.settle_stores()
        tokens = engine.generate(again("2"))
        assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
        assert [engine.external_hit_tokens[request_id + "2"] for request_id in PROMPTS] == [96, 144, 32]
        assert engine.failed_loads == []


@pytest.mark.parametrize("seed", range(8))
def test_random_lives_get_their_tokens(folder: Path, device: StandIn, seed: int) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_without_kvcached(folder, prompts, NUM_TOKENS)
    link = random_link(rng, seed)
    spec = elastic_spec(num_blocks=37, extra_config=extra(link, cpu_bytes_to_use=2 * 30 * 6144, staging_bytes=8 * 6144))
    with elastic_engine(folder, spec) as engine:
        idle, num_unmaps = device.used_bytes(), device.num_unmaps()
        live(engine, rng, prompts, expected, str(link))
        engine.settle_stores()
        assert engine.num_held_blocks == 0
        assert device.used_bytes() == idle
        assert device.num_unmaps() > num_unmaps
        assert engine.snapshot()["stored"] > 0


def test_request_that_finds_no_memory_waits_until_it_returns(folder: Path, device: StandIn) -> None:
    expected = expected_without_kvcached(folder, PROMPTS)
    with elastic_engine(folder, elastic_spec(extra_config=extra())) as engine:
        assert engine.generate(PROMPTS) == expected
        engine.settle_stores()
        # Another process has it all, though kvcached may not have looked since.
        device.take(1 << 40)
        try:
            requests = [engine.add(request_id, prompt) for request_id, prompt in again("2").items()]
            for _ in range(50):
                engine.step()
            assert not any(request.is_finished() for request in requests)
        finally:
            device.take(-(1 << 40))
        engine.run()
        assert [engine.finished[request_id + "2"].tokens for request_id in PROMPTS] == list(expected.values())
        assert sum(engine.external_hit_tokens.values()) > 0
        engine.settle_stores()
        assert engine.num_held_blocks == 0


def test_two_engines_that_fight_for_one_device_serve_all_their_requests(tmp_path: Path) -> None:
    # kvcached#262: what is free when an engine looks is gone when it takes it.
    small = {
        "FAKE_VMM_FILE": str(tmp_path / "device"),
        # Each has a zero page and the null block's; there are six more for both.
        "FAKE_VMM_BYTES": str((2 * 2 + 6) * COMPOUND_BYTES),
    }
    peers = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("instance.py")), str(seed), str(tmp_path / f"model{seed}")],
            env=os.environ | small | {"KVCACHED_IPC_NAME": f"kvferry_peer_{os.getpid()}_{seed}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    misses = 0
    for peer in peers:
        out, err = peer.communicate(timeout=300)
        assert peer.returncode == 0, err[-3000:]
        said = json.loads(out.splitlines()[-1])
        assert (said["finished"], said["right"], said["num_held"]) == (24, 24, 0), said
        assert said["hits"] > 0, said
        misses += said["misses"]
    assert misses > 0, "there was memory for all: nothing was shown"
