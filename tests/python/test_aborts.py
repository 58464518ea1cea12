# SPDX-License-Identifier: Apache-2.0
"""Requests that end early, wherever they are: nothing leaks, nothing is reused too soon, nothing is told twice."""

import random
from pathlib import Path

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import MODELS, PROMPTS, SLOW_LOADS, UNEVEN_MODEL, Make, assert_at_rest, start_loading, store_all
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

ABORTED, CAPPED = RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_LENGTH_CAPPED


def lookups_of(engine: ToyEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Record what the connector answers to the engine's lookups: request id and tokens."""
    connector, answers = engine.scheduler.connector, []
    ask = connector.get_num_new_matched_tokens

    def record(request: object, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer = ask(request, num_computed_tokens)
        answers.append((request.request_id, answer[0]))
        return answer

    monkeypatch.setattr(connector, "get_num_new_matched_tokens", record)
    return answers


def test_abort_before_any_block_was_allocated_leaves_nothing(make: Make, is_async: bool) -> None:
    # vllm#18485
    engine = make(async_scheduling=is_async)
    store_all(engine)
    engine.add("never scheduled", PROMPTS["a"])
    engine.abort("never scheduled")
    engine.run()
    assert engine.finished["never scheduled"].status == ABORTED
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_abort_between_lookup_and_allocation_leaves_no_lease(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_async: bool, model: dict[str, object]
) -> None:
    # vllm#44100
    engine = make(async_scheduling=is_async, **model)
    store_all(engine)
    # Requests that hold nearly all blocks and go on for long.
    for i in range(4):
        if engine.num_free_blocks >= 9:
            holder = engine.add(f"holder{i}", prompt_of(80 + i, 130), max_tokens=40)
            engine.run_until(lambda holder=holder: holder.num_output_tokens > 0)
    lookups = lookups_of(engine, monkeypatch)
    engine.add("a2", PROMPTS["b"])
    engine.run_until(lambda: ("a2", 144) in lookups)
    assert engine.requests["a2"].status == RequestStatus.WAITING, "it was allocated: nothing was shown"
    engine.abort("a2")
    view = engine.snapshot()
    assert (view["num_leased"], view["num_loads_in_flight"]) == (0, 0)
    engine.run()
    assert_at_rest(engine)


@pytest.mark.parametrize("first", ["stop", "abort"])
def test_abort_and_stop_in_one_step_reach_the_connector_as_one_end(
    make: Make, expected: dict[str, list[int]], is_async: bool, first: str
) -> None:
    # ai-dynamo/dynamo#6681
    engine = make(async_scheduling=is_async)
    request = engine.add("a", PROMPTS["a"], max_tokens=1)
    engine.launch()
    # The output that stops the request is in flight.
    if first == "stop":
        engine.take_output()
    engine.abort("a")
    engine.drain_outputs()
    assert engine.finished["a"].status == (CAPPED if first == "stop" else ABORTED)
    connector = engine.scheduler.connector
    for _ in range(3):
        assert connector.request_finished_all_groups(request, ([],)) == (False, None)
    engine.run()
    assert_at_rest(engine)
    assert engine.generate({"a": PROMPTS["a"]})["a"] == expected["a"]


def tell_ends_again(engine: ToyEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the connector hear of every end twice at once, and again before the next step; returns who ended."""
    connector, ended, who = engine.scheduler.connector, [], []
    tell, plan = connector.request_finished_all_groups, connector.build_connector_meta

    def tell_twice(request: Request, block_ids: tuple[list[int], ...]) -> object:
        who.append(request.request_id)
        ended.append(request)
        assert tell(request, block_ids) == (False, None)
        return tell(request, block_ids)

    def plan_behind_them(output: SchedulerOutput) -> object:
        while ended:
            request = ended.pop()
            if engine.scheduler.requests.get(request.request_id, request) is request:  # else the id is in use again
                assert tell(request, ([],)) == (False, None)
        return plan(output)

    monkeypatch.setattr(connector, "request_finished_all_groups", tell_twice)
    monkeypatch.setattr(connector, "build_connector_meta", plan_behind_them)
    return who


@pytest.mark.parametrize("seed", range(4))
def test_lives_whose_ends_are_told_again_and_again_leave_nothing(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, seed: int
) -> None:
    # ai-dynamo/dynamo#6681, which vLLM's scheduler itself does not do any more
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS)
    link = random_link(rng, seed)
    extra = {"cpu_bytes_to_use": 30 * 6144, "staging_bytes": 8 * 6144, "host_link": link}
    engine = make(extra, async_scheduling=is_async, num_blocks=36)
    who = tell_ends_again(engine, monkeypatch)
    live(engine, rng, prompts, expected, str(link))
    assert len(who) > 20
    assert_at_rest(engine)


def test_engine_steps_on_by_itself_until_an_aborted_load_has_ended(make: Make, is_async: bool) -> None:
    # vllm#43433: no new request, no store, nothing but the pending free keeps it going.
    engine = make(async_scheduling=is_async)
    store_all(engine)
    engine.workers[0].hold_reports()
    start_loading(engine, "a2", PROMPTS["a"])
    engine.abort("a2")
    held = engine.num_free_blocks
    for _ in range(50):
        assert engine.scheduler.has_requests()
        engine.step()
    assert engine.num_free_blocks == held < engine.spec.num_blocks - 1
    engine.workers[0].wait_for_copies()
    engine.workers[0].release_reports()
    # The copy's thread notes its end behind the last byte.
    engine.run_until(lambda: not engine.scheduler.has_requests())
    engine.drain_outputs()
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_blocks_of_an_aborted_load_are_not_reused_under_its_copy(
    make: Make, folder: Path, is_async: bool, model: dict[str, object]
) -> None:
    # KVBM v2, TensorRT-LLM#15546, sglang#30321. The others need every block that is free, and the copy still writes.
    others = {f"other{i}": prompt_of(90 + i, 60) for i in range(12)}
    expected = expected_tokens(folder, others, max_tokens=20, **model)
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async, **model)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    held = {block for group in engine.scheduler.kv_cache_manager.get_block_ids("a2") for block in group} - {0}
    assert held
    engine.abort("a2")
    # However long the copy takes, the engine hears of its end when the others have wanted all blocks.
    engine.workers[0].hold_reports()
    for request_id, prompt in others.items():
        engine.add(request_id, prompt, max_tokens=20)
    num_seen = 0
    while "a2" in engine.scheduler.requests:
        if num_seen > 3 or set(others) <= set(engine.finished):
            engine.workers[0].release_reports()
        engine.step()
        if engine.num_free_blocks < 3:
            num_seen += 1
        for request_id in set(others) & set(engine.scheduler.requests) if "a2" in engine.scheduler.requests else ():
            tables = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
            assert held.isdisjoint(block for group in tables for block in group)
    assert num_seen > 0, "the others had blocks enough: nothing was shown"
    engine.run()
    assert {request_id: engine.finished[request_id].tokens for request_id in others} == expected
    assert_at_rest(engine)


def test_many_aborted_loads_leave_every_slot_reachable(make: Make) -> None:
    # FlexKV#236
    engine = make({"cpu_bytes_to_use": 24 * 6144})
    store_all(engine)
    for i in range(32):
        engine.drop_gpu_cache()
        engine.workers[0].hold_reports()
        start_loading(engine, f"a{i}", PROMPTS["a"])
        engine.abort(f"a{i}")
        engine.workers[0].release_reports()
        engine.run()
    for i in range(6):
        engine.generate({f"fill{i}": prompt_of(60 + i, 100)}, max_tokens=1)
        engine.settle_stores()
    view = engine.snapshot()
    assert view["num_evictable"] == view["num_slots"] == 24
    assert_at_rest(engine)
