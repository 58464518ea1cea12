# SPDX-License-Identifier: Apache-2.0
"""Weights that change while the engine serves: each version finds its own blocks, and no version another's."""

import itertools
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from event_mirror import EventMirror
from harness import ToyEngine, ToySpec, prompt_of
from kvferry.errors import ConfigError
from kvferry.vllm import weights_versions
from kvferry.vllm.weights_versions import AT_START, WeightsVersions, follow_engine
from scenarios import (
    HYBRID,
    MODELS,
    PROMPTS,
    RECURRENT_MODELS,
    SLOW_LOADS,
    SLOW_STORES,
    Make,
    again,
    assert_at_rest,
    leave_to_the_tier,
    start_loading,
)
from seeds import seed_range
from toy_sibling import SCRIPTS, Script, lend_models, siblings
from vllm.v1.engine.core import EngineCore

_numbers = itertools.count()


class Training:
    """Engines whose weights change, as an RL framework has them.

    Attributes
    ----------
    make
        Makes an engine that is told versions of the run.

    """

    def __init__(self, make: Make, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._make = make
        self._folder = folder
        self._listeners: list[Callable[[str], None]] = []
        self._of_engine: dict[int, Callable[[str], None]] = {}
        patch.setattr(weights_versions, "follow_engine", self._listeners.append)

    def make(self, extra: dict[str, Any] | None = None, **spec: Any) -> ToyEngine:
        return self._follow(self._make({"weights_run": "run", **(extra or {})}, **spec))

    def make_beside(self, script: str, extra: dict[str, Any], **spec: Any) -> ToyEngine:
        """Make one with a sibling that follows the script, and loads before kvferry does."""
        engine = self._follow(self._make(**siblings(script, weights_run="run", **extra), **spec))
        lend_models(engine)
        return engine

    def _follow(self, engine: ToyEngine) -> ToyEngine:
        self._of_engine[id(engine)] = self._listeners.pop()
        return engine

    def pause(self, engine: ToyEngine, *, clear_cache: bool = True) -> None:
        """Do as vLLM's ``pause_generation(mode="keep")``."""
        engine.drain_outputs()
        if clear_cache:
            assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

    def load(self, engine: ToyEngine, version: str, *, clear_cache: bool = True) -> None:
        """Give the model other weights, and tell nobody."""
        for worker in engine.workers:
            worker.model.load_weights(salt_of(version))
            if not clear_cache:
                # Whoever reads what the engine has kept computes of neither version.
                worker.model.bad_blocks.update(range(1, engine.spec.num_blocks))

    def tell(self, engine: ToyEngine, version: str) -> None:
        """Do as vLLM's ``update_weight_version``."""
        self._of_engine[id(engine)](version)

    def update(self, engine: ToyEngine, version: str, *, clear_cache: bool = True) -> None:
        self.pause(engine, clear_cache=clear_cache)
        self.load(engine, version, clear_cache=clear_cache)
        self.tell(engine, version)

    def expected(self, version: str, **spec: Any) -> dict[str, list[int]]:
        """What the prompts give by these weights, without a tier."""
        engine = ToyEngine(self._folder, ToySpec(**{**spec, "num_blocks": 512, "extra_config": None}))
        self.load(engine, version)
        return engine.generate(PROMPTS)


def salt_of(version: str) -> int:
    return 0 if version == AT_START else zlib.crc32(version.encode()) % 10**6 + 1


@pytest.fixture
def training(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(make, folder, monkeypatch)


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path(f"/dev/shm/kvferry-test-weights-{os.getpid()}-{next(_numbers)}")
    yield path
    path.unlink(missing_ok=True)


def run_prompts(engine: ToyEngine, suffix: str, expected: dict[str, list[int]]) -> list[int]:
    """Have the prompts computed, and leave them to the tier; return the tokens that each loaded."""
    tokens = engine.generate(again(suffix))
    assert list(tokens.values()) == list(expected.values())
    leave_to_the_tier(engine)
    return [engine.external_hit_tokens[request_id + suffix] for request_id in PROMPTS]


def can_reset(engine: ToyEngine) -> bool:
    """Whether running requests alone hold blocks: vLLM cannot reset its cache while others load or have loaded."""
    engine.drain_outputs()
    manager = engine.scheduler.kv_cache_manager
    running = {
        block for one in engine.scheduler.running for group in manager.get_block_ids(one.request_id) for block in group
    }
    held = {block.block_id for block in manager.block_pool.blocks if block.ref_cnt > 0 and not block.is_null}
    return held <= running


@pytest.mark.parametrize("model", [*MODELS, *RECURRENT_MODELS])
def test_a_version_that_comes_back_finds_its_blocks(training: Training, is_async: bool, model: dict[str, Any]) -> None:
    names = (AT_START, "B", "C")
    expected = {version: training.expected(version, **model) for version in names}
    assert len({str(tokens) for tokens in expected.values()}) == len(names)
    engine = training.make(async_scheduling=is_async, **model)
    hits = {}
    for number, version in enumerate(names):
        if number:
            training.update(engine, version)
        assert run_prompts(engine, f"{version}1", expected[version]) == [0, 0, 0]
        hits[version] = run_prompts(engine, f"{version}2", expected[version])
        assert sum(hits[version]) > 0
    for number, version in enumerate(["B", AT_START, "C", "C", "B"]):
        training.update(engine, version)
        assert run_prompts(engine, f"{version}.{number}", expected[version]) == hits[version]
    assert_at_rest(engine)


def test_between_a_reset_and_the_next_version_nothing_is_found_and_what_is_stored_leaves(training: Training) -> None:
    engine = training.make()
    expected = training.expected(AT_START)
    run_prompts(engine, "1", expected)
    named = engine.snapshot()["num_evictable"]
    for turn in range(3):
        training.pause(engine)
        assert engine.snapshot()["num_evictable"] == named, "those of nobody's weights leave"
        assert run_prompts(engine, f"2{turn}", expected) == [0, 0, 0]
        assert sum(run_prompts(engine, f"3{turn}", expected)) > 0, "until the next reset they are found"
    training.tell(engine, AT_START)
    assert engine.snapshot()["num_evictable"] == named
    assert sum(run_prompts(engine, "4", expected)) > 0


def test_without_a_run_versions_mean_nothing_and_a_reset_forgets_all(
    make: Make, monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]]
) -> None:
    listeners: list[Callable[[str], None]] = []
    monkeypatch.setattr(weights_versions, "follow_engine", listeners.append)
    engine = make()
    assert not listeners
    run_prompts(engine, "1", expected)
    engine.scheduler.connector.reset_cache()
    assert engine.snapshot()["num_evictable"] == 0
    assert run_prompts(engine, "2", expected) == [0, 0, 0]


