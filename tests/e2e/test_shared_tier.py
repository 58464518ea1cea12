# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with two engines of data parallel that share one tier, and another server behind it that finds it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, generate, settle
from .parallel_engines import ALL_TOKENS, NUM_PROMPTS, PROMPT_BLOCKS, Rounds, count, run_rounds
from .shared_memory import tier_file

NUM_BLOCKS = NUM_PROMPTS * PROMPT_BLOCKS


@dataclasses.dataclass
class Lives:
    """A tier in the life of two servers, and what `kvferry tier` said of it between them and behind."""

    path: Path
    first: Rounds
    between: str
    second: Rounds
    behind: str


def kvferry(*arguments: str) -> str:
    """What the command said, on standard output and as an error."""
    command = [str(Path(sys.executable).with_name("kvferry")), *arguments]
    variables = os.environ | {"COLUMNS": "200"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=variables)
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tier_file("e2e") as path:
        yield path


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Lives:
    tier: dict[str, Any] = {"cpu_bytes_to_use": "128MiB", "min_load_tokens": 0, "shared_path": str(path)}
    first = run_rounds(tmp_path_factory.mktemp("first"), tier | {"shared_keep": True}, [0, 1, 1])
    between = kvferry("tier", "inspect", str(path))
    second = run_rounds(tmp_path_factory.mktemp("second"), tier, [1])
    return Lives(path, first, between, second, kvferry("tier", "inspect", str(path)))


def test_every_engine_gives_the_same_tokens_whoever_computed_them(lives: Lives) -> None:
    lives.first.assert_same_tokens()
    lives.second.assert_same_tokens()
    assert [answer.tokens for answer in lives.second.answers[0]] == [answer.tokens for answer in lives.first.answers[0]]


def test_an_engine_is_served_from_what_the_other_stored(lives: Lives) -> None:
    hits = lives.first.hit_tokens()
    assert hits[0] == [0, 0]
    assert hits[1] == [0, ALL_TOKENS]
    assert hits[2] == [0, 2 * ALL_TOKENS]
    first, second = lives.first.metrics[-1]
    assert count(second, "found_foreign_blocks") >= NUM_BLOCKS
    assert count(first, "found_foreign_blocks") == 0


def test_nothing_is_stored_twice(lives: Lives) -> None:
    first, second = lives.first.metrics[-1]
    assert count(first, "stored_blocks") >= NUM_BLOCKS
    # The block behind each prompt's last is of what was decoded.
    assert count(second, "stored_blocks") <= NUM_PROMPTS
    for metrics in (first, second):
        assert count(metrics, "failed_loads") == count(metrics, "failed_stores") == 0
        in_use = sum(metrics["vllm:kvferry_tier_blocks"].values())
        assert in_use <= metrics["vllm:kvferry_tier_size_blocks"][""]


def test_what_is_kept_is_there_for_the_next_server(lives: Lives) -> None:
    assert lives.second.hit_tokens()[0] == [0, ALL_TOKENS]
    assert "readable" in lives.between


def test_servers_end_and_the_last_leaves_nothing(lives: Lives) -> None:
    assert lives.first.end.shared_memory <= {lives.path.name}
    dataclasses.replace(lives.first.end, shared_memory=set()).assert_well()
    lives.second.end.assert_well()
    assert not lives.path.exists()
    assert str(lives.path) in lives.behind


def train(file: Path) -> None:
    """Other values in every tensor, in a file of the same size and time."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    before = file.stat()
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file({name: tensor * 1.5 for name, tensor in load_file(file).items()}, file, metadata)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


def test_engine_with_other_weights_of_the_same_size_and_time_computes(runner: EngineRunner, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(runner.model, model)
    engines = EngineRunner(model, runner.connector, runner.module_path)
    prompts = [[(7 * i) % 250 + 1 for i in range(10 * BLOCK_TOKENS + 1)]]
    with tier_file("weights") as path:
        config = engines.kv_config(
            cpu_bytes_to_use="64MiB", shared_chunk_bytes="1MiB", shared_path=str(path), shared_keep=True
        )

        def cached_tokens() -> list[int]:
            report = engines.run([generate(prompts), settle()], config, num_gpu_blocks=50)
            found: list[int] = report.results[0]["num_cached_tokens"]
            return found

        assert cached_tokens() == [0]
        assert cached_tokens() == [10 * BLOCK_TOKENS]
        train(model / "model.safetensors")
        assert cached_tokens() == [0]
