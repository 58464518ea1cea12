# SPDX-License-Identifier: Apache-2.0
"""A tier that is made smaller and larger while the engine serves, with vLLM's scheduler and the toy model."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ToyEngine, expected_tokens
from kvferry import engines
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.vllm import tier_size
from kvferry.vllm.tier_size import MemoryFollower
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import (
    HYBRID,
    MODELS,
    PROMPTS,
    RECURRENT_MODELS,
    REPLICATED,
    UNEVEN_MODEL,
    Make,
    assert_at_rest,
    store_all,
)
from seeds import seed_range
from stages import random_stages

BLOCK_BYTES = 6144
# The least that pages allow: two blocks.
PIECE_BYTES = 2 * BLOCK_BYTES


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the engines of these tests have their files."""
    monkeypatch.setattr(engines, "DIRECTORY", str(tmp_path))
    return str(tmp_path)


def found() -> engines.Engine:
    (engine,) = engines.living()
    return engine


def step_until(engine: ToyEngine, is_over: Callable[[engines.TierState], bool]) -> engines.TierState:
    """Step at least once, until the tier's state is as wanted; what it says then."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        engine.step()
        state = found().state
        if is_over(state):
            return state
    raise AssertionError(state)


def settle(engine: ToyEngine) -> engines.TierState:
    """Step until the tier has the size that it is to have; what it says then."""
    file = engine.scheduler.connector.scheduler_side._size._file
    return step_until(engine, lambda state: state.request == file.last_request and not state.is_at_work)


def wait_for_ranks(engine: ToyEngine) -> engines.TierState:
    """Step until no rank has memory to return or to make ready, which takes real time; what it says then."""
    return step_until(engine, lambda state: not state.leaving_bytes and not state.coming_bytes)


def sized(num_blocks: int, **more: Any) -> dict[str, Any]:
    return {
        "cpu_bytes_to_use": num_blocks * BLOCK_BYTES,
        "cpu_bytes_limit": num_blocks * BLOCK_BYTES * 3 // 2,
        "pinned_piece_bytes": PIECE_BYTES,
        "staging_bytes": 8 * BLOCK_BYTES,
        **more,
    }


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine say in each step how its tier stands."""
    monkeypatch.setattr(tier_size, "_PERIOD_S", 0.0)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL, *RECURRENT_MODELS[:1]])
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_get_their_tokens_while_the_tier_is_resized(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    model = random_stages(random.Random(f"stages {seed}"), folder, model)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **{**model, "stages": ()})
    link = random_link(rng, seed)
    num_blocks = 2 * 36 * max(1, len(model.get("stages", ())))
    engine = make(
        sized(num_blocks, host_link=link, retention=("engine", "dense")[seed % 2]),
        async_scheduling=is_async,
        world_size=rng.choice([1, 2]),
        **{"num_blocks": 36, **model},
    )
    sizes = []

    def resize(_: ToyEngine) -> None:
        if rng.random() < 0.05 and (living := engines.living()) and not living[0].state.why_fixed:
            limit = living[0].state.limit_bytes
            living[0].ask(int(limit * rng.choice([1 / 3, 2 / 3, 1, rng.uniform(0.01, 1)])), rng.choice([0, 0.05, 0.2]))
        sizes.extend(living.state.num_bytes for living in engines.living())

    engine.on_step = resize
    live(engine, rng, prompts, expected, str(link))
    engine.on_step = None
    state = settle(engine)
    assert len(set(sizes)) > 1, "the tier never had another size"
    assert state.failure == ""
    assert not state.is_blocked
    assert_at_rest(engine)


@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_of_ranks_that_keep_one_copy_get_their_tokens_while_it_is_resized(
    make: Make, folder: Path, is_async: bool, seed: int
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **REPLICATED)
    world_size = rng.choice([2, 3])
    extra = sized(60, pinned_piece_bytes=world_size * PIECE_BYTES, host_link=random_link(rng, seed))
    engine = make(extra, async_scheduling=is_async, world_size=world_size, num_blocks=36, **REPLICATED)

    def resize(_: ToyEngine) -> None:
        if rng.random() < 0.05 and (living := engines.living()) and not living[0].state.why_fixed:
            living[0].ask(int(living[0].state.limit_bytes * rng.uniform(0.01, 1)), rng.choice([0, 0.05, 0.2]))

    engine.on_step = resize
    live(engine, rng, prompts, expected, str(extra))
    engine.on_step = None
    assert settle(engine).failure == ""
    assert_at_rest(engine)


