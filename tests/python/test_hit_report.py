# SPDX-License-Identifier: Apache-2.0
"""The line a minute says what vLLM itself counted of the prompts, and how much computation the tier saved."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ToyEngine
from kvferry.vllm.hit_report import HitReport
from scenarios import MODELS, PROMPTS, Make, again, store_all
from test_load_choice import Clock, observed
from toy_worker import kvferry_of

FULL = {"num_slots": 200, "num_free": 78}


def report_of(clock: Clock, token_seconds: float | None = 30e-6) -> HitReport:
    return HitReport(lambda: token_seconds, lambda: FULL, clock)


def admit(report: HitReport, request_id: str, asked: int, on_gpu: int, in_tier: int, loading: int) -> None:
    report.on_lookup(request_id, on_gpu, in_tier)
    request: Any = SimpleNamespace(request_id=request_id, num_prompt_tokens=asked)
    report.on_allocated(request, loading)


def test_a_line_a_minute_in_plain_words() -> None:
    clock = Clock()
    report = report_of(clock)
    assert report.take_line() is None, "there was no traffic"
    admit(report, "a", 60_000, 0, 59_800, 59_800)
    report.on_load_ended("a", succeeded=True)
    clock.time = 59
    admit(report, "b", 12_928, 8_751, 0, 0)
    assert report.take_line() is None
    clock.time = 60
    assert report.take_line() == (
        "60 s: 72,928 prompt tokens: 12 % found in the GPU's cache, 82 % loaded from the tier (about 1.8 s of prefill "
        "saved); tier 61 % full"
    )
    clock.time = 600
    assert report.take_line(at_once=True) is None, "there was none since"


def test_what_is_not_loaded_is_said() -> None:
    clock = Clock()
    report = report_of(clock)
    admit(report, "declined", 1000, 0, 100, 0)
    admit(report, "fails", 1000, 0, 500, 500)
    report.on_load_ended("fails", succeeded=False)
    # It is computed now, and does not count again.
    admit(report, "fails", 1000, 0, 500, 0)
    admit(report, "loads", 1000, 0, 900, 900)
    admit(report, "aborted", 1000, 0, 200, 200)
    report.on_finished("aborted")
    report.on_lookup("never admitted", 0, 700)
    report.on_finished("never admitted")
    assert report.take_line(at_once=True) == (
        "0 s: 4,000 prompt tokens: 0 % found in the GPU's cache, 0 % loaded from the tier, 20 % found there and not "
        "loaded; tier 61 % full"
    )
    report.on_load_ended("loads", succeeded=True)
    assert report.take_line(at_once=True) is None, "a load alone is no traffic"
    admit(report, "next", 1000, 0, 0, 0)
    assert "90 % loaded from the tier (about 0.0 s of prefill saved)" in str(report.take_line(at_once=True))


def test_nothing_is_claimed_of_what_was_not_measured() -> None:
    report = report_of(Clock(), None)
    admit(report, "a", 100, 0, 100, 100)
    report.on_load_ended("a", succeeded=True)
    assert "100 % loaded from the tier; tier" in str(report.take_line(at_once=True))


def test_the_rate_is_that_by_which_loads_are_chosen() -> None:
    choice = observed(step=(50e-6, 5e-3), load=(10e-6, 20e-3))
    assert choice.token_seconds == pytest.approx(50e-6, rel=0.1)


def line_of(engine: ToyEngine, log_lines: list[str]) -> str:
    """The line of all that was so far."""
    before = len(log_lines)
    kvferry_of(engine.scheduler.connector).scheduler_side._log_hits(at_once=True)
    [line] = log_lines[before:]
    return line


def expected_line(engine: ToyEngine, view: dict[str, int]) -> str:
    """What it has to be, by vLLM's own counts of every request."""
    asked = sum(one.num_prompt_tokens for one in engine.prefills.values())
    on_gpu = sum(one.num_local_cached_tokens for one in engine.prefills.values())
    loaded = sum(one.num_external_cached_tokens for one in engine.prefills.values())
    full = 100 * (1 - view["num_free"] / view["num_slots"])
    return (
        f"INFO kvferry: 0 s: {asked:,} prompt tokens: {100 * on_gpu / asked:.0f} % found in the GPU's cache, "
        f"{100 * loaded / asked:.0f} % loaded from the tier; tier {full:.0f} % full"
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_line_has_what_vllm_counted(
    make: Make, log_lines: list[str], is_async: bool, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(async_scheduling=is_async, **model)
    side = kvferry_of(engine.scheduler.connector).scheduler_side
    monkeypatch.setattr(side._hits, "_now", lambda: 0.0)
    # What a toy's steps take says nothing.
    monkeypatch.setattr(side._choice, "_steps", type(side._choice._steps)())
    monkeypatch.setattr(side._choice, "on_step", lambda num_tokens, goes_on: None)
    store_all(engine)
    engine.generate(again("2"))
    engine.generate(again("3"))  # some of it in the engine's own cache
    assert all(any(one) for one in zip(*_counts(engine), strict=True)), "something was found everywhere"
    assert line_of(engine, log_lines) == expected_line(engine, engine.snapshot())


def _counts(engine: ToyEngine) -> list[tuple[int, int]]:
    return [(one.num_local_cached_tokens, one.num_external_cached_tokens) for one in engine.prefills.values()]


@pytest.mark.parametrize("model", MODELS)
def test_failed_and_aborted_loads_are_found_and_not_loaded(
    make: Make, log_lines: list[str], is_async: bool, model: dict[str, Any]
) -> None:
    link = {"fail_probability": 0.3, "seed": 3}
    engine = make({"host_link": link}, async_scheduling=is_async, **model)
    rng = random.Random(2)
    for attempt in range(10):
        store_all(engine)
        for request_id, prompt in PROMPTS.items():
            engine.add(f"{request_id}-{attempt}", prompt)
            engine.step()
            if rng.random() < 0.2:
                engine.abort(f"{request_id}-{attempt}")
        engine.run()
    assert engine.failed_loads
    side = kvferry_of(engine.scheduler.connector).scheduler_side
    counts = side._hits._counts
    assert not side._hits._loading
    assert not side._hits._looked_up
    assert not side._hits._counted
    ended = engine.prefills.items()
    assert counts.loaded >= sum(one.num_external_cached_tokens for _, one in ended if one.num_external_cached_tokens)
    assert counts.loaded < counts.in_tier <= counts.asked
    assert "found there and not loaded" in line_of(engine, log_lines)


def test_the_line_comes_with_a_step_and_at_the_end(
    make: Make, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    clock = Clock()
    side = kvferry_of(engine.scheduler.connector).scheduler_side
    monkeypatch.setattr(side._hits, "_now", clock)

    def lines() -> list[str]:
        return [line for line in log_lines if "prompt tokens" in line]

    engine.generate(PROMPTS)
    assert lines() == []
    clock.time = 61
    engine.generate(again("2"))
    assert [line.partition(" s:")[0] for line in lines()] == ["INFO kvferry: 61"]
    engine.generate(again("3"))
    clock.time = 70
    engine.close()
    assert [line.partition(" s:")[0] for line in lines()] == ["INFO kvferry: 61", "INFO kvferry: 9"]
