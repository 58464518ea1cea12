# SPDX-License-Identifier: Apache-2.0
"""A load that would take longer than computing is not done."""

import math
import random
from pathlib import Path

import pytest
from harness import expected_tokens, prompt_of
from kvferry.vllm.load_choice import Line, LoadChoice
from scenarios import Make, assert_at_rest


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def observed(*, step: tuple[float, float], load: tuple[float, float], is_async: bool = False) -> LoadChoice:
    """A choice that has seen steps and loads that take ``slope * tokens + height`` seconds, more or less."""
    rng = random.Random(1)
    clock = Clock()
    choice = LoadChoice(None, is_async=is_async, now=clock)
    running: list[int] = [0]
    for number in range(200):
        num_tokens = rng.choice([8, 16, 512, 2048])
        choice.on_step(num_tokens, goes_on=number > 0)
        running.append(num_tokens)
        ends = running[-2] if is_async else running[-1]
        clock.time += (step[0] * ends + step[1]) * rng.uniform(0.9, 1.1) if ends else 0.0
    for number in range(40):
        num_tokens = rng.choice([64, 256, 1024])
        choice.on_load_begun(f"r{number}", num_tokens)
        clock.time += (load[0] * num_tokens + load[1]) * rng.uniform(0.9, 1.1)
        choice.on_load_ended(f"r{number}", succeeded=True)
    return choice


@pytest.mark.parametrize("is_async_engine", [False, True])
def test_a_load_is_worth_it_where_the_lines_cross(is_async_engine: bool) -> None:
    # 50 us a token against 10 us and 20 ms: they meet at 500 tokens.
    choice = observed(step=(50e-6, 5e-3), load=(10e-6, 20e-3), is_async=is_async_engine)
    assert 350 < choice.min_tokens < 650
    assert not choice.is_worth("small", 100)
    assert choice.is_worth("large", 1000)


def test_a_link_slower_than_computing_is_not_used() -> None:
    choice = observed(step=(50e-6, 5e-3), load=(60e-6, 0.0))
    assert choice.min_tokens == math.inf


def test_a_link_without_latency_is_always_used() -> None:
    choice = observed(step=(50e-6, 5e-3), load=(10e-6, 0.0))
    assert choice.min_tokens < 64


def test_with_little_measured_everything_is_loaded() -> None:
    assert LoadChoice(None, is_async=False).min_tokens == 0


def test_one_answer_for_each_turn_and_some_are_tried_all_the_same() -> None:
    choice = observed(step=(50e-6, 5e-3), load=(60e-6, 0.0))
    answers = [choice.is_worth(f"r{i}", 100) for i in range(64)]
    assert sum(answers) == 4
    assert [choice.is_worth(f"r{i}", 100) for i in range(64)] == answers
    choice.forget("r0")
    assert "r0" not in choice._choices


def test_what_is_set_is_not_measured() -> None:
    choice = LoadChoice(300, is_async=False)
    assert [choice.is_worth(str(n), n) for n in (299, 300)] == [False, True]
    assert not any(choice.is_worth(f"again {i}", 299) for i in range(64))


def test_loads_that_fail_or_are_aborted_tell_nothing() -> None:
    choice = LoadChoice(None, is_async=False, now=Clock())
    choice.on_load_begun("a", 100)
    choice.on_load_ended("a", succeeded=False)
    choice.on_load_ended("a", succeeded=True)
    assert choice._loads.num_points == 0
    assert not choice._began


def test_steps_that_are_nearly_alike_tell_nothing() -> None:
    clock, rng = Clock(), random.Random(2)
    choice = observed(step=(0.0, 0.0), load=(10e-6, 20e-3))
    choice._steps = Line()
    choice._now = clock
    for _ in range(200):
        choice.on_step(rng.choice([63, 64]), goes_on=True)
        clock.time += rng.uniform(0.01, 0.03)
    assert choice.min_tokens == 0


def test_a_line_needs_points_of_different_sizes() -> None:
    line = Line()
    for _ in range(20):
        line.add(64, 0.02)
    assert line.fit() is None
    line.add(128, 0.03)
    fit = line.fit()
    assert fit is not None
    assert fit.slope == pytest.approx(0.01 / 64)
    assert fit.height == pytest.approx(0.01)


def test_short_prefixes_are_computed_if_it_is_set_so(make: Make, folder: Path) -> None:
    short, long = {"s": prompt_of(1, 40)}, {"l": prompt_of(2, 150)}
    engine = make({"min_load_tokens": 64})
    first = engine.generate(short | long)
    engine.settle_stores()
    engine.drop_gpu_cache()
    assert engine.generate({"s2": short["s"], "l2": long["l"]}) == {"s2": first["s"], "l2": first["l"]}
    assert engine.external_hit_tokens["s2"] == 0
    assert engine.external_hit_tokens["l2"] == 144
    assert_at_rest(engine)


def test_an_engine_learns_not_to_load_over_a_slow_link(make: Make, folder: Path) -> None:
    # A block's load takes 30 ms, and its computation 3 ms. (The toy computes nothing beside its scheduler.)
    engine = make({"host_link": {"h2d_gb_s": 0.0002}, "min_load_tokens": None}, token_time_s=0.0002)
    prompts = {f"p{i}": prompt_of(i, 36 + 4 * i) for i in range(12)}
    expected = expected_tokens(folder, prompts)
    loaded = []
    for turn in range(4):
        names = {f"{name}-{turn}": prompt for name, prompt in prompts.items()}
        tokens = engine.generate(names)
        assert tokens == {f"{name}-{turn}": expected[name] for name in prompts}
        loaded.append(sum(engine.external_hit_tokens[name] > 0 for name in names))
        engine.settle_stores()
        engine.drop_gpu_cache()
    assert loaded[0] == 0
    assert loaded[1] == len(prompts)
    assert loaded[3] < len(prompts) // 2
    assert_at_rest(engine)