def test_half_of_the_tier_goes_and_comes_again_and_the_engine_steps_for_it(make: Make) -> None:
    engine = make(sized(60), world_size=2)
    store_all(engine)
    before = found().state
    # Of both ranks together.
    assert before.num_bytes == pytest.approx(60 * BLOCK_BYTES, rel=0.1)
    connector = engine.scheduler.connector
    assert not connector.has_pending_push_work()
    request = found().ask(30 * BLOCK_BYTES, 0)
    engine.step()
    assert connector.has_pending_push_work()
    while connector.has_pending_push_work():
        engine.step()
    state = found().state
    assert state.request == request
    assert state.num_bytes == pytest.approx(30 * BLOCK_BYTES, rel=0.15)
    assert state.num_bytes <= 30 * BLOCK_BYTES
    assert (state.leaving_bytes, state.coming_bytes) == (0, 0)
    assert engine.snapshot()["num_slots"] == sum(engine.snapshot()[name] for name in ("num_free", "num_evictable"))
    for worker in engine.workers:
        assert worker.copy_stats()["num_slots"] == engine.snapshot()["num_slots"]
    found().ask(90 * BLOCK_BYTES)
    assert settle(engine).num_bytes == pytest.approx(90 * BLOCK_BYTES, rel=0.1)
    engine.generate(PROMPTS)


