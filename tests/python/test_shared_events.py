# SPDX-License-Identifier: Apache-2.0
"""A router hears from every engine of a shared tier what all of it holds, once."""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from kvferry import tiers
from kvferry.vllm import shared_events
from kvferry.vllm.shared_events import SharedEvents
from random_lives import NUM_TOKENS, live_together, random_prompts
from router_model import RouterModel, loadable_tokens
from scenarios import HYBRID, MODELS, PROMPTS, STORE_ALL, Make, again, store_all
from seeds import seed_range
from toy_worker import kvferry_of
from vllm.distributed.kv_events import BlockStored

_numbers = itertools.count()
# A plain toy's block has 6 KiB: ten slots in each of sixteen chunks.
TIER = {"cpu_bytes_to_use": 16 * 64 * 1024, "shared_chunk_bytes": 64 * 1024, "min_load_tokens": 0}
BLOCK_TOKENS = 16
ENOUGH_S = 20
LONGEST_LAG = 2 * shared_events._RAREST_LOOK


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path(f"/dev/shm/kvferry-test-events-{os.getpid()}-{next(_numbers)}")
    yield path
    left = list(path.parent.glob(f"{path.name}*"))
    for file in left:
        file.unlink(missing_ok=True)


@pytest.fixture
def router() -> Iterator[RouterModel]:
    router = RouterModel()
    yield router
    assert router.complaints == []


MakeSharing = Callable[..., ToyEngine]


@pytest.fixture
def make_sharing(make: Make, path: Path, router: RouterModel) -> MakeSharing:
    """Make engines that share a tier and whose events the router hears."""

    def make_engine(worker: str, extra: dict[str, Any] | None = None, **spec: Any) -> ToyEngine:
        engine = make({**TIER, "shared_path": str(path), **(extra or {})}, kv_events=True, **spec)
        router.listen(worker, engine)
        side = kvferry_of(engine.scheduler.connector).scheduler_side
        engine.generate({"first": prompt_of(99, 10)})
        engine.run_until(lambda: side.engine.num_slots == side.engine.max_slots)
        del engine.finished["first"], engine.requests["first"]
        return engine

    return make_engine


def events_of(engine: ToyEngine) -> SharedEvents:
    events = kvferry_of(engine.scheduler.connector).scheduler_side._events
    assert isinstance(events, SharedEvents)
    return events


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def believed(router: RouterModel, worker: str) -> dict[str, int]:
    return {name: router.loadable_tokens(worker, prompt, BLOCK_TOKENS) for name, prompt in PROMPTS.items()}


STORED = {name: len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS for name, prompt in PROMPTS.items()}


def test_an_idle_engine_tells_what_another_one_stores_and_evicts(
    make_sharing: MakeSharing, router: RouterModel
) -> None:
    first, _ = make_sharing("first"), make_sharing("idle")
    store_all(first)
    for worker in ("first", "idle"):
        await_that(lambda worker=worker: believed(router, worker) == STORED)
    assert router.held["idle"] == router.held["first"]
    first.generate({f"other-{i}": prompt_of(200 + i, 160) for i in range(40)})
    first.settle_stores()
    assert first.snapshot()["num_evicted_total"] > 100
    num_loadable = {name: loadable_tokens(first, prompt) for name, prompt in PROMPTS.items()}
    for worker in ("first", "idle"):
        await_that(lambda worker=worker: believed(router, worker) == num_loadable)


def test_an_engine_that_comes_late_tells_what_is_there(make_sharing: MakeSharing, router: RouterModel) -> None:
    store_all(make_sharing("first"))
    make_sharing("late")
    await_that(lambda: believed(router, "late") == STORED)


def test_what_an_engine_left_is_told_by_those_who_live(make_sharing: MakeSharing, router: RouterModel) -> None:
    first, second = make_sharing("first"), make_sharing("second")
    store_all(first)
    first.close()
    make_sharing("late")
    for worker in ("second", "late"):
        await_that(lambda worker=worker: believed(router, worker) == STORED)
    second.generate(again("2"))
    assert second.external_hit_tokens["b2"] == 9 * BLOCK_TOKENS, "the router was right"


def test_a_block_that_two_engines_stored_is_told_once(make_sharing: MakeSharing, router: RouterModel) -> None:
    engines = [make_sharing(f"worker{i}", STORE_ALL) for i in range(2)]
    # Both store at once: neither finds the other's blocks before its own are on their way.
    for engine in engines:
        for name, prompt in PROMPTS.items():
            engine.add(name, prompt)
        while not engine.snapshot()["num_stores_in_flight"]:
            engine.launch()
    for engine in engines:
        engine.drain_outputs()
        engine.run()
        engine.settle_stores()
    for worker in ("worker0", "worker1"):
        await_that(lambda worker=worker: believed(router, worker) == STORED)
    num_readable = sum(engine.snapshot()["num_evictable"] for engine in engines)
    num_told = len(router.held["worker0"])
    assert num_told < num_readable, "no block was stored twice: nothing was shown"
    # Each of the two lets its own go: the block is told as gone with the last one.
    engines[0].scheduler.reset_connector_cache()
    await_that(lambda: believed(router, "worker0")["b"] == 0)
    there = {name: loadable_tokens(engines[1], prompt) for name, prompt in PROMPTS.items()}
    assert there["b"]
    await_that(lambda: believed(router, "worker1") == there)


