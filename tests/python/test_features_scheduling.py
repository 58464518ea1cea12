# SPDX-License-Identifier: Apache-2.0
"""What vLLM's scheduler can be told to do beside serving in turn: right tokens, tier hits, and nothing is kept."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm
from harness import ToyEngine, expected_tokens, prompt_of
from kvferry.config import KvFerryConfig
from random_lives import NUM_TOKENS, live, random_prompts
from scenarios import (
    MODELS,
    PROMPTS,
    Make,
    again,
    assert_at_rest,
    assert_pool_is_whole,
    start_loading,
    store_all,
)
from seeds import seed_range
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

BLOCK = 16

# Loads of the prompts take some tenths of a second; and the engine hears of no end before it steps.
SLOW = {"h2d_gb_s": 0.0004}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What to give to `ToySpec`."""
    return dict(request.param)


def is_idle(engine: ToyEngine) -> bool:
    """Whether vLLM's engine core would wait for requests instead of stepping."""
    return not engine.scheduler.has_requests()


def run_until_idle(engine: ToyEngine) -> None:
    engine.run_until(lambda: is_idle(engine))
    engine.drain_outputs()


# Priorities


def test_preempted_for_a_higher_priority_and_resumed_gives_the_same_tokens(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    # The pool holds three of a group's requests at their end.
    low = {f"low{i}": prompt_of(40 + i, 60) for i in range(4)}
    high = {f"high{i}": prompt_of(50 + i, 60) for i in range(3)}
    expected = expected_tokens(folder, low | high, max_tokens=80, **model)
    engine = make(policy="priority", async_scheduling=is_async, **{"num_blocks": 34, **model})
    for request_id, prompt in low.items():
        engine.add(request_id, prompt, 80, options={"priority": 1})
    engine.run_until(lambda: all(engine.requests[request_id].num_output_tokens > 10 for request_id in list(low)[:2]))
    for request_id, prompt in high.items():
        engine.add(request_id, prompt, 80, options={"priority": 0})
    engine.run()
    assert {request_id: end.tokens for request_id, end in engine.finished.items()} == expected
    num_low = sum(engine.requests[request_id].num_preemptions for request_id in low)
    num_high = sum(engine.requests[request_id].num_preemptions for request_id in high)
    # First come, first served preempts those that came last. A request that loads holds blocks, and is not preempted.
    assert num_low > num_high
    # What was computed before a preemption and behind it is one text in the tier.
    engine.settle_stores()
    engine.drop_gpu_cache()
    longer = {f"{request_id}+": prompt + expected[request_id] for request_id, prompt in low.items()}
    expected_longer = expected_tokens(folder, longer, **model)
    assert engine.generate(longer) == expected_longer
    assert all(engine.external_hit_tokens[request_id] >= 60 // BLOCK * BLOCK for request_id in longer)
    assert_at_rest(engine)


# Speculative decoding


def propose_from(engine: ToyEngine, text_of: Callable[[str], list[int]]) -> None:
    """Let the ranks propose a request's text (prompt and output, by its id), with every fourth token wrong."""

    def drafts(request_id: str, position: int, num_drafts: int) -> list[int]:
        text = text_of(request_id)
        return [text[at] if at % 4 and at < len(text) else -1 for at in range(position, position + num_drafts)]

    for worker in engine.workers:
        worker.model.drafts = drafts


@pytest.mark.parametrize("world_size", [1, 2])
def test_only_accepted_drafts_are_stored(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any], world_size: int
) -> None:
    num_tokens = 60
    model = {**model, "num_blocks": 64, "max_model_len": 256}
    expected = expected_tokens(folder, PROMPTS, max_tokens=num_tokens, **model)
    texts = {request_id: prompt + expected[request_id] for request_id, prompt in PROMPTS.items()}
    # And what comes behind, for conversations that go on.
    longer = {f"{request_id}+": [*text[:-1], 7] for request_id, text in texts.items()}
    expected_longer = expected_tokens(folder, longer, max_tokens=8, **model)
    # A ring that is never full: what has no room in it may have left its window before its next turn.
    ring = {"staging_bytes": 128 * 6144, "retention": "dense"}
    engine = make(ring, num_drafts=3, async_scheduling=is_async, world_size=world_size, **model)
    propose_from(engine, lambda request_id: texts[request_id[0]])
    assert engine.generate(PROMPTS, max_tokens=num_tokens) == expected
    assert engine.workers[0].model.num_accepted > 0
    assert engine.workers[0].model.num_rejected > 0
    engine.settle_stores()
    engine.drop_gpu_cache()
    assert engine.generate(longer, max_tokens=8) == expected_longer
    for request_id, prompt in longer.items():
        whole = (len(prompt) - 1) // BLOCK * BLOCK
        # The last block is hashed when its request has ended already; vLLM caches it for few blocks of a window.
        missed = BLOCK if is_async and "layer_pattern" in model else 0
        assert whole - missed <= engine.external_hit_tokens[request_id] <= whole
    engine.settle_stores()
    assert_at_rest(engine)


def test_drafts_beside_preemptions_failures_and_aborts_leave_the_tokens_alone(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    rng = random.Random(5)
    prompts = {f"{name}": prompt_of(40 + i, 60) for i, name in enumerate("pqrstu")}
    expected = expected_tokens(folder, prompts, max_tokens=70, **model)
    link = {"fail_probability": 0.1, "bandwidth_gb_s": 0.01, "seed": 5}
    engine = make({"host_link": link}, num_drafts=3, async_scheduling=is_async, **{**model, "num_blocks": 34})
    texts = {request_id: prompt + expected[request_id] for request_id, prompt in prompts.items()}
    propose_from(engine, lambda request_id: texts[request_id[0]])
    for turn in range(4):
        ids = {f"{request_id}{turn}": prompt for request_id, prompt in prompts.items()}
        for request_id, prompt in ids.items():
            engine.add(request_id, prompt, 70)
        aborted = rng.choice(list(ids))
        engine.run_until(lambda: engine.requests[aborted].num_output_tokens > 5)  # noqa: B023
        engine.abort(aborted)
        engine.run()
        for request_id in set(ids) - {aborted}:
            assert engine.finished[request_id].tokens == expected[request_id[0]], request_id
        engine.settle_stores()
        engine.drop_gpu_cache()
    assert sum(request.num_preemptions for request in engine.requests.values()) > 0
    assert engine.snapshot()["hit_tokens"] > 0
    assert_at_rest(engine)


@pytest.mark.parametrize("seed", seed_range(2))
def test_random_lives_with_priorities_and_drafts_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    link = {"bandwidth_gb_s": 0.001, "order": "shuffled", "fail_probability": 0.1, "seed": seed}
    engine = make(
        {"cpu_bytes_to_use": 2 * 30 * 6144, "staging_bytes": 8 * 6144, "host_link": link},
        policy="priority",
        num_drafts=3,
        async_scheduling=is_async,
        world_size=2,
        **{"num_blocks": 36, **model},
    )
    texts = {tuple(prompt): prompt + expected[name] for name, prompt in prompts.items()}
    propose_from(engine, lambda request_id: texts[tuple(engine.requests[request_id].prompt_token_ids or [])])
    live(engine, rng, prompts, expected, f"seed {seed}")
    assert engine.workers[0].model.num_accepted > 0
    assert_at_rest(engine)


# Prompt logprobs


def test_prompt_logprobs_take_nothing_from_the_tier_and_give_it_their_blocks(make: Make, is_async: bool) -> None:
    engine = make(async_scheduling=is_async)
    engine.add("a1", PROMPTS["a"], prompt_logprobs=1)
    engine.run()
    engine.settle_stores()
    engine.drop_gpu_cache()
    request = engine.add("a2", PROMPTS["a"], prompt_logprobs=1)
    # vLLM drops what it is offered for such a request; it is not even offered.
    assert engine.scheduler.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.run()
    assert engine.external_hit_tokens["a2"] == 0
    assert engine.snapshot()["hit_tokens"] == 0
    engine.drop_gpu_cache()
    engine.add("a3", PROMPTS["a"])
    engine.run()
    assert engine.external_hit_tokens["a3"] == 96
    assert len({tuple(engine.finished[request_id].tokens) for request_id in ("a1", "a2", "a3")}) == 1
    assert_at_rest(engine)


# Resets


@pytest.mark.parametrize("reset_connector", [False, True])
def test_reset_of_the_engines_cache_takes_the_tier_along_if_it_is_told_to(
    make: Make, is_async: bool, model: dict[str, Any], reset_connector: bool
) -> None:
    engine = make(async_scheduling=is_async, **model)
    first = engine.generate(PROMPTS)
    engine.settle_stores()
    assert engine.scheduler.reset_prefix_cache(reset_connector=reset_connector)
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(first.values())
    hits = [engine.external_hit_tokens[request_id + "2"] for request_id in PROMPTS]
    assert hits == ([0, 0, 0] if reset_connector else [96, 144, 32])
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.parametrize("reset_connector", [False, True])
def test_reset_while_loading_is_refused_by_the_engine_and_its_tokens_stay_right(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any], reset_connector: bool
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"host_link": SLOW}, async_scheduling=is_async, **model)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    # vLLM's own answer: the load holds blocks. The tier is emptied all the same.
    assert not engine.scheduler.reset_prefix_cache(reset_connector=reset_connector)
    engine.add("b2", PROMPTS["b"])
    engine.run()
    assert engine.failed_loads == (["a2"] if reset_connector else [])
    assert [engine.finished[request_id + "2"].tokens for request_id in "ab"] == [expected["a"], expected["b"]]
    assert (engine.external_hit_tokens["b2"] == 0) == reset_connector
    engine.settle_stores()
    assert_at_rest(engine)