def test_an_engine_without_requests_waits_before_it_steps_for_its_tier(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(sized(60))
    store_all(engine)
    pauses: list[float] = []
    monkeypatch.setattr(tier_size, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    connector = engine.scheduler.connector
    assert not connector.has_pending_push_work()
    assert pauses == []
    found().ask(30 * BLOCK_BYTES)
    engine.step()
    assert connector.has_pending_push_work()
    assert pauses == [tier_size._IDLE_S]


class FakeTime:
    """A monotonic clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("is_short_of_memory", [False, True])
def test_the_tier_goes_down_evenly(make: Make, monkeypatch: pytest.MonkeyPatch, is_short_of_memory: bool) -> None:
    clock, free, margin = FakeTime(), [1 << 30], 100 * BLOCK_BYTES
    monkeypatch.setattr(tier_size, "time", clock)
    monkeypatch.setattr(MemoryFollower.__init__, "__defaults__", (lambda: free[0],))
    engine = make({**sized(60), "memory_margin": margin})
    store_all(engine)
    full = found().state.num_bytes
    sizes: list[int] = []
    for second in range(105):
        if second == 0:
            found().ask(20 * BLOCK_BYTES, 100)
        elif second % 10 == 0:
            engine.add(f"at {second}", PROMPTS["a"])
        engine.step()
        state = wait_for_ranks(engine)
        sizes.append(state.num_bytes)
        assert state.target_bytes == pytest.approx(20 * BLOCK_BYTES, rel=0.1)
        if is_short_of_memory and len(sizes) == 50:
            free[0] = margin - 10 * BLOCK_BYTES
        elif is_short_of_memory and len(sizes) == 52:
            free[0] = 1 << 30
        clock.now += 1.0
    evenly = [full - (full - 20 * BLOCK_BYTES) * min(second / 100, 1) for second in range(105)]
    for second, (size, even) in enumerate(zip(sizes, evenly, strict=True)):
        if not is_short_of_memory or not 50 <= second < 100:
            assert abs(size - even) <= 2 * PIECE_BYTES, second
        else:
            assert size <= even + 2 * PIECE_BYTES, second
    if is_short_of_memory:
        assert sizes[52] <= evenly[52] - 5 * BLOCK_BYTES
    assert settle(engine).num_bytes <= 20 * BLOCK_BYTES


def test_a_tier_that_engines_share_is_none_that_can_be_resized(make: Make) -> None:
    make({"cpu_bytes_to_use": 4 << 20, "shared_path": f"/dev/shm/kvferry-size-of-test-{os.getpid()}"})
    assert engines.living() == []


def test_memory_that_is_too_small_to_be_divided_says_so(make: Make) -> None:
    engine = make({**sized(60), "pinned_piece_bytes": "64MiB"})
    engine.generate({"a": PROMPTS["a"]})
    assert "pinned_piece_bytes to less" in found().state.why_fixed
    with pytest.raises(ConfigError, match="stays as large as it is"):
        found().ask(BLOCK_BYTES)


def test_the_tier_goes_down_and_up_with_the_machines_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30]
    monkeypatch.setattr(tier_size, "free_bytes", lambda: free[0])
    monkeypatch.setattr(MemoryFollower, "CALM_S", 0.0)
    monkeypatch.setattr(MemoryFollower.__init__, "__defaults__", (lambda: free[0],))
    monkeypatch.setattr(tier_size, "_LOOK_S", 0.0)
    margin = 100 * BLOCK_BYTES
    engine = make({**sized(60), "memory_margin": margin}, **HYBRID)
    store_all(engine)
    full = found().state.num_bytes
    free[0] = margin - 20 * BLOCK_BYTES
    for _ in range(3):
        engine.step()
    free[0] = margin + 1
    state = settle(engine)
    assert full // 8 <= state.num_bytes <= full - 20 * BLOCK_BYTES
    free[0] = 1 << 30
    assert settle(engine).num_bytes <= full
    for _ in range(300):
        engine.step()
    assert found().state.num_bytes == pytest.approx(full, rel=0.1)


class Machine:
    """Memory that others take and give back."""

    def __init__(self, margin: int, tier: int) -> None:
        self.free = 10 * margin
        self.tier = tier
        self.follower = MemoryFollower(margin, lambda: self.free)
        self.now = 0.0
        self.wanted = tier

    def look(self, seconds: float = 1.0) -> int:
        self.now += seconds
        size = self.follower.next_size(self.tier, 0, self.wanted, self.now)
        self.free += self.tier - size
        self.tier = size
        return size


def test_what_is_missing_goes_at_once_and_comes_again_when_it_was_calm() -> None:
    machine = Machine(margin=100, tier=1000)
    assert machine.look() == 1000
    machine.free = 40
    assert machine.look() == 940
    assert machine.look() == 940
    machine.free = 140  # less than a half of the margin more
    assert [machine.look(60) for _ in range(3)] == [940] * 3
    machine.free = 400
    assert machine.look() == 940
    assert machine.look(29) == 940
    machine.free = 90
    assert machine.look() == 930
    machine.free = 400
    machine.look()
    assert machine.look(30) == 1000
    assert machine.look(60) == 1000


def test_a_part_of_the_tier_stays_whatever_others_take() -> None:
    machine = Machine(margin=100, tier=1000)
    machine.free = 0
    machine.follower = MemoryFollower(5000, lambda: 0)
    assert [machine.look() for _ in range(3)] == [125] * 3


def test_what_goes_already_is_not_asked_for_again() -> None:
    follower = MemoryFollower(100, lambda: 40)
    assert follower.next_size(900, 60, 1000, 1.0) == 900


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"cpu_bytes_to_use": "2GiB", "cpu_bytes_limit": "1GiB"}, r"cpu_bytes_to_use \(2147483648\) or more"),
        ({"cpu_bytes_limit": "9GiB", "shared_path": "/dev/shm/t"}, "a tier of the engine's own"),
        ({"memory_margin": "9GiB", "shared_path": "/dev/shm/t"}, "a tier of the engine's own"),
        ({"cpu_bytes_limit": "9GiB", "pages": "huge"}, "go back to their pool"),
        ({"memory_margin": "9GiB", "pages": "huge"}, "go back to their pool"),
        ({"cpu_bytes_limit": "9GiB", "cpu_bytes_to_use_per_rank": "1GiB"}, "beside cpu_bytes_to_use"),
        ({"memory_margin": 0}, "more than zero"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KvFerryConfig.from_extra_config(config)