def test_stores_in_flight_are_found_under_the_weights_that_computed_them(training: Training) -> None:
    engine = training.make({"host_link": SLOW_STORES})
    expected = training.expected(AT_START)
    engine.generate(again("1"))
    assert engine.snapshot()["num_stores_in_flight"] > 0
    training.update(engine, "B")
    leave_to_the_tier(engine)
    in_tier = engine.snapshot()["num_evictable"]
    assert in_tier > 0
    assert run_prompts(engine, "2", training.expected("B")) == [0, 0, 0]
    training.update(engine, AT_START)
    assert sum(run_prompts(engine, "3", expected)) > 0


def test_a_load_in_flight_fails_and_its_request_is_computed_by_the_new_weights(training: Training) -> None:
    engine = training.make({"host_link": SLOW_LOADS})
    run_prompts(engine, "1", training.expected(AT_START))
    start_loading(engine, "a2", PROMPTS["a"])
    training.update(engine, "B", clear_cache=False)
    engine.run()
    assert engine.failed_loads == ["a2"]
    assert engine.finished["a2"].tokens == training.expected("B")["a"]
    training.update(engine, AT_START)
    engine.generate({"a3": PROMPTS["a"]})
    assert engine.external_hit_tokens["a3"] > 0


def test_what_is_computed_on_blocks_that_the_engine_kept_of_another_version_is_not_stored(
    training: Training, is_async: bool
) -> None:
    engine = training.make(async_scheduling=is_async)
    engine.generate(again("1"))
    engine.settle_stores()
    stored = engine.snapshot()["stored"]
    running = engine.add("running", prompt_of(7, 60), max_tokens=40)
    engine.run_until(lambda: running.num_output_tokens > 3)
    training.update(engine, "B", clear_cache=False)
    longer = {f"{request_id}2": [*prompt, *prompt_of(9, 40)] for request_id, prompt in PROMPTS.items()}
    engine.generate(longer)
    assert {*longer, "running"} <= engine.misled, "they read what the engine kept"
    engine.settle_stores()
    before = engine.snapshot()["stored"]
    assert before - stored <= 3, "the head of one request, of the old version"
    # Everything of the new version is computed anew.
    engine.drop_gpu_cache()
    for worker in engine.workers:
        worker.model.bad_blocks.clear()
    assert run_prompts(engine, "3", training.expected("B")) == [0, 0, 0]
    assert sum(run_prompts(engine, "4", training.expected("B"))) > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_among_versions_read_no_cell_of_another(
    training: Training, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    extra = {"cpu_bytes_to_use": 40 * 6144, "host_link": rng.choice([None, {"jitter_us": 500}])}
    engine = training.make(extra, num_blocks=49, async_scheduling=is_async, **model)
    prompts = [prompt_of(number % 5, rng.randint(20, 120)) for number in range(60)]
    version = AT_START
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, max_tokens=rng.randint(1, 12))
        for _ in range(rng.randint(0, 4)):
            engine.step()
        if rng.random() < 0.2:
            engine.run_until(lambda: can_reset(engine))
            version = rng.choice([AT_START, "B", "C"])
            training.update(engine, version)
        if rng.random() < 0.2:
            engine.run()
            leave_to_the_tier(engine)
    engine.run()
    assert set(engine.finished) == {str(number) for number in range(60)}
    assert sum(engine.external_hit_tokens.values()) > 0
    engine.settle_stores()
    assert_at_rest(engine)


