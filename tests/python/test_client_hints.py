# SPDX-License-Identifier: Apache-2.0
"""What clients say of blocks, read from requests and followed under vLLM's own scheduler."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from client_lives import ClientLife
from harness import ToyEngine, expected_tokens
from hint_oracle import HintOracle, hinting, random_hints
from kvferry.vllm.client_hints import DEFAULT_TTL_S, NO_HINTS, ClientHints, HintReader
from kvferry.vllm.request_wishes import NO_WISHES, WishReader
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import HYBRID, MODELS, PROMPTS, RECURRENT, Make, assert_at_rest, leave_to_the_tier
from seeds import seed_range
from test_client_lives import may_open_sessions

try:
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
except ImportError:  # vLLM 0.30
    KvHintAction = None


def read(hints: object, session: object = None, reader: HintReader | None = None) -> ClientHints:
    params = {"kv_hints": hints} | ({} if session is None else {"session_id": session})
    request: Any = SimpleNamespace(request_id="r1", kv_transfer_params=params)
    return (reader or HintReader()).read(request)


def envelope(*actions: object, version: object = "1") -> dict[str, object]:
    return {"protocol_version": version, "message_id": "m", "actions": list(actions)}


def action(kind: object, payload: object = None, version: object = "1") -> dict[str, object]:
    return {"action_id": "a", "action_type": kind, "action_version": version, "payload": payload}


# What is read of a request


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (None, ()),
        (envelope(), ()),
        (envelope(action("retain")), (("retain", DEFAULT_TTL_S, ""),)),
        (envelope(action("retain", {"ttl_s": 5})), (("retain", 5.0, ""),)),
        (envelope(action("release", {"session_id": "t"})), (("release", DEFAULT_TTL_S, "t"),)),
        (
            envelope(action("demote"), action("prefetch", {"ttl_s": 0.5, "session_id": "t"}, "1.2"), version="1.9"),
            (("demote", DEFAULT_TTL_S, ""), ("prefetch", 0.5, "t")),
        ),
    ],
)
def test_hints_are_read_without_a_word(hints: object, expected: tuple[Any, ...], log_lines: list[str]) -> None:
    assert read(hints).hints == expected
    assert log_lines == []


@pytest.mark.skipif(KvHintAction is None, reason="vLLM 0.30 has no envelope")
def test_envelope_of_vllm_is_read() -> None:
    hints = KvHintsEnvelope("1", "m", [KvHintAction("a", "retain", "1", {"ttl_s": 9})])
    request: Any = SimpleNamespace(request_id="r1", kv_transfer_params=None, kv_hints=hints, session_id="s")
    assert HintReader().read(request) == ClientHints("s", (("retain", 9.0, ""),))


def test_request_without_hints_says_nothing(log_lines: list[str]) -> None:
    for params in (None, {}, {"session_id": 7}, "text", {"max_load_tokens": 5}):
        request: Any = SimpleNamespace(request_id="r1", kv_transfer_params=params)
        assert HintReader().read(request) == NO_HINTS
    assert log_lines == []


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ("retain", "allowed is vLLM's KvHintsEnvelope"),
        (envelope() | {"actions": 5}, "actions is 5; allowed is a list"),
        (envelope("retain"), "an action is 'retain'; allowed is an object"),
        (envelope(*[action("retain")] * 17), "17 actions; allowed are 16"),
        (envelope(action("retain", [])), "the payload of retain is []; allowed is an object"),
        (envelope(action("retain", {"ttl_s": 0})), "ttl_s is 0; allowed is a number of seconds"),
        (envelope(action("retain", {"ttl_s": True})), "ttl_s is True; allowed is a number of seconds"),
        (envelope(action("retain", {"ttl_s": float("nan")})), "ttl_s is nan; allowed is a number of seconds"),
        (envelope(action("retain", {"ttl_s": 10**9})), "86400 at most"),
        (envelope(action("release", {"session_id": ""})), "session_id is ''; allowed is a printable name"),
        (envelope(action("release", {"session_id": "x" * 257})), "1 to 256 characters"),
        (envelope(action("release", {"session_id": "two\nlines"})), "allowed is a printable name"),
    ],
)
def test_wrong_value_costs_that_hint_and_one_line(hints: object, words: str, log_lines: list[str]) -> None:
    assert read(hints).hints == ()
    (line,) = log_lines
    assert line.startswith("WARNING kvferry: kv_hints of request r1: ")
    assert words in line
    assert line.endswith("The request is served without that hint")
    assert "\n" not in line
    assert len(line) < 400


def test_right_hints_beside_a_wrong_one_are_followed(log_lines: list[str]) -> None:
    said = read(envelope(action("retain", {"ttl_s": -1}), action("release"), action("demote", 5)), session=5)
    assert said == ClientHints("", (("release", DEFAULT_TTL_S, ""),))
    (line,) = log_lines
    assert line.count("allowed is") == 3


@pytest.mark.parametrize(
    "hints",
    [
        envelope(action("kvcr.move_to_disk")),
        envelope(action(7)),
        envelope(action(["retain"])),
        envelope(action("retain", version="2")),
        envelope(action("retain"), version="2.0"),
        envelope(action("retain"), version=1),
    ],
)
def test_what_is_unknown_is_ignored_and_named_once(hints: object, log_lines: list[str]) -> None:
    reader = HintReader()
    for _ in range(3):
        assert read(hints, reader=reader).hints == ()
    (line,) = log_lines
    assert "which kvferry ignores" in line


def test_ever_new_unknown_actions_are_not_all_named(log_lines: list[str]) -> None:
    reader = HintReader()
    for i in range(100):
        read(envelope(action(f"unknown-{i}")), reader=reader)
    assert len(log_lines) == 32


def test_hints_are_no_unknown_keys_of_wishes(log_lines: list[str]) -> None:
    request: Any = SimpleNamespace(request_id="r1", kv_transfer_params={"kv_hints": envelope(), "session_id": "s"})
    assert WishReader().read(request) == NO_WISHES
    assert log_lines == []


# What is done about them


def test_session_is_promised_from_its_end_until_it_is_released(make: Make, is_async: bool) -> None:
    engine = make(async_scheduling=is_async)
    engine.add("a", PROMPTS["a"], 20, **hinting("s", ("retain", {"ttl_s": 600})))
    engine.run_until(lambda: len(engine.requests["a"].output_token_ids) > 2)
    assert engine.snapshot()["num_promised"] == 0
    engine.run()
    num_blocks = engine.requests["a"].num_tokens // 16
    assert num_blocks - 1 <= engine.snapshot()["num_promised"] <= num_blocks
    engine.add("b", PROMPTS["b"], 5, **hinting("t", ("release", {"session_id": "s"})))
    engine.run()
    view = engine.snapshot()
    assert view["num_promised"] == 0
    assert (view["hints_retain"], view["hints_release"]) == (1, 1)
    assert_at_rest(engine)


def test_promise_ends_with_its_time(make: Make, is_async: bool) -> None:
    engine = make(async_scheduling=is_async)
    engine.add("a", PROMPTS["a"], 5, **hinting("s", ("retain", {"ttl_s": 0.01})))
    engine.run()
    engine.run_until(lambda: engine.snapshot()["hints_expired"] == 1)
    assert engine.snapshot()["num_promised"] == 0
    assert_at_rest(engine)


def test_aborted_request_keeps_its_promise_and_a_reset_ends_it(make: Make, is_async: bool) -> None:
    engine = make(async_scheduling=is_async)
    engine.add("a", PROMPTS["a"], 50, **hinting("", ("retain", {"ttl_s": 600})))
    engine.run_until(lambda: len(engine.requests["a"].output_token_ids) > 2)
    engine.abort("a")
    assert engine.snapshot()["num_promised"] >= 6
    engine.scheduler.reset_connector_cache()
    assert engine.snapshot()["num_promised"] == 0
    engine.run()
    assert_at_rest(engine)


def test_switched_off_hints_promise_nothing(make: Make, is_async: bool) -> None:
    engine = make({"max_promised_share": 0}, async_scheduling=is_async)
    engine.add("a", PROMPTS["a"], 5, **hinting("s", ("retain", {"ttl_s": 600})))
    engine.run()
    view = engine.snapshot()
    assert view["num_promised"] == view["hints_retain"] == 0
    assert view["hints_refused"] == 1


def test_loads_and_tokens_are_the_same_with_hints(make: Make, folder: Path, is_async: bool) -> None:
    expected = expected_tokens(folder, PROMPTS)
    engine = make(async_scheduling=is_async)
    engine.add("a", PROMPTS["a"], **hinting("s", ("retain", {"ttl_s": 600})))
    engine.run()
    leave_to_the_tier(engine)
    engine.add("a2", PROMPTS["a"], **hinting("s", ("demote", {})))
    engine.run()
    assert engine.finished["a2"].tokens == expected["a"]
    assert engine.external_hit_tokens["a2"] >= 64
    assert engine.snapshot()["num_promised"] == 0
    assert_at_rest(engine)


# Anything at any time


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_with_hints(make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    extra = {
        "cpu_bytes_to_use": 2 * 30 * 6144,
        "staging_bytes": 8 * 6144,
        "host_link": random_link(rng, seed),
        "eviction": rng.choice(["lru", "adaptive"]),
        "max_promised_share": rng.choice([0.25, 1.0]),
    }
    engine = make(extra, async_scheduling=is_async, **{"num_blocks": 36, **model})
    oracle = HintOracle(engine)
    live(engine, rng, prompts, expected, str(extra), params=lambda _: random_hints(rng))
    engine.settle_stores()
    oracle.check()
    assert oracle.num_retained > 0
    assert_at_rest(engine)


@pytest.mark.parametrize(
    ("name", "model", "num_groups"), [("plain", {}, 1), ("hybrid", HYBRID, 2), ("recurrent", RECURRENT, 3)]
)
@pytest.mark.parametrize("seed", seed_range(2))
def test_client_lives_with_hints(
    make: Make, folder: Path, is_async: bool, seed: int, name: str, model: dict[str, Any], num_groups: int
) -> None:
    rng = random.Random(seed)
    extra = {"cpu_bytes_to_use": 2 * 30 * 6144, "staging_bytes": 8 * 6144, "eviction": "lru", "admission": "always"}
    spec = {**model, "max_model_len": 200, "num_blocks": 1 + 28 * num_groups}
    engine: ToyEngine = make(extra, async_scheduling=is_async, **spec)
    oracle = HintOracle(engine)
    with_sessions = may_open_sessions(name, is_async=is_async, num_drafts=0)
    life = ClientLife(engine, folder, rng, with_sessions=with_sessions, params=lambda _: random_hints(rng))
    try:
        life.play(150)
        life.end()
    finally:
        life.close()
    oracle.check()
    assert_at_rest(engine)
