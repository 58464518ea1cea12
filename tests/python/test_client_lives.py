# SPDX-License-Identifier: Apache-2.0
"""Conversations that go on, streaming sessions, resets of running requests, pauses and ends, at any time and together.

``KVFERRY_SOAK_SECONDS`` plays new lives of every kind for so long instead of a few; ``KVFERRY_SEED`` plays one.
"""

import contextlib
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_lives import VLLM, ClientLife
from harness import ToyEngine, ToySpec, WrongKvError
from random_lives import random_link
from scenarios import (
    CHUNKED,
    HYBRID,
    LATENT,
    RECURRENT,
    UNEVEN,
    assert_at_rest,
)
from sessions import TAKES_HASHES_BACK

NUM_SEEDS = 1
SOAK_S = float(os.environ.get("KVFERRY_SOAK_SECONDS", "0"))
NUM_STEPS = 400 if SOAK_S else 150

# Blocks of each group: the longest request has 13, and sessions need room beside it.
BLOCKS = 28
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "hybrid": (HYBRID, 2),
    "latent": (LATENT, 2),
    "uneven": (UNEVEN, 3),
    "chunked": (CHUNKED, 3),
    "recurrent": (RECURRENT, 3),
    "recurrent-dense": ({**RECURRENT, "retention_interval": None}, 3),
}


def seeds(num_seeds: int) -> Iterator[int]:
    """The seeds of a test; in a soak as many as there is time for, and other ones each time."""
    if "KVFERRY_SEED" in os.environ:
        yield int(os.environ["KVFERRY_SEED"])
        return
    if not SOAK_S:
        yield from range(num_seeds)
        return
    end = time.monotonic() + SOAK_S
    while time.monotonic() < end:
        yield random.SystemRandom().randrange(2**31)


def may_open_sessions(model: str, *, is_async: bool, num_drafts: int) -> bool:
    """Whether vLLM by itself gives streaming sessions their tokens.

    Before 0.32 it leaves hashes that a session has taken back. With recurrent states a turn begins with the state
    behind tokens that were taken back: behind a stop token with asynchronous scheduling, whose next step is under way
    by then; and with drafts.
    """
    return TAKES_HASHES_BACK and not (model.startswith("recurrent") and (is_async or num_drafts))


class Lives:
    """Lives of one kind of engine: makes the engine of a seed, and the clients and the operator around it."""

    def __init__(self, folder: Path, model: str, **spec: Any) -> None:
        self.happened: Counter[str] = Counter()
        self._folder = folder
        self._shape, num_groups = MODELS[model]
        self._spec = {**spec, "max_model_len": 200, "num_blocks": 1 + BLOCKS * num_groups}
        self.with_sessions = may_open_sessions(
            model, is_async=spec["async_scheduling"], num_drafts=spec.get("num_drafts", 0)
        )

    @contextlib.contextmanager
    def begin(self, seed: int, **more: Any) -> Iterator[tuple[ToyEngine, ClientLife, random.Random]]:
        """Begin one, with `more` in its configuration; says at a failure how to replay it."""
        rng = random.Random(seed)
        extra = {
            "cpu_bytes_to_use": 2 * 30 * 6144,
            "staging_bytes": 8 * 6144,
            "min_load_tokens": 0,
            "host_link": random_link(rng, seed),
            **more,
        }
        spec = {"world_size": rng.choice([1, 2]), **self._shape, **self._spec, "extra_config": extra}
        engine = ToyEngine(self._folder, ToySpec(**spec))
        life = ClientLife(engine, self._folder, rng, with_sessions=self.with_sessions)
        try:
            yield engine, life, rng
        except BaseException as error:
            error.add_note(f"replay with KVFERRY_SEED={seed}; it happened: {dict(life.happened)}")
            raise
        finally:
            life.close()
            engine.close()
        self.happened += life.happened
        self.happened += Counter({"lives": 1, "steps": engine.num_steps})

    def play(self) -> None:
        """Play lives to their end, and check that nothing is left."""
        for seed in seeds(NUM_SEEDS):
            with self.begin(seed) as (engine, life, _):
                life.play(NUM_STEPS)
                life.end()
                assert_at_rest(engine)
                self.happened["tokens loaded"] += engine.snapshot()["hit_tokens"]
        print(f"{self._spec}: {dict(self.happened)}")
        self.happened["blocks taken"] += self.happened["resets of running requests"]
        self.happened["blocks taken"] += self.happened["resets of running requests, refused"]
        # With drafts a session seldom finds the room that it has to have.
        turns = ["turns"] if self.with_sessions and not self._spec.get("num_drafts") else []
        for what in ("answers", "blocks taken", "tokens loaded", *turns):
            assert self.happened[what] > 0, f"never happened: {what}"


# Older releases: what a scheduler does differs, and not by the kind of model.
@pytest.mark.parametrize("model", MODELS if VLLM >= [0, 32] else ["plain", "hybrid"])
def test_clients_that_talk_on_get_their_tokens(folder: Path, is_async: bool, model: str) -> None:
    Lives(folder, model, async_scheduling=is_async).play()


@pytest.mark.parametrize("model", ["plain", "hybrid", "recurrent"] if VLLM >= [0, 32] else ["hybrid"])
@pytest.mark.parametrize(
    ("policy", "num_drafts"), [("priority", 0), ("fcfs", 3), ("priority", 3)], ids=["priority", "drafts", "both"]
)
def test_clients_that_talk_on_get_their_tokens_with_priorities_and_drafts(
    folder: Path, is_async: bool, model: str, policy: str, num_drafts: int
) -> None:
    Lives(folder, model, async_scheduling=is_async, policy=policy, num_drafts=num_drafts).play()


@pytest.mark.parametrize("model", ["plain", "hybrid"])
def test_engines_that_are_closed_at_any_moment_leave_no_thread_and_no_file(
    folder: Path, is_async: bool, model: str
) -> None:
    lives = Lives(folder, model, async_scheduling=is_async)
    with lives.begin(0):  # What the process keeps from its first engine on.
        pass
    gc.collect()
    before = num_threads(), files()
    for seed in seeds(2 * NUM_SEEDS):
        with lives.begin(seed) as (engine, life, rng):
            life.play(rng.randrange(1, 80))
            # In any order, and as often as anybody likes; with steps in flight, loads and stores under way.
            ends = [engine.scheduler.shutdown, *(worker.connector.shutdown for worker in engine.workers)]
            for end in rng.sample(ends, len(ends)):
                end()
        gc.collect()  # The sides' objects know each other.
        assert (num_threads(), files()) == before
    assert lives.happened["requests"] > 0


def test_the_end_of_a_life_notices_a_wrong_block(folder: Path) -> None:
    with Lives(folder, "plain", async_scheduling=False).begin(0, verify="off") as (engine, life, _):
        life.play(60)
        engine.run()
        engine.settle_stores()
        for worker in engine.workers:
            for slot in range(1, 20):
                worker.connector.worker_side.engine.unsafe_copy_slot(0, slot)
        with pytest.raises(WrongKvError):
            life.end()


def num_threads() -> int:
    """Of this process, the core's own among them."""
    return len(os.listdir("/proc/self/task"))


def files() -> list[str]:
    """What is open, and what shared memory is mapped."""
    opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    shared = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "kvferry/" in line}
    return sorted(name for name in opened if "kvferry" in name) + sorted(shared)