def test_what_a_sibling_has_loaded_of_another_version_is_not_stored(
    training: Training, request: pytest.FixtureRequest, is_async: bool
) -> None:
    prompt = prompt_of(1, 100)
    script = SCRIPTS[request.node.name] = Script(prompts=[prompt], is_async=True)
    engine = training.make_beside(request.node.name, {}, async_scheduling=is_async)
    engine.add("loads", prompt)
    engine.run_until(lambda: "loads" in engine.scheduler.finished_recving_kv_req_ids)
    # Its blocks are of the first version, and it runs by the next one.
    training.update(engine, "B", clear_cache=False)
    engine.run()
    assert script.num_loads == 1
    script.prompts.clear()
    leave_to_the_tier(engine)
    tokens = engine.generate({"asks": prompt})
    assert engine.external_hit_tokens["asks"] == 0
    alone = training.make(async_scheduling=is_async)
    training.update(alone, "B")
    assert tokens == alone.generate({"asks": prompt})
    leave_to_the_tier(engine)
    engine.generate({"again": prompt})
    assert engine.external_hit_tokens["again"] > 0


@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_among_versions_beside_a_sibling_read_no_cell_of_another(
    training: Training, request: pytest.FixtureRequest, is_async: bool, seed: int
) -> None:
    rng = random.Random(seed)
    script = SCRIPTS[request.node.name] = Script(is_async=True, delay=rng.randint(1, 4))
    extra = {"cpu_bytes_to_use": 40 * 6144, "host_link": {"jitter_us": rng.choice([0, 500])}}
    engine = training.make_beside(request.node.name, extra, num_blocks=49, async_scheduling=is_async)
    version = AT_START
    for number in range(60):
        # What the sibling loaded is asked of the tier later.
        script.prompts = [prompt_of(number, 120) for number in rng.sample(range(5), 2)]
        engine.add(str(number), prompt_of(number % 5, rng.randint(20, 120)), max_tokens=rng.randint(1, 12))
        for _ in range(rng.randint(0, 4)):
            engine.step()
        if rng.random() < 0.2:
            # Requests go on, also those that the sibling loads or has loaded for.
            version = rng.choice([other for other in (AT_START, "B", "C") if other != version])
            training.update(engine, version, clear_cache=False)
        if rng.random() < 0.2:
            engine.run()
            leave_to_the_tier(engine)
    engine.run()
    assert set(engine.finished) == {str(number) for number in range(60)}
    assert script.num_loads > 0
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.parametrize("model", MODELS)
def test_engines_of_one_run_share_the_blocks_of_each_version(
    training: Training, path: Path, model: dict[str, Any]
) -> None:
    tier = {"cpu_bytes_to_use": 24 * 64 * 1024, "shared_chunk_bytes": 64 * 1024, "shared_path": str(path)}
    first, second = training.make(tier, **model), training.make(tier, **model)
    expected = {version: training.expected(version, **model) for version in (AT_START, "B")}
    for engine in (first, second):
        engine.generate({"first": prompt_of(99, 10)})
    run_prompts(first, "1", expected[AT_START])
    hits = run_prompts(second, "1", expected[AT_START])
    assert sum(hits) > 0, "what both began with"
    training.update(first, "B")
    assert run_prompts(first, "2", expected["B"]) == [0, 0, 0]
    assert run_prompts(second, "2", expected[AT_START]) == hits
    training.update(second, "B")
    assert run_prompts(second, "3", expected["B"]) == hits, "what the first one stored"
    training.pause(second)
    training.load(second, "C")
    assert run_prompts(second, "4", training.expected("C", **model)) == [0, 0, 0], "of no name"
    training.update(second, AT_START)
    assert run_prompts(second, "5", expected[AT_START]) == hits
    for engine in (first, second):
        assert_at_rest(engine)


