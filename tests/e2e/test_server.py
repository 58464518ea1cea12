# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` over HTTP: clients that come at once and share prefixes, a third of whom go away at random moments."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner
from .http_clients import Answer, Patience, ask
from .storm_checks import FLOAT_NOISE, compare, storm
from .vllm_server import Metrics, ServerEnd, VllmServer

NUM_CLIENTS = 24
NUM_ROUNDS = 2
NUM_FAMILIES = 8
PREFIX_BLOCKS = 12
# Prompts that each fill more than half of the server's pool of 100 blocks: two push a third out.
LONG_BLOCKS = 59
NUM_LONG = 3
# A long prompt's load takes more than half a second.
TIER = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0, "host_link": {"h2d_gb_s": 0.02}}
# How often a client goes away in the middle of a load, until it is seen that it did.
NUM_TRIES = 10
STAYS = Patience()


def make_requests(seed: int) -> list[dict[str, Any]]:
    """Those of the clients, in families with shared prefixes, and the long ones."""
    rng = random.Random(seed)

    def tokens(num_tokens: int) -> list[int]:
        return [rng.randrange(256) for _ in range(num_tokens)]

    prefixes = [tokens(PREFIX_BLOCKS * BLOCK_TOKENS) for _ in range(NUM_FAMILIES)]
    crowd = [
        {"prompt": prefixes[index % NUM_FAMILIES] + tokens(rng.choice([1, 40, 90, 150])), "max_tokens": 32}
        for index in range(NUM_CLIENTS)
    ]
    return crowd + [{"prompt": tokens(LONG_BLOCKS * BLOCK_TOKENS + 1), "max_tokens": 4} for _ in range(NUM_LONG)]