# Pause and resume, as the engine core does it


def test_pause_that_keeps_requests_outlasts_every_time_out(
    make: Make, expected: dict[str, list[int]], is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvFerryConfig, "rank_timeout_s", 0.5)
    link = {"h2d_gb_s": 0.002, "d2h_gb_s": 0.002}
    engine = make({"host_link": link, "transfer_timeout_s": 1}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.add("c3", prompt_of(9, 60))
    engine.step()  # its stores are under way too
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine.drain_outputs()
    assert is_idle(engine)
    time.sleep(1.2)  # longer than each of them; nobody steps
    engine.add("b2", PROMPTS["b"])
    assert is_idle(engine)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    for request_id in ("a2", "b2"):
        assert engine.finished[request_id].tokens == expected[request_id[0]]
    assert [engine.external_hit_tokens[request_id] for request_id in ("a2", "b2")] == [96, 144]
    engine.settle_stores()
    assert_at_rest(engine)


def test_pause_that_keeps_requests_and_clears_the_cache_fails_while_one_loads(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"host_link": SLOW}, async_scheduling=is_async, **model)
    store_all(engine)
    running = engine.add("c2", prompt_of(9, 60), max_tokens=40)
    engine.run_until(lambda: running.num_output_tokens > 1)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine.drain_outputs()
    # vLLM's own refusal, with any connector that loads asynchronously. Running requests have lost their blocks by then.
    with pytest.raises(RuntimeError, match="waiting for remote KV transfer"):
        engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert engine.finished["a2"].tokens == expected["a"]
    assert engine.external_hit_tokens["a2"] == 96
    assert len(engine.finished["c2"].tokens) == 40
    engine.settle_stores()
    assert_at_rest(engine)