def test_engines_of_other_runs_share_no_block(training: Training, path: Path) -> None:
    tier = {"cpu_bytes_to_use": 24 * 64 * 1024, "shared_chunk_bytes": 64 * 1024, "shared_path": str(path)}
    first, second = training.make(tier), training.make({**tier, "weights_run": "another"})
    for engine in (first, second):
        engine.generate({"first": prompt_of(99, 10)})
        training.update(engine, "1")
    # Their versions of one name are trained apart.
    training.load(second, "another 1")
    run_prompts(first, "1", training.expected("1"))
    assert run_prompts(second, "1", training.expected("another 1")) == [0, 0, 0]
    assert second.snapshot()["num_guests_total"] == 0


def test_events_tell_what_the_version_of_now_can_load(training: Training) -> None:
    engine = training.make(kv_events=True, **HYBRID)
    mirror = EventMirror(engine)

    def held() -> dict[int, set[Any]]:
        engine.step()
        engine.drain_outputs()
        return {group: set(hashes) for group, hashes in mirror.held.items() if hashes}

    run_prompts(engine, "1", training.expected(AT_START, **HYBRID))
    of_start = held()
    assert len(of_start) == 2
    training.update(engine, "B")
    assert not held()
    run_prompts(engine, "2", training.expected("B", **HYBRID))
    assert held()
    training.update(engine, AT_START)
    assert held() == of_start


def test_a_name_is_the_same_number_in_every_process_of_its_run() -> None:
    versions, again_, other = WeightsVersions("run"), WeightsVersions("run"), WeightsVersions("other")
    assert versions.name("B") == again_.name("B")
    assert versions.name("B").weights != other.name("B").weights
    assert versions.name(AT_START).weights == versions.at_start
    assert WeightsVersions("run", 7).name(AT_START).weights == 7
    numbers = {versions.name(name).weights for name in ("", "B", "b", "B ", AT_START)}
    assert len(numbers) == 5
    assert 0 not in numbers
    unnamed = [versions.unname() for _ in range(3)]
    assert len({change.weights for change in unnamed}) == 3
    assert [change.forget_old for change in unnamed] == [False, True, True]
    assert versions.name("B").forget_old
    assert not versions.name("C").forget_old


def test_the_engine_core_that_makes_the_connector_is_followed() -> None:
    told: list[str] = []

    class Core(EngineCore):
        def __init__(self) -> None:
            self._weight_version = AT_START
            follow_engine(told.append)

    core, other = Core(), Core.__new__(Core)
    core.set_weight_version("B")
    other.set_weight_version("C")
    assert told == ["B"]
    assert core.get_weight_version() == "B"


def test_an_engine_that_cannot_be_heard_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="weights_run is set, and the connector is not made by vLLM's engine core"):
        make({"weights_run": "run"})


@pytest.mark.parametrize("value", ["", "  ", 7, "a\nb", "x" * 257, None])
def test_a_run_has_a_name(make: Make, value: object) -> None:
    if value is None:
        make({"weights_run": value})
        return
    with pytest.raises(ConfigError, match="weights_run"):
        make({"weights_run": value})
