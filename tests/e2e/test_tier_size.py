# SPDX-License-Identifier: Apache-2.0
"""A tier that is halved and grown while the real engine serves: right tokens, no error, memory that really goes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kvferry import engines

from .conftest import StormReference
from .crowds import make_crowd, make_round
from .engine_runs import STORE_ALL, EngineRunner, settle
from .http_clients import Answer, ask
from .idle_checks import assert_nothing_is_kept
from .server_process import ServerEnd
from .shared_memory import processes
from .storm_checks import ABORT_CHANCES, FLOAT_NOISE, MAX_MODEL_LEN, compare, compare_with_alone, storm
from .vllm_server import VllmServer

NUM_SLOTS = 96
WINDOW = 24
LINK = {"bandwidth_gb_s": 0.5, "latency_us": 5_000, "jitter_us": 20_000, "order": "shuffled", "fail_probability": 0.05}

MIB = 1 << 20
TIER_MIB = 96
NUM_CLIENTS = 12
NUM_FAMILIES = 4


@pytest.fixture(scope="module", params=["sync_scheduling", "async_scheduling"])
def result(
    runner: EngineRunner, storm_reference: StormReference, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """One storm on an engine whose tier is too small, and is resized every few steps."""
    seed = storm_reference.seed
    script = {
        "storm": storm(
            storm_reference.crowd, window=WINDOW, abort_chances=ABORT_CHANCES, follow_chance=0.8, resize_chance=0.1,
            seed=seed,
        ),
        "settled": settle(),
        "after": {"op": "inspect"},
    }  # fmt: skip
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": NUM_SLOTS * runner.block_bytes,
        "cpu_bytes_limit": NUM_SLOTS * runner.block_bytes * 3 // 2,
        "pinned_piece_bytes": 4 * runner.block_bytes,
        "host_link": {**LINK, "seed": seed},
        **STORE_ALL,
    }
    return runner.run_named(
        script,
        runner.kv_config(failure_policy="recompute", **extra),
        num_gpu_blocks=30,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        async_scheduling=request.param == "async_scheduling",
    )


def test_tokens_are_those_of_an_engine_without_tier(
    result: dict[str, dict[str, Any]], storm_reference: StormReference
) -> None:
    crowd = storm_reference.crowd
    comparison = compare(result["storm"], storm_reference.results["crowd"], crowd, FLOAT_NOISE)
    print(f"{comparison}; {result['storm']['seen']}; {result['after']['tier']}")
    assert comparison.num_near_ties <= 0.02 * len(crowd)
    assert result["storm"]["counters"]["external_kv_transfer"] > 0


def test_the_tier_had_many_sizes_while_blocks_were_on_their_way(result: dict[str, dict[str, Any]]) -> None:
    seen = Counter(result["storm"]["seen"])
    assert seen["sizes"] > 5
    assert seen["resizes while loading"] > 0
    assert seen["resizes while storing"] > 0


def test_the_engine_ends_idle_and_nothing_is_kept(result: dict[str, dict[str, Any]]) -> None:
    assert_nothing_is_kept(result["after"])


def resident_bytes(session: int) -> tuple[int, int]:
    """What of a server's memory is its arena, and all that the rank's process has of its own."""
    found = []
    for process in processes(session):
        pid = int(process.name)
        with contextlib.suppress(OSError):
            found += [(arena, rss_anon(pid)) for arena in arenas_of(pid)]
    (one,) = found
    return one


def kilobytes_of(name: str, text: str) -> int:
    """What a file of ``/proc`` says of that name."""
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None, f"no {name} in:\n{text}"
    return int(found[1])


def arenas_of(pid: int) -> list[int]:
    """Bytes that are resident of mappings as large as the tier can be."""
    limit = TIER_MIB * 3 // 2 * MIB
    found = []
    # Neighbours of one kind are one mapping; the arena's has room for a huge page more at its ends.
    for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text()):
        size, resident = (kilobytes_of(name, area) << 10 for name in ("Size", "Rss"))
        if limit <= size <= limit + 8 * MIB:
            found.append(resident)
    return found


@dataclasses.dataclass
class Visit:
    """What was seen of one server, by size of the tier in MiB."""

    answers: list[Answer]
    resident: dict[int, int]
    own_memory: dict[int, int]
    told: dict[int, subprocess.CompletedProcess[str]]
    end: ServerEnd


def rss_anon(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return kilobytes_of("RssAnon", status) << 10


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_crowd(random.Random(5), NUM_CLIENTS, num_families=NUM_FAMILIES, prefix_blocks=12)


@pytest.fixture(scope="module")
def visit(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    tier = {
        "cpu_bytes_to_use": f"{TIER_MIB}MiB", "cpu_bytes_limit": f"{TIER_MIB * 3 // 2}MiB",
        "pinned_piece_bytes": "1MiB", "min_load_tokens": 0,
    }  # fmt: skip
    server = VllmServer(
        tmp_path_factory.mktemp("server"), tier, "--shutdown-timeout", "30", "--num-gpu-blocks-override", "66",
    )  # fmt: skip
    try:
        return use(server, requests)
    finally:
        server.kill()


def use(server: VllmServer, requests: list[dict[str, Any]]) -> Visit:
    answers: list[Answer] = []
    stop = threading.Event()

    def serve() -> None:
        rng = random.Random(1)
        while not stop.is_set():
            answers.extend(ask(server.url, requests, make_round(rng, NUM_CLIENTS)))

    clients = threading.Thread(target=serve)
    clients.start()
    try:
        full = TIER_MIB * 3 // 2
        server.await_metrics(
            "the tier is ready",
            lambda found: found["vllm:kvferry_tier_ready_blocks"][""] == found["vllm:kvferry_tier_size_blocks"][""] > 0,
        )
        server.await_metrics("prompts are loaded", lambda found: found["vllm:kvferry_hit_tokens_total"][""] > 0)
        (pid,) = [engine.state.pid for engine in engines.living() if os.getsid(engine.state.pid) == server.process.pid]
        session = server.process.pid
        seen = {TIER_MIB: resident_bytes(session)}
        told = {}
        for size in (TIER_MIB // 2, full, TIER_MIB // 2 + 1, TIER_MIB):
            told[size] = resize(size, pid)
            seen.setdefault(size, resident_bytes(session))
    finally:
        stop.set()
        clients.join()
    resident = {size: arena for size, (arena, _) in seen.items()}
    own_memory = {size: own for size, (_, own) in seen.items()}
    return Visit(answers, resident, own_memory, told, server.stop())


def resize(size: int, pid: int) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-c", "from kvferry.cli import main; main()", "tier", "resize", f"{size}MiB",
        "--engine", str(pid), "--over", "2",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_no_request_fails_and_all_get_their_tokens(
    tiny_runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]
) -> None:
    assert [answer for answer in visit.answers if answer.error] == []
    comparison = compare_with_alone(tiny_runner, visit.answers, requests)
    assert comparison.num_finished > 0
    visit.end.assert_well()


def test_the_memory_is_the_machines_again(visit: Visit) -> None:
    print(visit.resident, visit.own_memory)
    for size, told in visit.told.items():
        assert told.returncode == 0, told
        assert "the tier has" in told.stdout
        # Within a piece, and a block that does not fill one.
        assert visit.resident[size] == pytest.approx(size * MIB, abs=2 * MIB), size
    # The whole process, which has more to remember with every request.
    assert visit.own_memory[TIER_MIB * 3 // 2] - visit.own_memory[TIER_MIB // 2] > 0.7 * TIER_MIB * MIB
