# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake (vLLM 0.33): vLLM's own code of core, executor and worker around the toy, which takes memory away."""

import contextlib
import gc
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm
from harness import ToyEngine, expected_tokens
from kvferry.errors import ResourceError
from kvferry.errors import TimeoutError as CopyTimeoutError
from kvferry.vllm import KvFerryConnector, versions, weights_versions
from scenarios import HYBRID, PROMPTS, Make, again, assert_at_rest, leave_to_the_tier
from stand_in import StandIn
from toy_sleep import ToyCore
from toy_worker import kvferry_of
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.request import RequestStatus

if not versions.tells_of_sleep(vllm.__version__):
    pytest.skip("this vLLM does not tell connectors of sleep mode", allow_module_level=True)

OUT_OF_MEMORY = 2
NUM_CYCLES = 100
# All prompts load in 130 ms, and a step takes a few.
SLOWER_THAN_STEPS = {"h2d_gb_s": 0.0008}

Install = Callable[[], StandIn]


@pytest.fixture(autouse=True)
def no_engine_of_another_test() -> None:
    """Whose memory of the stand-in's device would go at any time."""
    gc.collect()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put what is made from here on on the stand-in of a GPU's driver."""

    def install() -> StandIn:
        driver = StandIn()
        driver.install(monkeypatch.setattr)
        return driver

    return install


def child(**extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "KvFerryConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0, **extra},
    }


def hits_of_a_turn(engine: ToyEngine, expected: dict[str, list[int]], turn: str) -> list[int]:
    """Have the prompts computed and stored, and loaded; return the tokens that each loaded."""
    first, second = f"{turn}.first", f"{turn}.second"
    assert list(engine.generate(again(first)).values()) == list(expected.values())
    leave_to_the_tier(engine)
    assert list(engine.generate(again(second)).values()) == list(expected.values())
    return [engine.external_hit_tokens[request_id + second] for request_id in PROMPTS]


def prepare(engine: ToyEngine, rng: random.Random, turn: str, mode: str) -> None:
    """Leave the prompts in the tier, or nowhere: vLLM keeps no request that loads."""
    if mode == "keep":
        engine.drop_gpu_cache()
        engine.scheduler.connector.reset_cache()
    elif rng.random() < 0.3:
        engine.generate(again(f"{turn}.before"))
        leave_to_the_tier(engine)


def begin(engine: ToyEngine, rng: random.Random, turn: str) -> list[str]:
    """Leave requests behind in the middle of what they do: loads, stores, computations."""
    for request_id, prompt in again(f"{turn}.load").items():
        engine.add(request_id, prompt, max_tokens=rng.randint(4, 20))
    for _ in range(rng.randint(1, 6)):
        engine.step()
    return [request_id for request_id in again(f"{turn}.load") if request_id not in engine.finished]


