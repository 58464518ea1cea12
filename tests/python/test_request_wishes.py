# SPDX-License-Identifier: Apache-2.0
"""What requests, and the engine's configuration, want loaded and stored at most, under vLLM's own scheduler."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from client_lives import ClientLife
from harness import ToyEngine, expected_tokens, prompt_of
from kvferry.vllm.request_wishes import NO_WISHES, Wishes, WishReader
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import (
    COARSE_MODEL,
    HYBRID,
    MODELS,
    PROMPTS,
    RECURRENT,
    RECURRENT_MODELS,
    SLOW_LOADS,
    UNEVEN_MODEL,
    Make,
    assert_at_rest,
    leave_to_the_tier,
    start_loading,
    store_all,
)
from seeds import seed_range
from sessions import TAKES_HASHES_BACK, add_turn, begin_session, close_session
from test_client_lives import may_open_sessions
from wish_oracle import WishOracle, random_wishes, wanting

BLOCK = 16
# Of a window of two and a half blocks, and of full attention.
KINDS = [*MODELS, UNEVEN_MODEL, COARSE_MODEL, *RECURRENT_MODELS]


def warm_up(engine: ToyEngine) -> None:
    """Take the first step, in which the ranks register: nothing is stored before it has ended."""
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)


# What is read of a request


def read(params: object, reader: WishReader | None = None) -> Wishes:
    request: Any = SimpleNamespace(request_id="r1", kv_transfer_params=params)
    return (reader or WishReader()).read(request)


@pytest.mark.parametrize(
    ("params", "wishes"),
    [
        (None, NO_WISHES),
        ({}, NO_WISHES),
        ({"max_load_tokens": 0, "max_offload_tokens": 5}, Wishes(0, 5)),
        ({"max_offload_tokens": None, "do_not_store": None}, NO_WISHES),
        ({"do_not_store": True}, Wishes(None, 0)),
        ({"do_not_store": True, "max_offload_tokens": 64}, Wishes(None, 0)),
        ({"do_not_store": False, "max_offload_tokens": 64}, Wishes(None, 64)),
        ({"max_load_tokens": 10**30}, Wishes(2**32 - 2, None)),
    ],
)
def test_wishes_are_read_without_a_word(params: object, wishes: Wishes, log_lines: list[str]) -> None:
    assert read(params) == wishes
    assert log_lines == []


@pytest.mark.parametrize("value", [-1, True, 1.0, "64", [], {"a": 1}, "x" * 10_000, "two\nlines"])
@pytest.mark.parametrize("key", ["max_load_tokens", "max_offload_tokens", "do_not_store"])
def test_wrong_value_costs_that_wish_and_one_line(key: str, value: object, log_lines: list[str]) -> None:
    if key == "do_not_store" and value is True:
        return
    other = "max_load_tokens" if key != "max_load_tokens" else "max_offload_tokens"
    wishes = read({key: value, other: 32})
    assert wishes == (Wishes(32, None) if other == "max_load_tokens" else Wishes(None, 32))
    (line,) = log_lines
    assert line.startswith("WARNING kvferry: kv_transfer_params of request r1: ")
    assert f"{key} is " in line
    assert "; allowed is " in line
    assert other not in line
    assert len(line) < 300
    assert "\n" not in line


def test_several_wrong_values_are_one_line(log_lines: list[str]) -> None:
    assert read({"max_load_tokens": -1, "max_offload_tokens": "a", "do_not_store": 1}) == NO_WISHES
    (line,) = log_lines
    assert all(key in line for key in ("max_load_tokens is -1", "max_offload_tokens is 'a'", "do_not_store is 1"))


@pytest.mark.parametrize("params", ["text", [1], 5])
def test_params_that_are_no_object_are_no_wishes(params: object, log_lines: list[str]) -> None:
    assert read(params) == NO_WISHES
    assert len(log_lines) == 1


def test_unknown_keys_are_named_once_and_in_one_line(log_lines: list[str]) -> None:
    reader = WishReader()
    nixl = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_engine_id": "e"}
    for _ in range(3):
        assert read({**nixl, "max_load_tokens": 16}, reader) == Wishes(16, None)
    [line] = log_lines
    assert all(f"'{key}'" in line for key in nixl)
    assert "max_load_tokens, max_offload_tokens, do_not_store" in line
    read({**nixl, "remote_host": "h"}, reader)
    [_, line] = log_lines
    assert "'remote_host'" in line
    assert "'remote_engine_id'" not in line


def test_ever_new_unknown_keys_do_not_fill_the_log(log_lines: list[str]) -> None:
    reader = WishReader()
    for number in range(200):
        read({f"key{number}": 1}, reader)
    assert len(log_lines) == 32
    assert log_lines[-1].endswith("this is the last line about them")


# What is stored


@pytest.mark.parametrize("model", KINDS)
def test_request_that_is_not_to_be_stored_leaves_nothing(make: Make, is_async: bool, model: dict[str, Any]) -> None:
    engine = make(kv_events=True, async_scheduling=is_async, **model)
    oracle = WishOracle(engine)
    engine.add("a", PROMPTS["a"], 30, **wanting(do_not_store=True))
    engine.run()
    engine.settle_stores()
    oracle.check()
    assert oracle.num_unwanted >= 7
    assert oracle.stored == set()
    view = engine.snapshot()
    assert view["stored"] == view["num_backlog"] == view["skipped_declined"] == 0
    assert_at_rest(engine)


@pytest.mark.parametrize("model", KINDS)
def test_what_one_request_does_not_store_another_does(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make(async_scheduling=is_async, **model)
    engine.add("a", PROMPTS["a"], **wanting(do_not_store=True))
    engine.run()
    engine.settle_stores()
    assert engine.snapshot()["stored"] == 0
    # It finds the blocks in the engine's own cache.
    assert engine.own_hit_tokens(PROMPTS["a"]) > 0
    engine.generate({"a2": PROMPTS["a"]})
    leave_to_the_tier(engine)
    assert engine.generate({"a3": PROMPTS["a"]})["a3"] == expected["a"]
    assert engine.external_hit_tokens["a3"] >= 64
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_prefix_up_to_the_limit_is_stored_and_can_be_loaded(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make(kv_events=True, async_scheduling=is_async, **model)
    oracle = WishOracle(engine)
    warm_up(engine)
    engine.add("b", PROMPTS["b"], **wanting(max_offload_tokens=79))
    engine.run()
    leave_to_the_tier(engine)
    oracle.check()
    assert engine.generate({"b2": PROMPTS["b"]})["b2"] == expected["b"]
    assert engine.external_hit_tokens["b2"] == 64
    assert_at_rest(engine)


def test_limit_holds_for_a_request_that_is_preempted_and_resumed(make: Make, folder: Path, is_async: bool) -> None:
    prompts = {f"p{i}": prompt_of(40 + i, 60) for i in range(3)}
    expected = expected_tokens(folder, prompts, max_tokens=70)
    engine = make(
        {"store_prompt_only": True}, kv_events=True, num_blocks=22, max_model_len=256, async_scheduling=is_async
    )
    oracle = WishOracle(engine, prompt_only=True)
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, 70, **(wanting(max_offload_tokens=32) if request_id == "p2" else {}))
    engine.run()
    assert {request_id: end.tokens for request_id, end in engine.finished.items()} == expected
    assert sum(engine.requests[request_id].num_preemptions for request_id in prompts) > 0
    engine.settle_stores()
    oracle.check()
    assert len(oracle.stored) == 2 * 3 + 2
    assert_at_rest(engine)


# Prompts only


@pytest.mark.parametrize(("num_prompt", "num_blocks"), [(64, 4), (63, 3), (65, 4), (15, 0)])
def test_blocks_with_decoded_tokens_are_not_stored(
    make: Make, is_async: bool, num_prompt: int, num_blocks: int
) -> None:
    engine = make({"store_prompt_only": True}, kv_events=True, async_scheduling=is_async)
    oracle = WishOracle(engine, prompt_only=True)
    engine.generate({"a": prompt_of(5, num_prompt)}, 40)
    engine.settle_stores()
    oracle.check()
    assert engine.snapshot()["stored"] == num_blocks
    assert oracle.num_unwanted >= 2
    assert_at_rest(engine)


@pytest.mark.parametrize("model", KINDS)
def test_follow_up_loads_the_prompt_and_computes_the_answer(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    prompt = PROMPTS["a"]
    engine = make({"store_prompt_only": True}, kv_events=True, async_scheduling=is_async, **model)
    oracle = WishOracle(engine, prompt_only=True)
    answer = engine.generate({"a": prompt}, 40)["a"]
    leave_to_the_tier(engine)
    longer = {"b": [*prompt, *answer]}
    assert engine.generate(longer) == expected_tokens(folder, longer, **model)
    assert 64 <= engine.external_hit_tokens["b"] <= len(prompt)
    # What was said is part of what the client sends now.
    leave_to_the_tier(engine)
    oracle.check()
    engine.generate({"c": longer["b"]})
    assert engine.external_hit_tokens["c"] > len(prompt)
    assert_at_rest(engine)


def test_prompt_that_another_request_has_decoded_is_stored(make: Make, is_async: bool) -> None:
    engine = make({"store_prompt_only": True}, async_scheduling=is_async)
    answer = engine.generate({"a": PROMPTS["a"]}, 40)["a"]
    engine.settle_stores()
    assert engine.snapshot()["stored"] == 6
    # In the engine's own cache it finds what the first one decoded.
    engine.generate({"b": [*PROMPTS["a"], *answer]}, 1)
    engine.settle_stores()
    assert engine.snapshot()["stored"] == 8


@pytest.mark.skipif(not TAKES_HASHES_BACK, reason="later turns are not stored before vLLM 0.32")
def test_session_stores_what_it_said_when_its_next_turn_begins(make: Make, is_async: bool) -> None:
    engine = make({"store_prompt_only": True}, kv_events=True, async_scheduling=is_async)
    oracle = WishOracle(engine, prompt_only=True)
    request = begin_session(engine, "s", PROMPTS["a"], 40)
    engine.run_until(lambda: request.num_output_tokens == 40)
    for _ in range(10):
        engine.step()
    assert len(oracle.stored) == 6
    add_turn(engine, "s", prompt_of(9, 30), 40)
    engine.run_until(lambda: request.num_prompt_tokens > 160 and request.num_output_tokens == 40)
    close_session(engine, "s")
    engine.run()
    engine.settle_stores()
    oracle.check()
    assert len(oracle.stored) == request.num_prompt_tokens // BLOCK


# What is loaded


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("limit", [0, 15, 16, 50, 79, 96, 10_000])
def test_load_brings_no_more_than_is_wanted(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any], limit: int
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"retention": "dense"}, kv_events=True, async_scheduling=is_async, **model)
    WishOracle(engine)
    warm_up(engine)
    store_all(engine)
    engine.add("a2", PROMPTS["a"], **wanting(max_load_tokens=limit))
    engine.run()
    assert engine.finished["a2"].tokens == expected["a"]
    hit_tokens = engine.external_hit_tokens["a2"]
    assert hit_tokens <= limit
    if "s" not in str(model.get("layer_pattern")):  # A state is where a step has left it.
        assert hit_tokens == min(limit, 96) // engine.hit_tokens * engine.hit_tokens
    assert_at_rest(engine)


def test_what_the_engine_has_itself_does_not_count(make: Make, folder: Path, is_async: bool) -> None:
    expected = expected_tokens(folder, PROMPTS)
    engine = make(async_scheduling=is_async)
    store_all(engine)
    engine.generate({"head": PROMPTS["b"][:49]}, 1)
    engine.add("b2", PROMPTS["b"], **wanting(max_load_tokens=40))
    engine.run()
    assert engine.finished["b2"].tokens == expected["b"]
    assert engine.external_hit_tokens["b2"] == 32


def test_request_that_wants_less_has_what_another_one_loads(make: Make, folder: Path) -> None:
    expected = expected_tokens(folder, PROMPTS)
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.add("some", PROMPTS["a"], **wanting(max_load_tokens=32))
    engine.add("none", PROMPTS["a"], **wanting(max_load_tokens=0))
    # It waits for nobody, and computes what it does not load.
    engine.run_until(lambda: "none" in engine.finished)
    assert engine.snapshot()["num_loads_in_flight"] == 1
    engine.run()
    assert all(end.tokens == expected["a"] for name, end in engine.finished.items() if name in ("a2", "some", "none"))
    assert engine.external_hit_tokens["none"] == 0
    assert engine.external_hit_tokens["some"] <= 32


# Anything at any time


def tight_tier(rng: random.Random, seed: int, prompt_only: bool) -> dict[str, Any]:
    """Make keys of a tier that is too small, behind a link that may fail."""
    return {
        "cpu_bytes_to_use": 2 * 30 * 6144,
        "staging_bytes": 8 * 6144,
        "host_link": random_link(rng, seed),
        "store_prompt_only": prompt_only,
    }


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_have_their_wishes(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    prompt_only = bool(seed % 2)
    extra = tight_tier(rng, seed, prompt_only) | {"retention": rng.choice(["engine", "dense"])}
    engine = make(
        extra,
        kv_events=True,
        async_scheduling=is_async,
        world_size=rng.choice([1, 2]),
        **{"num_blocks": 36, **model},
    )
    oracle = WishOracle(engine, prompt_only=prompt_only)
    # A prompt has one wish in all of its life.
    wishes = {tuple(prompt): random_wishes(rng) for prompt in prompts.values()}
    live(engine, rng, prompts, expected, str(extra), params=lambda prompt: wishes[tuple(prompt)])
    engine.settle_stores()
    oracle.check()
    assert oracle.num_unwanted > 0
    assert_at_rest(engine)


@pytest.mark.parametrize(
    ("name", "model", "num_groups"), [("plain", {}, 1), ("hybrid", HYBRID, 2), ("recurrent", RECURRENT, 3)]
)
@pytest.mark.parametrize("seed", seed_range(2))
def test_client_lives_have_their_wishes(
    make: Make, folder: Path, is_async: bool, seed: int, name: str, model: dict[str, Any], num_groups: int
) -> None:
    rng = random.Random(seed)
    prompt_only = bool(seed % 2)
    extra = tight_tier(rng, seed, prompt_only)
    spec = {**model, "max_model_len": 200, "num_blocks": 1 + 28 * num_groups}
    engine: ToyEngine = make(extra, kv_events=True, async_scheduling=is_async, **spec)
    oracle = WishOracle(engine, prompt_only=prompt_only)
    with_sessions = may_open_sessions(name, is_async=is_async, num_drafts=0)
    life = ClientLife(engine, folder, rng, with_sessions=with_sessions, params=lambda _: random_wishes(rng))
    try:
        life.play(150)
        life.end()
    finally:
        life.close()
    oracle.check()
    assert oracle.num_unwanted > 0
    assert_at_rest(engine)