def make_round(rng: random.Random) -> list[tuple[int, Patience]]:
    """All clients in any order; a third goes away, half of it by the clock and half in the middle of the answer."""
    order = rng.sample(range(NUM_CLIENTS), NUM_CLIENTS)
    impatient = [Patience(seconds=rng.uniform(0, 1.5)) for _ in range(NUM_CLIENTS // 6)]
    impatient += [Patience(num_tokens=rng.randint(1, 16)) for _ in range(NUM_CLIENTS // 6)]
    return list(zip(order, impatient + [STAYS] * (NUM_CLIENTS - len(impatient)), strict=True))


def num_never_run(metrics: Metrics) -> float:
    """Tokens whose load was planned and whose request never ran: it was aborted while it loaded."""
    ran = metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"]
    return metrics["vllm:kvferry_hit_tokens_total"][""] - ran


def is_idle(metrics: Metrics) -> bool:
    """Whether no request is left, and no load: an engine makes steps until its loads have ended, not so for stores."""
    names = ("num_requests_running", "num_requests_waiting", "kvferry_loads_in_flight", "kv_cache_usage_perc")
    return all(metrics[f"vllm:{name}"][""] == 0 for name in names)


def has_settled(metrics: Metrics) -> bool:
    return is_idle(metrics) and metrics["vllm:kvferry_stores_in_flight"][""] == 0


@dataclasses.dataclass
class Visit:
    """Everything that clients saw of one server, and what it left."""

    answers: list[Answer]
    metrics: Metrics
    num_left_while_loading: int
    bench: subprocess.CompletedProcess[str]
    end: ServerEnd


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_requests(seed=12)


@pytest.fixture(scope="module")
def visit(tiny_model: Path, requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    server = VllmServer(tmp_path_factory.mktemp("server"), TIER, "--shutdown-timeout", "30")
    try:
        return use(server, requests, tiny_model)
    finally:
        server.kill()


def use(server: VllmServer, requests: list[dict[str, Any]], model: Path) -> Visit:
    rng = random.Random(3)
    answers = [answer for _ in range(NUM_ROUNDS) for answer in ask(server.url, requests, make_round(rng))]
    long = list(range(NUM_CLIENTS, NUM_CLIENTS + NUM_LONG))
    for index in [*long, long[0]]:  # the first is in the tier alone when it comes again
        answers += ask(server.url, requests, [(index, STAYS)])

    num_left = 0
    for number in range(NUM_TRIES):
        metrics = server.await_metrics("the server is idle", is_idle)
        before_it = num_never_run(metrics)
        answers += ask(server.url, requests, [(long[1 + number % 2], Patience(seconds=0.3))])
        metrics = server.await_metrics("the server is idle", is_idle)
        num_left += num_never_run(metrics) > before_it
        if num_left:
            break
    answers += ask(server.url, requests, [(index, STAYS) for index in long])
    bench = run_bench(server, model)
    for _ in range(NUM_TRIES):  # a store that ends when the engine has no step to make is seen with the next request
        metrics = server.await_metrics("the server is idle", is_idle)
        if has_settled(metrics):
            break
        answers += ask(server.url, requests, [(0, STAYS)])
    return Visit(answers, metrics, num_left, bench, server.stop())


def run_bench(server: VllmServer, model: Path) -> subprocess.CompletedProcess[str]:
    """vLLM's own client program."""
    command = [
        str(Path(sys.executable).with_name("vllm")), "bench", "serve", "--backend", "openai",
        "--base-url", server.url, "--model", "tiny", "--tokenizer", str(model), "--dataset-name", "random",
        "--random-input-len", "200", "--random-output-len", "8", "--num-prompts", "16", "--max-concurrency", "8",
        "--ignore-eos",
    ]  # fmt: skip
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=200, check=False)


def test_clients_get_the_tokens_of_an_engine_without_tier(
    runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error] == []
    reference = runner.run_named(
        {"alone": storm(requests, window=1)}, None, num_gpu_blocks=400, max_model_len=2048, max_num_seqs=1
    )["alone"]
    result = {"lives": [answer.life() for answer in visit.answers]}
    comparison = compare(result, reference, requests, FLOAT_NOISE)
    print(comparison)
    # Those who look at the clock may be too late, and half of those who count tokens if a whole answer comes at once.
    assert comparison.num_aborted >= NUM_ROUNDS * NUM_CLIENTS // 12
    assert comparison.num_finished >= NUM_ROUNDS * NUM_CLIENTS * 2 // 3


def test_a_client_went_away_while_its_blocks_were_loaded(visit: Visit) -> None:
    assert visit.num_left_while_loading > 0, visit.metrics


def test_the_tier_served_blocks_and_no_copy_failed(runner: EngineRunner, visit: Visit) -> None:
    counts = {name.removeprefix("vllm:kvferry_"): values for name, values in visit.metrics.items()}
    assert visit.metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"] > 0
    assert counts["hit_tokens_total"][""] > 0
    assert counts["rank_stored_bytes_total"]["0"] >= counts["stored_blocks_total"][""] * runner.block_bytes > 0
    assert counts["rank_loaded_bytes_total"]["0"] >= counts["loaded_blocks_total"][""] * runner.block_bytes > 0
    for name in ("failed_stores_total", "failed_loads_total"):
        assert counts[name][""] == 0, visit.metrics
    for name in ("queue_seconds", "device_seconds"):
        assert all(counts[f"{name}_count"][kind] > 0 for kind in ("store", "load"))
        assert counts[f"{name}_bucket"]["load +Inf"] == counts[f"{name}_count"]["load"]


def test_the_metrics_of_the_idle_server_agree(visit: Visit) -> None:
    metrics = visit.metrics
    assert has_settled(metrics), metrics
    blocks = metrics["vllm:kvferry_tier_blocks"]
    assert sum(blocks.values()) == metrics["vllm:kvferry_tier_ready_blocks"][""]
    assert metrics["vllm:kvferry_tier_ready_blocks"] == metrics["vllm:kvferry_tier_size_blocks"]
    assert {state for state, count in blocks.items() if count} <= {"free", "evictable"}, blocks
    assert blocks["evictable"] <= metrics["vllm:kvferry_stored_blocks_total"][""]
    assert metrics["vllm:kvferry_tier_awaited_blocks"][""] == 0
    for name in ("staging", "in_flight", "queued"):
        assert metrics[f"vllm:kvferry_rank_{name}_bytes"]["0"] == 0
    assert metrics["vllm:kv_cache_usage_perc"][""] == 0
    finished = sum(answer.finish_reason == "length" for answer in visit.answers)
    assert metrics["vllm:request_success_total"]["length"] >= finished
    assert metrics["vllm:request_success_total"]["error"] == 0


def test_vllms_own_benchmark_client_is_served(visit: Visit) -> None:
    assert visit.bench.returncode == 0, visit.bench.stdout + visit.bench.stderr
    assert re.search(r"Successful requests:\s+16\b", visit.bench.stdout), visit.bench.stdout


def test_the_server_says_no_error_and_ends_when_it_is_told_to(visit: Visit) -> None:
    visit.end.assert_well()