CASES = {
    "host": ({}, {"host_link": SLOWER_THAN_STEPS}, False),
    "host-async": ({"async_scheduling": True}, {"host_link": SLOWER_THAN_STEPS}, False),
    "stand-in": ({}, {}, True),
    "stand-in-hybrid-ranks": ({**HYBRID, "world_size": 2, "async_scheduling": True}, {"copy_path": "staged"}, True),
    "child": ({"connector": "MultiConnector", "connector_module": None}, {"connectors": [child(), child()]}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hundred_cycles_under_load(make: Make, folder: Path, stand_in: Install, case: str) -> None:
    spec, extra, is_on_stand_in = CASES[case]
    driver = stand_in() if is_on_stand_in else None
    before = driver.allocated_bytes if driver else 0
    expected = expected_tokens(folder, PROMPTS, **{k: v for k, v in spec.items() if not k.startswith("connector")})
    engine = make(extra, **spec)
    core = ToyCore(engine, driver)
    hits = hits_of_a_turn(engine, expected, "begin")
    assert sum(hits) > 0
    awake, num_threads = core.device_bytes - before, threading.active_count()
    rng = random.Random(case)
    num_aborted = num_loading = 0
    for cycle in range(NUM_CYCLES):
        mode = rng.choice(["abort", "wait", "keep"])
        prepare(engine, rng, str(cycle), mode)
        with driver.held() if driver and rng.random() < 0.5 else contextlib.nullcontext():
            left = begin(engine, rng, str(cycle))
            num_loading += engine.snapshot()["num_loads_in_flight"]
        core.put_to_sleep(level=rng.choice([1, 2]), mode=mode)
        assert core.model_executor.is_sleeping
        assert core.is_scheduler_paused()
        assert core.device_bytes == before
        if rng.random() < 0.5:
            assert not core.wake(["weights"])
            assert core.device_bytes == before
            assert core.wake(["kv_cache"])
        else:
            assert core.wake()
        assert core.device_bytes - before == awake
        engine.run()
        ended = {request_id: engine.finished[request_id] for request_id in left}
        num_aborted += sum(one.status == RequestStatus.FINISHED_ABORTED for one in ended.values())
        if mode != "abort":
            assert all(one.status == RequestStatus.FINISHED_LENGTH_CAPPED for one in ended.values())
            assert all(one.tokens[:4] == expected[request_id[0]] for request_id, one in ended.items())
        if cycle % 10 == 9:
            engine.settle_stores()
            engine.drop_gpu_cache()
            engine.scheduler.connector.reset_cache()
            assert hits_of_a_turn(engine, expected, f"{cycle}.turn") == hits
    assert num_aborted > 0
    assert num_loading > 0
    assert threading.active_count() == num_threads
    engine.settle_stores()
    assert_at_rest(engine)


def test_the_tier_is_empty_behind_a_sleep_as_vllm_resets_the_connector(
    make: Make, expected: dict[str, list[int]]
) -> None:
    engine = make()
    core = ToyCore(engine)
    hits_of_a_turn(engine, expected, "a")
    core.put_to_sleep(level=1)
    core.wake()
    engine.generate(again("b"))
    assert all(engine.external_hit_tokens[f"{request_id}b"] == 0 for request_id in PROMPTS)


def test_the_tier_stays_where_the_weights_have_a_name(
    make: Make, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cores: list[ToyCore] = []
    listeners: list[Callable[[str], None]] = []
    monkeypatch.setattr(weights_versions, "follow_engine", listeners.append)
    engine = make({"weights_run": "run"})
    cores.append(ToyCore(engine))
    hits = hits_of_a_turn(engine, expected, "a")
    for cycle in range(3):
        cores[0].put_to_sleep(level=1)
        cores[0].wake()
        listeners[0](weights_versions.AT_START)
        tokens = engine.generate(again(f"b{cycle}"))
        assert list(tokens.values()) == list(expected.values())
        assert [engine.external_hit_tokens[f"{request_id}b{cycle}"] for request_id in PROMPTS] == hits


def test_level_0_touches_nothing(make: Make, expected: dict[str, list[int]]) -> None:
    engine = make()
    core = ToyCore(engine)
    hits = hits_of_a_turn(engine, expected, "a")
    engine.drop_gpu_cache()
    core.put_to_sleep(level=0)
    assert not kvferry_of(engine.workers[0].connector).worker_side.engine.is_asleep
    core.wake(["scheduling"])
    engine.generate(again("b"))
    assert [engine.external_hit_tokens[f"{request_id}b"] for request_id in PROMPTS] == hits


def test_the_kv_cache_alone_is_released_and_comes_back(
    make: Make, expected: dict[str, list[int]], stand_in: Install
) -> None:
    driver = stand_in()
    before = driver.allocated_bytes
    engine = make()
    core = ToyCore(engine, driver)
    hits = hits_of_a_turn(engine, expected, "a")
    core.pause_scheduler("abort")
    with core.as_device():
        core.release_kv_cache_memory()
    assert core.device_bytes == before
    assert core.wake(["kv_cache"])
    assert hits_of_a_turn(engine, expected, "b") == hits


def test_a_wake_without_memory_says_so_and_may_come_again(
    make: Make, expected: dict[str, list[int]], stand_in: Install
) -> None:
    driver = stand_in()
    before = driver.allocated_bytes
    engine = make()
    core = ToyCore(engine, driver)
    hits = hits_of_a_turn(engine, expected, "a")
    awake = core.device_bytes
    core.put_to_sleep()
    # The geometry's table; the ring for stores; the one for loads.
    for nth in (2, 3):
        driver.fail_nth("cuMemAlloc", nth, OUT_OF_MEMORY)
        with pytest.raises(ResourceError) as caught:
            core.wake()
        assert "rank 0 cannot get the device memory of its staging rings again" in str(caught.value)
        assert "free device memory and wake the engine up again" in str(caught.value)
        assert core.model_executor.is_sleeping
        assert core.is_scheduler_paused()
        assert driver.allocated_bytes == before
    assert core.wake()
    assert core.device_bytes == awake
    assert hits_of_a_turn(engine, expected, "b") == hits


def test_copies_that_do_not_go_on_leave_the_engine_awake(make: Make, expected: dict[str, list[int]]) -> None:
    # One block takes 0.6 s, and nothing ends meanwhile.
    engine = make({"transfer_timeout_s": 0.2, "host_link": {"stall_us": 2e6}})
    core = ToyCore(engine)
    engine.add("a", PROMPTS["a"])
    while not engine.snapshot()["num_stores_in_flight"]:
        engine.step()
    engine.abort("a")
    with core.as_device(), pytest.raises(CopyTimeoutError, match="rank 0: copies of the KV cache have not gone on"):
        core.model_executor.sleep(1)
    assert not core.model_executor.is_sleeping
    assert not kvferry_of(engine.workers[0].connector).worker_side.engine.is_asleep
    for worker in engine.workers:
        worker.wait_for_copies()
    core.put_to_sleep()
    core.wake()
    assert list(engine.generate(again("2")).values()) == list(expected.values())


def test_a_slow_link_is_waited_for(make: Make, expected: dict[str, list[int]]) -> None:
    # A block in each step, which takes 0.3 s: on a machine that steps faster, all take three times the time-out.
    extra = {"transfer_timeout_s": 0.6, "host_link": {"d2h_gb_s": 0.00002}}
    engine = make(extra, max_num_batched_tokens=16)
    core = ToyCore(engine)
    engine.add("a", PROMPTS["a"])
    for _ in range(7):
        engine.step()
    engine.abort("a")
    assert engine.snapshot()["num_stores_in_flight"] > 0
    core.put_to_sleep()
    assert engine.workers[0].copy_stats()["stored_blocks"] > 0
    core.wake()
    assert list(engine.generate(again("2")).values()) == list(expected.values())


def test_vllm_lets_engines_with_it_sleep_and_those_beside_another_that_cannot_not(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make({"connectors": [child(), child()]}, connector="MultiConnector", connector_module=None)
    config = engine.config
    config.model_config.enable_sleep_mode = True
    config._verify_kv_transfer_compat()
    assert MultiConnector.supports_sleep_mode(config.kv_transfer_config)
    monkeypatch.setattr(KvFerryConnector, "supports_sleep_mode", classmethod(lambda cls, config: False))
    with pytest.raises(ValueError, match="does not support sleep mode"):
        config._verify_kv_transfer_compat()