# Since 0.32 a paused engine steps on for a request that holds blocks, and runs it.
runs_what_loaded = [int(part) for part in vllm.__version__.split(".")[:2]] >= [0, 32]


@pytest.mark.skipif(not runs_what_loaded, reason="vLLM before 0.32")
def test_pause_that_waits_lets_a_load_end_and_leaves_the_queue_alone(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"host_link": SLOW}, async_scheduling=is_async, **model)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    queued = engine.add("b2", PROMPTS["b"])
    run_until_idle(engine)
    assert engine.finished["a2"].tokens == expected["a"]
    assert queued.status == RequestStatus.WAITING
    # What ``pause_generation(clear_cache=True)`` does once the engine is idle.
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert engine.finished["b2"].tokens == expected["b"]
    assert engine.external_hit_tokens["b2"] == 0
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.skipif(runs_what_loaded, reason="vLLM since 0.32")
def test_pause_that_waits_leaves_a_load_for_later(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"host_link": SLOW}, async_scheduling=is_async, **model)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.drain_outputs()
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.add("b2", PROMPTS["b"])
    assert is_idle(engine)
    assert engine.requests["a2"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    for request_id, num_hit in (("a2", 96), ("b2", 144)):
        assert engine.finished[request_id].tokens == expected[request_id[0]]
        assert engine.external_hit_tokens[request_id] == num_hit
    engine.settle_stores()
    assert_at_rest(engine)


def test_pause_that_aborts_a_load_ends_once_its_blocks_are_free(
    make: Make, is_async: bool, model: dict[str, Any]
) -> None:
    engine = make({"host_link": SLOW}, async_scheduling=is_async, **model)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert not is_idle(engine), "the copy is under way"
    run_until_idle(engine)
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert_at_rest(engine)


# No prefix caching


def test_engine_without_prefix_caching_gives_its_tokens_and_asks_for_nothing(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any]
) -> None:
    prompts = {f"p{i}": prompt_of(40 + i, 60) for i in range(6)}
    expected = expected_tokens(folder, prompts, max_tokens=80, **model)
    engine = make(prefix_caching=False, async_scheduling=is_async, **{"num_blocks": 34, **model})
    assert engine.generate(prompts, max_tokens=80) == expected
    assert sum(engine.requests[request_id].num_preemptions for request_id in prompts) > 0
    assert engine.generate({"p0 again": prompts["p0"]}, max_tokens=80) == {"p0 again": expected["p0"]}
    assert set(engine.external_hit_tokens.values()) == {0}
    assert engine.connector_stats == []
    assert_pool_is_whole(engine)


# Failures


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_failed_loads_end_as_the_policy_says(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any], policy: str
) -> None:
    prompts = {**PROMPTS, "d": PROMPTS["b"][:100] + PROMPTS["c"]}
    expected = expected_tokens(folder, prompts, **model)
    link = {"fail_probability": 0.1, "seed": 3}
    engine = make({"host_link": link}, load_failure_policy=policy, async_scheduling=is_async, num_blocks=64, **model)
    for turn in range(100):
        ids = {f"{request_id}{turn}": prompt for request_id, prompt in prompts.items()}
        engine.generate(ids)
        failed = set(engine.failed_loads) & set(ids)
        for request_id in ids:
            end = engine.finished[request_id]
            if policy == "fail" and request_id in failed:
                assert (end.status, end.tokens) == (RequestStatus.FINISHED_ERROR, [])
            else:
                assert end.tokens == expected[request_id[0]]
        engine.settle_stores()
        assert_at_rest(engine)
        engine.drop_gpu_cache()
        if len(engine.failed_loads) >= 4:
            break
    assert engine.failed_loads, "no load failed: nothing was shown"
    assert engine.snapshot()["hit_tokens"] > 0
