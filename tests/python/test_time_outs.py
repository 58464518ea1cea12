# SPDX-License-Identifier: Apache-2.0
"""A time-out costs a request, not an engine; and no time-out counts a rest, a pause or a wait for one's turn."""

import time
from pathlib import Path

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError, TimeoutError
from scenarios import PROMPTS, Make, again, assert_at_rest, start_loading, store_all
from vllm.v1.core.sched.interface import PauseState

# Of the ranks and of their transfers, where a test shortens them.
SHORT_S = 0.3
# Longer than any of them, by so much that a step of a busy machine does not come near the difference.
REST_S = 4 * SHORT_S


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may be silent for a moment only."""
    monkeypatch.setattr(KvFerryConfig, "rank_timeout_s", SHORT_S)


def wait_for_copies(engine: ToyEngine) -> None:
    for worker in engine.workers:
        worker.wait_for_copies()


# A store that outlasts 16 steps, a short answer, a rest, another request: `TimeoutError: rank 0 of 1 has not ended
# store 1 ... it is lost`, although the rank ended it within seconds and only had no step in which to say so.
@pytest.mark.usefixtures("short_patience")
def test_engine_that_rested_longer_than_every_time_out_serves_the_next_request(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    # A prompt's store takes some tenths of a second.
    engine = make({"store_bandwidth_limit": "64KB/s", "transfer_timeout_s": SHORT_S}, async_scheduling=is_async)
    for rest in range(2):
        assert len(engine.generate({f"long{rest}": prompt_of(20 + rest, 60)}, max_tokens=40)[f"long{rest}"]) == 40
        assert engine.snapshot()["num_stores_in_flight"] > 0, "the store ended before the rest: nothing is shown"
        wait_for_copies(engine)
        time.sleep(REST_S)
        assert engine.generate(again(f"-{rest}")) == {f"{name}-{rest}": tokens for name, tokens in expected.items()}
    engine.settle_stores()
    assert engine.snapshot()["num_quarantined"] == 0
    assert_at_rest(engine)


@pytest.mark.usefixtures("short_patience")
def test_store_that_takes_longer_than_every_time_out_ends_nobody(make: Make, is_async: bool) -> None:
    # A step of a rank that says nothing else; all of the ring waits for its turn.
    engine = make({"store_bandwidth_limit": "16KB/s", "transfer_timeout_s": SHORT_S}, async_scheduling=is_async)
    engine.generate(PROMPTS)
    began = time.monotonic()
    engine.settle_stores()
    assert time.monotonic() - began > REST_S, "the stores did not take long: nothing is shown"
    engine.drop_gpu_cache()
    engine.generate(again("2"))
    assert [engine.external_hit_tokens[f"{name}2"] for name in PROMPTS] == [96, 144, 32]
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.usefixtures("short_patience")
def test_pause_that_keeps_requests_outlasts_every_time_out_whether_the_engine_steps_in_it_or_not(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    # The load of a prompt, which is one copy, takes some tenths of a second.
    engine = make({"host_link": {"h2d_gb_s": 0.0001}, "transfer_timeout_s": 3 * SHORT_S}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for _ in range(40):
        engine.step()  # empty ones, which take no time
    engine.drain_outputs()
    time.sleep(REST_S)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert engine.finished["a2"].tokens == expected["a"]
    assert engine.external_hit_tokens["a2"] == 96
    assert engine.failed_loads == []
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.usefixtures("short_patience")
def test_rank_that_has_forgotten_a_transfer_stops_the_engine_however_much_it_says(make: Make, is_async: bool) -> None:
    engine = make(async_scheduling=is_async, world_size=2)
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)
    side = engine.workers[1].connector.worker_side
    side._save = lambda stream: None  # so that it has nothing to store
    take = side._take_report
    side._take_report = lambda: forget_stores(take())
    engine.add("a", prompt_of(1, 40), max_tokens=50)
    with pytest.raises(TimeoutError, match=r"rank 1 of 2 has not ended store \d+ of owner .* has not reported on it"):
        engine.run_until(lambda: False)


def forget_stores(report: bytes) -> bytes:
    """Take what a report says of stores out of it: see connector/wire/src/step_report.cpp."""
    if not report:
        return report
    head = 4 + 2 + 4 + 4 + 1  # magic, version, domain, rank, no topology
    num_gathered = int.from_bytes(report[head : head + 4], "little")
    rest = report[head + 4 + num_gathered * 12 :]
    assert rest[:4] == bytes(4), "no store has ended"
    return report[:head] + bytes(4) + rest


# Loads that have not begun

# The load of three blocks, which is one copy, takes far longer than a load may wait; and there is room for one of them.
STALLING = {"h2d_gb_s": 0.00001}


def test_loads_that_wait_behind_a_link_that_stalls_are_computed_instead(
    make: Make, folder: Path, is_async: bool
) -> None:
    prompts = {str(i): prompt_of(60 + i, 60) for i in range(5)}
    expected = expected_tokens(folder, prompts)
    engine = make(
        {"host_link": STALLING, "max_in_flight_bytes": "1KiB", "load_timeout_s": SHORT_S},
        async_scheduling=is_async,
        num_blocks=60,
    )
    engine.generate(prompts)
    engine.settle_stores()
    engine.drop_gpu_cache()
    tokens = engine.generate({f"{name}+": prompt for name, prompt in prompts.items()})
    assert list(tokens.values()) == list(expected.values())
    view = engine.snapshot()
    # The first one had begun, and was waited for.
    assert view["expired_loads"] == view["failed_loads"] == 4
    assert sorted(engine.failed_loads) == ["1+", "2+", "3+", "4+"]
    assert engine.external_hit_tokens["0+"] == 48
    # Nothing says that their blocks are bad.
    engine.drop_gpu_cache()
    assert engine.generate({"4#": prompts["4"]})["4#"] == expected["4"]
    assert engine.external_hit_tokens["4#"] == 48
    engine.settle_stores()
    assert_at_rest(engine)


def test_loads_that_wait_for_too_long_fail_their_requests_and_nobody_else_if_the_user_says_so(
    make: Make, is_async: bool
) -> None:
    engine = make(
        {"host_link": STALLING, "max_in_flight_bytes": "1KiB", "load_timeout_s": SHORT_S},
        async_scheduling=is_async,
        num_blocks=60,
        load_failure_policy="fail",
    )
    prompts = {str(i): prompt_of(60 + i, 60) for i in range(3)}
    first = engine.generate(prompts)
    engine.settle_stores()
    engine.drop_gpu_cache()
    for name, prompt in prompts.items():
        engine.add(f"{name}+", prompt)
    engine.add("other", prompt_of(99, 60))
    engine.run()
    assert engine.finished["0+"].tokens == first["0"]
    assert [engine.finished[name].tokens for name in ("1+", "2+")] == [[], []]
    assert len(engine.finished["other"].tokens) == 4
    assert engine.snapshot()["expired_loads"] == 2
    engine.settle_stores()
    assert_at_rest(engine)


# Values


@pytest.mark.parametrize("key", ["transfer_timeout_s", "load_timeout_s"])
@pytest.mark.parametrize("value", [1e10, 10**400, float("inf"), float("nan"), 0, -1, True, "300"])
def test_time_outs_that_no_clock_can_say_are_refused_with_the_range(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        KvFerryConfig.from_extra_config({key: value})
    for part in (key, repr(value)[:60], "1000000000"):
        assert part in str(caught.value)


@pytest.mark.parametrize("key", ["transfer_timeout_s", "load_timeout_s"])
def test_longest_time_outs_work(make: Make, expected: dict[str, list[int]], key: str) -> None:
    engine = make({key: 1e9})
    store_all(engine)
    assert list(engine.generate(again("2")).values()) == list(expected.values())
    assert [engine.external_hit_tokens[f"{name}2"] for name in PROMPTS] == [96, 144, 32]