def test_other_name_spaces_are_not_told(make_sharing: MakeSharing, router: RouterModel, folder: Path) -> None:
    store_all(make_sharing("first"))
    (folder / "model.safetensors").write_bytes(b"others")
    other = make_sharing("other")
    store_all(other)
    await_that(lambda: believed(router, "other") == STORED)
    other.scheduler.reset_connector_cache()
    await_that(lambda: not router.held["other"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", seed_range(3))
def test_random_lives_leave_the_router_right_about_every_engine(
    make_sharing: MakeSharing,
    router: RouterModel,
    folder: Path,
    is_async: bool,
    seed: int,
    model: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Looks are at random moments here. What a storer has not looked at yet, it has not told the others of.
    monkeypatch.setattr(SharedEvents, "begin", lambda self: None)
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    link = {"fail_probability": 0.1 if seed == 0 else 0, "seed": seed}
    tier = {"cpu_bytes_to_use": 5 * 32 * 1024, "shared_chunk_bytes": 32 * 1024, "staging_bytes": 8 * 6144}
    extra = {**STORE_ALL, **tier, "host_link": link}
    spec = {"async_scheduling": is_async, "num_blocks": 36, **model}
    engines = {f"worker{i}": make_sharing(f"worker{i}", extra, **spec) for i in range(3)}
    num_checks = num_missed = 0

    def look(worker: str) -> None:
        router.hear(worker, events_of(engines[worker]).look())

    def compare() -> None:
        """Look until there is nothing new: then the router knows what each engine can load, and believes no more."""
        nonlocal num_checks, num_missed
        # An engine looks more and more rarely at blocks that their storer has not told of: for looks as many as that
        # one took. In life each looks ten times a second, here now and then.
        for _ in range(LONGEST_LAG):
            for worker in engines:
                look(worker)
        # Of a block that was stored late no engine knows the tokens any more, or one engine only.
        are_words_missing = any(events_of(engine)._unsaid for engine in engines.values())
        assert are_words_missing or len({frozenset(router.held[worker]) for worker in engines}) == 1
        for (worker, engine), prompt in itertools.product(engines.items(), prompts.values()):
            there = loadable_tokens(engine, prompt)
            if there is None:
                continue
            if model == HYBRID:  # what a window needs at a hit's end, the walk does not know
                num_checks += bool(there)
                continue
            believed = router.loadable_tokens(worker, prompt, BLOCK_TOKENS)
            # After a failed load an engine does not trust that slot of another one, and what its owner forgets it may
            # load to the end.
            if not link["fail_probability"]:
                # Of a block that was stored late no engine knows the tokens any more.
                assert are_words_missing or believed >= there
                # What others hold is found by hints, which may be missing, after the keeper's last look around.
                num_missed += believed > there
            num_checks += believed == there > 0

    def on_step(engine: ToyEngine) -> None:
        if rng.random() < 0.1:
            look(next(worker for worker, one in engines.items() if one is engine))
        if rng.random() < 0.01:
            compare()

    for engine in engines.values():
        engine.on_step = on_step
    live_together(list(engines.values()), rng, prompts, expected, str(link), reset_share=0)
    for engine in engines.values():
        engine.on_step = None
        # What a question has found is leased until the end of a step.
        engine.step()
    for engine in engines.values():
        engine.settle_stores()
    compare()
    assert num_checks > 10, "hardly anything was shown"
    assert num_missed <= num_checks // 20, "the router believes in what is not there"
    assert all(num > len(router.held[worker]) for worker, num in router.num_told.items()) or model == HYBRID


def test_what_is_remembered_is_bounded_though_nobody_says_what_blocks_hold(
    make: Make, make_sharing: MakeSharing, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedEvents, "begin", lambda self: None)
    listener = make_sharing("listener")
    silent = make({**TIER, **STORE_ALL, "shared_path": str(path)})
    events = events_of(listener)
    for turn in range(60):
        silent.generate({f"{turn}-{i}": prompt_of(10 * turn + i, 160) for i in range(3)})
        silent.settle_stores()
        assert not [event for event in events.look() if isinstance(event, BlockStored)]
    num_slots = listener.snapshot()["num_slots"] + silent.snapshot()["num_slots"]
    assert 0 < len(events._unsaid) <= num_slots
    assert silent.snapshot()["num_evicted_total"] > 5 * num_slots
    for _ in range(LONGEST_LAG):
        events.look()
    assert sum(map(len, events._due.values())) == len(events._unsaid)
    assert len(events._holders) == len(events._unsaid)


def test_the_words_go_with_the_last_engine(make_sharing: MakeSharing, path: Path) -> None:
    first, second = make_sharing("first"), make_sharing("second")
    beside = Path(tiers.event_words_prefix(str(path)))

    def files() -> list[Path]:
        return list(beside.parent.glob(f"{beside.name}*"))

    assert len(files()) == 1
    first.close()
    assert len(files()) == 1
    second.close()
    assert files() == []


def test_a_tier_that_is_removed_by_hand_takes_the_words_along(make_sharing: MakeSharing, path: Path) -> None:
    engine = make_sharing("first", {"shared_keep": True})
    store_all(engine)
    await_that(lambda: any(file.stat().st_size for file in path.parent.glob(f"{path.name}.events-*")))
    engine.close()
    assert len(list(path.parent.glob(f"{path.name}*"))) == 2
    tiers.remove(str(path))
    assert list(path.parent.glob(f"{path.name}*")) == []
