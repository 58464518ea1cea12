# SPDX-License-Identifier: Apache-2.0
"""Kill -9 of a server while it stores into a tier that it shares: the other one, and its successor, go on with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .http_clients import Answer, Patience, ask
from .parallel_engines import NUM_PROMPTS, PROMPT_BLOCKS, count, has_no_transfer, make_requests
from .server_process import Metrics, ServerEnd
from .shared_memory import remove_what_the_dead_left, shared_memory, tier_file
from .test_shared_tier import kvferry
from .vllm_server import VllmServer

NUM_BLOCKS = NUM_PROMPTS * PROMPT_BLOCKS
# A prompt's blocks take half a second: the last one's are on the link when its answer is complete.
SLOW_STORES = {"d2h_gb_s": 0.02}


@dataclasses.dataclass
class Deaths:
    """What the one that was killed had answered, and the two that lived."""

    path: Path
    killed: list[Answer]
    figures: dict[str, int]
    survivor: list[Answer]
    survivor_metrics: Metrics
    survivor_end: ServerEnd
    successor: list[Answer]
    successor_metrics: Metrics
    successor_end: ServerEnd


def ask_all(server: VllmServer) -> list[Answer]:
    """Ask every prompt, one after the other."""
    requests = make_requests()
    return [ask(server.url, requests, [(index, Patience())])[0] for index in range(NUM_PROMPTS)]


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tier_file("e2e-deaths") as path:
        yield path


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Deaths:
    tier: dict[str, Any] = {"cpu_bytes_to_use": "128MiB", "min_load_tokens": 0, "shared_path": str(path)}
    servers: list[VllmServer] = []

    def start(name: str, **more: Any) -> VllmServer:
        servers.append(VllmServer(tmp_path_factory.mktemp(name), tier | more, "--shutdown-timeout", "30"))
        return servers[-1]

    try:
        survivor = start("survivor")
        before = shared_memory()
        victim = start("victim", host_link=SLOW_STORES)
        killed = ask_all(victim)
        victim.kill()
        remove_what_the_dead_left(before)
        figures = json.loads(kvferry("tier", "inspect", str(path), "--json"))["figures"]
        survived = ask_all(survivor)
        survivor_metrics = survivor.await_metrics("no transfer is left", has_no_transfer)
        successor = start("successor")
        succeeded = ask_all(successor)
        successor_metrics = successor.await_metrics("no transfer is left", has_no_transfer)
        survivor_end = survivor.stop()
        return Deaths(
            path, killed, figures, survived, survivor_metrics, survivor_end, succeeded, successor_metrics,
            successor.stop(),
        )  # fmt: skip
    finally:
        for server in servers:
            server.kill()


def test_every_server_gives_the_same_tokens(deaths: Deaths) -> None:
    for answers in (deaths.killed, deaths.survivor, deaths.successor):
        assert [answer.error for answer in answers] == [None] * NUM_PROMPTS
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in deaths.killed]


def test_what_it_had_stored_is_served_and_what_it_was_storing_is_not(deaths: Deaths) -> None:
    assert deaths.figures["slots/filling"] + deaths.figures["slots/quarantined"] > 0, deaths.figures
    assert PROMPT_BLOCKS <= count(deaths.survivor_metrics, "found_foreign_blocks") < NUM_BLOCKS, deaths.figures
    # Between them the tier has all of it again.
    assert count(deaths.successor_metrics, "hit_tokens") > count(deaths.survivor_metrics, "hit_tokens")
    for metrics in (deaths.survivor_metrics, deaths.successor_metrics):
        assert count(metrics, "failed_loads") == count(metrics, "failed_stores") == 0


def test_the_others_end_well_and_the_last_leaves_nothing(deaths: Deaths) -> None:
    deaths.survivor_end.assert_well()
    deaths.successor_end.assert_well()
    assert not deaths.path.exists()
