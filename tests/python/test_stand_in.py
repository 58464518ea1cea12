# SPDX-License-Identifier: Apache-2.0
"""The cuda back end under the real scheduler, on the stand-in driver: every copy path, every end of a process."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import expected_tokens
from kvferry.config import COPY_PATHS
from random_lives import NUM_TOKENS, live, random_prompts
from scenarios import MODELS, PROMPTS, Make, again, assert_at_rest, store_all
from stand_in import StandIn


@pytest.fixture(autouse=True)
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn().install(monkeypatch.setattr)


@pytest.mark.parametrize("copy_path", COPY_PATHS)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_come_back_on_every_copy_path(
    make: Make, folder: Path, log_lines: list[str], copy_path: str, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"copy_path": copy_path}, **model)
    store_all(engine)
    tokens = engine.generate(again("2"))
    assert tokens == {f"{request_id}2": expected[request_id] for request_id in PROMPTS}
    assert all(engine.external_hit_tokens[request_id] > 0 for request_id in tokens)
    assert_at_rest(engine)
    text = "\n".join(log_lines)
    assert "stand-in for an H100" in text
    assert "copy paths of cuda" in text if copy_path == "auto" else copy_path in text


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_random_lives_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    extra = {
        "cpu_bytes_to_use": 2 * 30 * 6144,
        "staging_bytes": 8 * 6144,
        "load_staging_bytes": rng.choice([0, 2 * 6144, 20 * 6144]),
        "store_bandwidth_limit": rng.choice([10**7, 10**12]),
    }
    engine = make(extra, num_blocks=36, async_scheduling=is_async, world_size=rng.choice([1, 2]), **model)
    live(engine, rng, prompts, expected, str(extra))
    assert_at_rest(engine)


ENDS = {
    "falls off its end": "",
    "exits": "sys.exit(0)",
    "exits from an atexit handler": "import atexit; atexit.register(lambda: engine.step())",
    "exits without a word": "os._exit(0)",
    "keeps the engine in a cycle": "engine.workers.append(engine); del engine",
    "lets the engine go": "del engine; import gc; gc.collect()",
    "closes twice": "engine.close(); engine.close()",
}
SCRIPT = """
import os, sys, pathlib
sys.path[:0] = {paths!r}
from harness import ToyEngine, ToySpec
from scenarios import PROMPTS
from stand_in import StandIn
StandIn().install(setattr)
extra = {{"cpu_bytes_to_use": "16MiB", "store_bandwidth_limit": 50_000}}
engine = ToyEngine(pathlib.Path({folder!r}), ToySpec(extra_config=extra))
engine.generate(PROMPTS)
stats = engine.workers[0].copy_stats()
assert stats["queued_bytes"] + stats["in_flight_bytes"] > 0, stats
print("under way", flush=True)
{end}
"""


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_process_ends_at_once_and_in_peace_with_stores_under_way(tmp_path: Path, end: str) -> None:
    here = Path(__file__).resolve().parent
    script = SCRIPT.format(paths=[str(here), str(here.parent / "fakes")], folder=str(tmp_path / "model"), end=end)
    # Less than the transfer time-out, and than what the stores would take.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert ended.stdout.endswith("under way\n"), ended.stderr
    assert ended.returncode == 0, ended.stderr
    for word in ("Traceback", "Error", "terminate", "core dumped"):
        assert word not in ended.stderr, ended.stderr
