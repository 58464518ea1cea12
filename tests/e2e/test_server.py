# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` over HTTP: clients that come at once and share prefixes, a third of whom go away at random moments."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from kvferry import recordings

from .crowds import STAYS, make_crowd, make_long, make_round
from .engine_runs import BLOCK_TOKENS, EngineRunner
from .http_clients import TIMEOUT_S, Answer, Patience, ask
from .served_checks import assert_metrics_of_idle_agree, is_idle, settle
from .server_process import Metrics, ServerEnd
from .storm_checks import compare_with_alone
from .test_shared_tier import kvferry
from .vllm_server import VllmServer

NUM_CLIENTS = 24
NUM_ROUNDS = 2
NUM_FAMILIES = 8
PREFIX_BLOCKS = 12
# Prompts that each fill more than half of the server's pool of 100 blocks: two push a third out.
LONG_BLOCKS = 59
NUM_LONG = 3
# A long prompt's load takes more than half a second.
TIER = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0, "host_link": {"h2d_gb_s": 0.02}}
# Of a request that is not to be stored. The other wish cannot be read.
WISHES = {"do_not_store": True, "max_load_tokens": -1}
# Of a session that says that it goes on, and then that it is over.
SESSION = "agent-7"
RETAIN, RELEASE = "retain", "release"
# How often a client goes away in the middle of a load, until it is seen that it did.
NUM_TRIES = 10


def make_requests(seed: int) -> list[dict[str, Any]]:
    """Those of the clients, in families with shared prefixes, the long ones, and one that is not to be stored."""
    rng = random.Random(seed)
    crowd = make_crowd(rng, NUM_CLIENTS, num_families=NUM_FAMILIES, prefix_blocks=PREFIX_BLOCKS)
    *long, unwanted = make_long(rng, NUM_LONG + 1, LONG_BLOCKS)
    return [*crowd, *long, {**unwanted, "kv_transfer_params": WISHES}]


def hinting(request: dict[str, Any], action: str) -> dict[str, Any]:
    """The request as one of the session's, with a hint in vLLM's envelope."""
    hint = {"action_id": "1", "action_type": action, "action_version": "1", "payload": {}}
    envelope = {"protocol_version": "1", "message_id": "1", "actions": [hint]}
    return {**request, "kv_transfer_params": {"session_id": SESSION, "kv_hints": envelope}}


def num_never_run(metrics: Metrics) -> float:
    """Tokens whose load was planned and whose request never ran: it was aborted while it loaded."""
    ran = metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"]
    return metrics["vllm:kvferry_hit_tokens_total"][""] - ran


@dataclasses.dataclass
class Visit:
    """Everything that clients saw of one server, and what it left."""

    answers: list[Answer]
    metrics: Metrics
    num_stored_unwanted: float
    num_left_while_loading: int
    promised: Metrics
    released: Metrics
    cached_of_long: int
    story_of_long: dict[str, Any]
    bench: subprocess.CompletedProcess[str]
    end: ServerEnd


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_requests(seed=12)


@pytest.fixture(scope="module")
def visit(tiny_model: Path, requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    arguments = ["--shutdown-timeout", "30", "--enable-prompt-tokens-details"]
    server = VllmServer(tmp_path_factory.mktemp("server"), TIER, *arguments, is_cold=True)
    try:
        return use(server, requests, tiny_model)
    finally:
        server.kill()


def use(server: VllmServer, requests: list[dict[str, Any]], model: Path) -> Visit:
    rng = random.Random(3)
    answers = [answer for _ in range(NUM_ROUNDS) for answer in ask(server.url, requests, make_round(rng, NUM_CLIENTS))]
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

    def settled() -> Metrics:
        return settle(server, lambda: answers.extend(ask(server.url, requests, [(0, STAYS)])))

    answers += ask(server.url, requests, [(0, STAYS)])
    before = settled()["vllm:kvferry_stored_blocks_total"][""]
    answers += ask(server.url, requests, [(NUM_CLIENTS + NUM_LONG, STAYS)])
    num_stored_unwanted = settled()["vllm:kvferry_stored_blocks_total"][""] - before
    long_id, cached_of_long = cached_tokens(server, requests[long[0]])
    story_of_long = story_of(server, long_id)
    answers += ask(server.url, [hinting(requests[0], RETAIN)], [(0, STAYS)])
    promised = settled()
    answers += ask(server.url, [hinting(requests[0], RELEASE)], [(0, STAYS)])
    released = settled()
    bench = run_bench(server, model)
    return Visit(
        answers, settled(), num_stored_unwanted, num_left, promised, released, cached_of_long, story_of_long, bench,
        server.stop(),
    )  # fmt: skip


def cached_tokens(server: VllmServer, request: dict[str, Any]) -> tuple[str, int]:
    """The answer's id, and what its usage says of the prompt: tokens that were not computed."""
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", **request}, timeout=TIMEOUT_S).json()
    return answer["id"], int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def story_of(server: VllmServer, request_id: str) -> dict[str, Any]:
    """What `kvferry why` says of a request while the server lives; its engine's own id has more than the answer's."""
    [pid] = [one.pid for one in recordings.find() if one.is_alive and os.getsid(one.pid) == server.process.pid]
    [story] = json.loads(kvferry("why", request_id, "--engine", str(pid), "--json"))
    return dict(story)


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
    tiny_runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error] == []
    comparison = compare_with_alone(tiny_runner, visit.answers, requests)
    # Those who look at the clock may be too late, and half of those who count tokens if a whole answer comes at once.
    assert comparison.num_aborted >= NUM_ROUNDS * NUM_CLIENTS // 12
    assert comparison.num_finished >= NUM_ROUNDS * NUM_CLIENTS * 2 // 3


