# SPDX-License-Identifier: Apache-2.0
"""Kill -9 of engines under load at random moments: what each had recorded is readable, and is replayed to its end.

Every third one shares its tier with an engine that was there before. Three deaths by default; KVFERRY_NUM_KILLS has as
many as one likes. The seed is printed, and KVFERRY_SEED plays it again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.cli.recorder import lines_of
from kvferry.story import Stories

from .engine_runs import EngineReport, EngineRunner
from .shared_memory import SHARED_MEMORY
from .storm_checks import ABORT_CHANCES, MAX_MODEL_LEN, make_requests, storm

NUM_KILLS = int(os.environ.get("KVFERRY_NUM_KILLS", "3"))
FIRST_SEED = int(os.environ.get("KVFERRY_SEED", time.time_ns() % 1_000_000))
NUM_REQUESTS = 400
NUM_GPU_BLOCKS = 30
NUM_SLOTS = 96
LINK = {"bandwidth_gb_s": 0.5, "latency_us": 5_000, "jitter_us": 20_000, "order": "shuffled", "fail_probability": 0.1}


@pytest.fixture
def kept() -> Iterator[Path]:
    """A second name of the recording, next to the first one."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        path = Path(folder, "recording")
        yield path
        for first in Path(SHARED_MEMORY).glob("kvferry-r*"):
            with contextlib.suppress(FileNotFoundError):  # Recordings of other tests end meanwhile.
                if any(first.samefile(second) for second in Path(folder).iterdir()):
                    first.unlink()


def orders_in(path: Path) -> list[tuple[str, int, list[int]]]:
    """What was planned, or what a rank got of that."""
    events = _core.RecordingFile(str(path)).read().select(["store", "load", "cancels", "expiries", "notice", "planned"])
    return [(one.kind, one.number, one.words) for one in events]


@pytest.mark.parametrize("number", range(NUM_KILLS))
def test_what_a_killed_engine_recorded_is_replayed_to_its_last_event(
    runner: EngineRunner, kept: Path, number: int
) -> None:
    seed = FIRST_SEED + number
    print(f"seed {seed}")
    rng = random.Random(seed)
    is_shared = number % 3 == 2
    operations = [
        {"op": "die_later", "seconds": rng.uniform(0.0, 4.0), "keep": str(kept)},
        storm(
            make_requests(seed, NUM_REQUESTS), window=24, abort_chances=ABORT_CHANCES, follow_chance=0.8,
            reset_chance=0 if is_shared else rng.choice([0, 0.01]),
            resize_chance=0 if is_shared else rng.choice([0, 0.05]), seed=seed,
        ),
    ]  # fmt: skip
    tier_bytes = NUM_SLOTS * runner.block_bytes
    extra: dict[str, Any] = {"cpu_bytes_to_use": tier_bytes, "host_link": {**LINK, "seed": seed}}
    if is_shared:
        extra |= {"shared_path": str(kept.with_name("tier")), "shared_chunk_bytes": "1MiB", "shared_keep": True}
    else:
        extra |= {"cpu_bytes_limit": tier_bytes * 3 // 2}

    def run(operations: list[dict[str, Any]], **how: Any) -> EngineReport:
        return runner.run(
            operations,
            runner.kv_config(failure_policy="recompute", **extra),
            num_gpu_blocks=NUM_GPU_BLOCKS,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=MAX_MODEL_LEN,
            async_scheduling=rng.random() < 0.5,
            **how,
        )

    if is_shared:  # Another engine was there before, and has left its blocks.
        run([storm(make_requests(seed, 60), window=24, seed=seed)])
    report = run(operations, must_start=False)
    assert report.returncode == -signal.SIGKILL, report.log
    num_calls, num_events, difference, last_error = _core.replay_recording(str(kept))
    assert difference is None, difference
    assert last_error is None
    assert num_events > num_calls > 1
    orders = orders_in(kept)
    of_rank = orders_in(Path(f"{kept}-rank"))
    assert of_rank == orders[: len(of_rank)]
    stories = Stories(_core.RecordingFile(str(kept)))
    for request, _ in stories.requests():
        assert list(lines_of(stories.of(request), stories))