def test_a_client_went_away_while_its_blocks_were_loaded(visit: Visit) -> None:
    assert visit.num_left_while_loading > 0, visit.metrics


def test_a_request_that_is_not_to_be_stored_is_not_and_a_wish_that_cannot_be_read_costs_a_line(visit: Visit) -> None:
    assert visit.num_stored_unwanted == 0
    (line,) = [line for line in visit.end.log.splitlines() if "kv_transfer_params" in line and "WARNING" in line]
    assert "max_load_tokens is -1; allowed is a number of tokens, 0 or more" in line


def test_what_a_client_says_of_its_blocks_is_followed(visit: Visit) -> None:
    num_blocks = visit.promised["vllm:kvferry_promised_blocks"][""]
    assert num_blocks >= PREFIX_BLOCKS
    assert visit.promised["vllm:kvferry_promises"][""] == 1
    assert visit.released["vllm:kvferry_promised_blocks"][""] == visit.released["vllm:kvferry_promises"][""] == 0
    told = visit.released["vllm:kvferry_hints_total"]
    assert (told[RETAIN], told[RELEASE]) == (1, 1)


def test_the_tier_served_blocks_and_no_copy_failed(runner: EngineRunner, visit: Visit) -> None:
    counts = {name.removeprefix("vllm:kvferry_"): values for name, values in visit.metrics.items()}
    assert visit.metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"] > 0
    assert counts["hit_tokens_total"][""] > 0
    assert counts["rank_stored_bytes_total"]["0"] >= counts["stored_blocks_total"][""] * runner.block_bytes > 0
    assert counts["rank_loaded_bytes_total"]["0"] >= counts["loaded_blocks_total"][""] * runner.block_bytes > 0
    for name in ("queue_seconds", "device_seconds"):
        assert all(counts[f"{name}_count"][kind] > 0 for kind in ("store", "load"))
        assert counts[f"{name}_bucket"]["load +Inf"] == counts[f"{name}_count"]["load"]


def test_an_answers_usage_has_what_came_from_the_tier(visit: Visit) -> None:
    assert visit.cached_of_long == LONG_BLOCKS * BLOCK_TOKENS


def test_why_says_where_its_tokens_came_from(visit: Visit) -> None:
    lookup = [one for one in visit.story_of_long["lookups"] if one["num_found"] is not None][-1]
    [load] = visit.story_of_long["loads"]
    assert load["fate"] == "loaded"
    assert load["num_tokens"] == lookup["num_found"] > 0
    assert lookup["num_local_tokens"] + lookup["num_found"] == visit.cached_of_long
    assert visit.story_of_long["finished_ns"] > load["ended_ns"] > load["begun_ns"] >= lookup["at_ns"]


def test_hits_are_counted_by_where_they_were_found(visit: Visit) -> None:
    by_source = visit.metrics["vllm:prompt_tokens_cached_by_source_total"]
    assert by_source["host"] == visit.metrics["vllm:external_prefix_cache_hits_total"][""] > 0
    assert by_source["device"] == visit.metrics["vllm:prefix_cache_hits_total"][""] > 0
    assert by_source["external_unspecified"] == 0


def test_the_lines_of_the_log_have_what_vllm_counted(visit: Visit) -> None:
    lines = re.findall(
        r"kvferry: (\d+) s: ([\d,]+) prompt tokens: (\d+) % found in the GPU's cache, (\d+) % loaded from the tier"
        r"(?: \(about ([\d.]+) s of prefill saved\))?.*; tier (\d+) % full",
        visit.end.log,
    )
    asked = [int(line[1].replace(",", "")) for line in lines]
    assert sum(asked) == visit.metrics["vllm:prefix_cache_queries_total"][""]

    def tokens(column: int) -> float:
        return sum(num * int(line[column]) / 100 for num, line in zip(asked, lines, strict=True))

    rounding = sum(asked) / 200
    assert abs(tokens(2) - visit.metrics["vllm:prefix_cache_hits_total"][""]) <= rounding
    ran = visit.metrics["vllm:prompt_tokens_by_source_total"]["external_kv_transfer"]
    planned = visit.metrics["vllm:kvferry_hit_tokens_total"][""]
    assert ran - rounding <= tokens(3) <= planned + rounding
    assert any(line[4] for line in lines), "by the engine's own rate"
    assert all(0 < int(line[5]) <= 100 for line in lines)


def test_the_metrics_of_the_idle_server_agree(visit: Visit) -> None:
    metrics = visit.metrics
    assert_metrics_of_idle_agree(metrics)
    blocks = metrics["vllm:kvferry_tier_blocks"]
    assert sum(blocks.values()) == metrics["vllm:kvferry_tier_ready_blocks"][""]
    assert blocks["evictable"] <= metrics["vllm:kvferry_stored_blocks_total"][""]
    finished = sum(answer.finish_reason == "length" for answer in visit.answers)
    assert metrics["vllm:request_success_total"]["length"] >= finished


def test_vllms_own_benchmark_client_is_served(visit: Visit) -> None:
    assert visit.bench.returncode == 0, visit.bench.stdout + visit.bench.stderr
    assert re.search(r"Successful requests:\s+16\b", visit.bench.stdout), visit.bench.stdout


def test_the_server_says_no_error_and_ends_when_it_is_told_to(visit: Visit) -> None:
    visit.end.assert_well()
