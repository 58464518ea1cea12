# SPDX-License-Identifier: Apache-2.0
"""The connector under vLLM's own scheduler, with real transfers between small CPU tensors."""

import time
from pathlib import Path

import pytest
from harness import ToyEngine, WrongKvError, expected_tokens, prompt_of
from kvferry.errors import ProtocolError
from kvferry.vllm import versions
from kvferry.vllm.metadata import KvFerryWorkerMetadata
from scenarios import (
    PROMPTS,
    SLOW_LOADS,
    SLOW_STORES,
    Make,
    again,
    assert_at_rest,
    make_with_damage_found,
    start_loading,
    store_all,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus


@pytest.mark.parametrize("world_size", [1, 2])
def test_blocks_that_the_engine_lost_come_back_with_the_same_tokens(
    make: Make, expected: dict[str, list[int]], is_async: bool, world_size: int
) -> None:
    engine = make(async_scheduling=is_async, world_size=world_size)
    assert engine.generate(PROMPTS) == expected
    engine.settle_stores()
    engine.drop_gpu_cache()
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    # Whole blocks of 16 below the last token of the prompt.
    assert [engine.external_hit_tokens[request_id + "2"] for request_id in PROMPTS] == [96, 144, 32]
    assert_at_rest(engine)


@pytest.mark.parametrize("layout", list(KVCacheLayout))
def test_every_memory_layout_of_the_engine_round_trips(
    make: Make, expected: dict[str, list[int]], layout: KVCacheLayout
) -> None:
    engine = make(layout=layout)
    store_all(engine)
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert engine.external_hit_tokens["b2"] == 144


def test_prefix_evicted_by_the_engine_is_loaded_and_a_prefix_it_kept_is_not(make: Make) -> None:
    engine = make(num_blocks=34)
    engine.generate({"first": PROMPTS["a"]})
    engine.generate({f"other{i}": prompt_of(10 + i, 200) for i in range(4)})
    engine.generate({"first again": PROMPTS["a"]})
    engine.generate({"and again": PROMPTS["a"]})
    assert engine.external_hit_tokens["first again"] == 96
    assert engine.external_hit_tokens["and again"] == 0
    assert_at_rest(engine)


def test_tier_smaller_than_the_work_evicts_and_serves_nothing_wrong(make: Make, is_async: bool) -> None:
    engine = make({"cpu_bytes_to_use": 20 * 6144}, async_scheduling=is_async, num_blocks=34)
    prompts = {f"r{i}": prompt_of(20 + i % 5, 120) for i in range(25)}
    tokens = {}
    for request_id, prompt in prompts.items():
        tokens |= engine.generate({request_id: prompt})
    assert len({tuple(value) for value in tokens.values()}) == 5
    assert engine.snapshot()["num_evicted_total"] > 0
    assert_at_rest(engine)


def test_request_that_skips_reading_the_cache_loads_nothing(make: Make) -> None:
    engine = make()
    store_all(engine)
    engine.add("a2", PROMPTS["a"], skip_reading_prefix_cache=True)
    engine.run()
    assert engine.external_hit_tokens["a2"] == 0


def test_no_block_is_held_and_no_step_is_made_for_the_sake_of_a_store(make: Make, is_async: bool) -> None:
    # vllm#42085
    engine = make({"host_link": SLOW_STORES}, async_scheduling=is_async)
    engine.generate(PROMPTS)
    assert engine.snapshot()["num_writable"] > 0
    assert engine.num_free_blocks == engine.spec.num_blocks - 1
    assert not engine.scheduler.has_requests()


def test_abort_while_loading_frees_the_blocks_once_the_copy_ended(make: Make, is_async: bool) -> None:
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    held = engine.num_free_blocks
    engine.abort("a2")
    assert engine.num_free_blocks == held < engine.spec.num_blocks - 1
    engine.run()
    assert engine.finished["a2"].status == RequestStatus.FINISHED_ABORTED
    assert_at_rest(engine)


def test_abort_beside_another_load_leaves_the_other_alone(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    start_loading(engine, "b2", PROMPTS["b"])
    engine.abort("a2")
    engine.run()
    assert engine.finished["b2"].tokens == expected["b"]
    assert engine.external_hit_tokens["b2"] == 144
    assert_at_rest(engine)


def test_abort_before_the_plan_with_the_load_is_made_is_reported_all_the_same(make: Make) -> None:
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    # The engine's own order: an abort between two steps; the load was planned by the last one.
    for _ in range(3):
        request = engine.add("a2", PROMPTS["a"])
        engine.step()
        assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        engine.abort("a2")
        engine.run()
        assert_at_rest(engine)


def test_request_id_used_again_after_an_abort_while_loading_gets_its_own_blocks(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    # vllm#51637
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "again", PROMPTS["a"])
    engine.abort("again")
    engine.run()
    assert engine.generate({"again": PROMPTS["b"]})["again"] == expected["b"]
    assert engine.generate({"again": PROMPTS["c"]})["again"] == expected["c"]
    assert_at_rest(engine)


def test_finishing_a_request_any_number_of_times_gives_the_same_answer(make: Make) -> None:
    # ai-dynamo/dynamo#6681
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    connector = engine.scheduler.connector
    start_loading(engine, "a2", PROMPTS["a"])
    request = engine.scheduler.requests["a2"]
    engine.abort("a2")
    stranger = engine.make_request("never added", PROMPTS["a"])
    for _ in range(3):
        assert connector.request_finished_all_groups(request, ([],)) == (False, None)
        assert connector.request_finished(request, []) == (False, None)
        assert connector.request_finished_all_groups(stranger, ([],)) == (False, None)
    engine.run()
    assert_at_rest(engine)


def test_preempted_requests_resume_with_the_same_tokens(make: Make, folder: Path, is_async: bool) -> None:
    prompts = {f"p{i}": prompt_of(40 + i, 60) for i in range(6)}
    expected = expected_tokens(folder, prompts, max_tokens=80)
    engine = make(num_blocks=34, async_scheduling=is_async)
    assert engine.generate(prompts, max_tokens=80) == expected
    assert sum(engine.requests[request_id].num_preemptions for request_id in prompts) > 0
    assert_at_rest(engine)


@pytest.mark.parametrize("world_size", [1, 2])
def test_any_one_failing_copy_is_recomputed(
    make: Make, expected: dict[str, list[int]], is_async: bool, world_size: int
) -> None:
    failed_loads = 0
    for n in range(1, 200):
        engine = make({"host_link": {"fail_nth": n}}, async_scheduling=is_async, world_size=world_size)
        assert engine.generate(PROMPTS) == expected
        engine.settle_stores()
        engine.drop_gpu_cache()
        tokens = engine.generate(again("2"))
        assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
        assert_at_rest(engine)
        view = engine.snapshot()
        failed_loads += len(engine.failed_loads)
        if not view["failed_stores"] and not view["failed_loads"]:
            break
    else:
        pytest.fail("no run without a failure")
    assert failed_loads > 0, "no run failed a load: nothing was shown"


def test_failed_load_fails_its_request_by_policy_and_is_not_offered_again(
    make: Make, expected: dict[str, list[int]]
) -> None:
    for n in range(1, 200):
        engine = make({"host_link": {"fail_nth": n}}, load_failure_policy="fail")
        store_all(engine)
        engine.generate(again("2"))
        failed = {request_id for request_id in again("2") if engine.finished[request_id].tokens == []}
        assert failed == set(engine.failed_loads)
        for request_id in failed:
            assert engine.finished[request_id].status == RequestStatus.FINISHED_ERROR
        for request_id in set(again("2")) - failed:
            assert engine.finished[request_id].tokens == expected[request_id[0]]
        if failed:
            tokens = engine.generate(again("3"))
            assert [tokens[request_id + "3"] for request_id in PROMPTS] == list(expected.values())
            assert_at_rest(engine)
            return
    pytest.fail("no copy of a load was the one to fail")


def test_tier_whose_every_copy_fails_costs_nothing_but_hits(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    engine = make({"host_link": {"fail_probability": 1.0}}, async_scheduling=is_async)
    assert engine.generate(PROMPTS) == expected
    engine.run_until(lambda: engine.snapshot()["num_stores_in_flight"] == 0)
    engine.drop_gpu_cache()
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    assert set(engine.external_hit_tokens.values()) == {0}
    assert_at_rest(engine)


def test_reset_while_loading_computes_the_tokens_anew(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async)
    store_all(engine)
    start_loading(engine, "a2", PROMPTS["a"])
    assert engine.scheduler.reset_connector_cache()
    engine.run()
    assert engine.failed_loads == ["a2"]
    assert engine.finished["a2"].tokens == expected["a"]
    assert_at_rest(engine)


def test_reset_while_storing_leaves_nothing_to_be_found(make: Make, is_async: bool) -> None:
    engine = make({"host_link": SLOW_STORES}, async_scheduling=is_async)
    engine.generate(PROMPTS)
    assert engine.snapshot()["num_stores_in_flight"] > 0
    assert engine.scheduler.reset_connector_cache()
    engine.drop_gpu_cache()
    engine.run_until(lambda: engine.snapshot()["num_aborted"] == 0)
    engine.add("a2", PROMPTS["a"])
    engine.run()
    assert engine.external_hit_tokens["a2"] == 0


def test_reset_of_all_caches_with_running_requests_keeps_their_tokens(
    make: Make, expected: dict[str, list[int]], is_async: bool
) -> None:
    engine = make(async_scheduling=is_async)
    for request_id, prompt in PROMPTS.items():
        engine.add(request_id, prompt)
    engine.step()
    engine.step()
    # vLLM itself refuses while a batch is in flight, as it defers the frees of its blocks.
    engine.drain_outputs()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.run()
    assert {request_id: engine.finished[request_id].tokens for request_id in PROMPTS} == expected
    engine.settle_stores()
    assert_at_rest(engine)


@pytest.mark.parametrize("ring_blocks", [16, 4], ids=["ring of a step", "ring of a quarter step"])
def test_nearly_all_blocks_of_a_prefill_only_workload_are_stored(make: Make, is_async: bool, ring_blocks: int) -> None:
    # A forward takes as long as the link needs for some rings: then the ring, however small, drains while it runs.
    engine = make({"staging_bytes": ring_blocks * 6144}, async_scheduling=is_async, num_blocks=129, layer_time_s=0.005)
    prompts = {f"p{i}": prompt_of(100 + i, 16 * (3 + i % 8)) for i in range(60)}
    engine.generate(prompts, max_tokens=1)
    engine.settle_stores()
    num_blocks = sum(len(prompt) // 16 for prompt in prompts.values())
    assert engine.snapshot()["num_evictable"] >= 0.95 * num_blocks


def overwrite_all_slots(engine: ToyEngine) -> None:
    """Make every slot of rank 0 hold the bytes of slot 0."""
    worker = engine.workers[0].connector.worker_side.engine
    for slot in range(1, worker.num_slots):
        worker.unsafe_copy_slot(0, slot)


def test_overwritten_slots_are_noticed_by_the_toy(make: Make, expected: dict[str, list[int]]) -> None:
    # The check of every other test can fail: on the cells, and without looking at them, on the tokens.
    engine = make({"cpu_bytes_to_use": 24 * 6144, "verify": "off"})
    store_all(engine)
    overwrite_all_slots(engine)
    with pytest.raises(WrongKvError, match="wrong KV at"):
        engine.generate(again("2"))

    engine = make({"cpu_bytes_to_use": 24 * 6144, "verify": "off"})
    store_all(engine)
    overwrite_all_slots(engine)
    engine.workers[0].model.check_kv = False
    assert engine.generate(again("2"))["b2"] != expected["b"]


def test_overwritten_slots_are_found_computed_and_not_used_again(
    make: Make, is_async: bool, expected: dict[str, list[int]]
) -> None:
    engine = make({"cpu_bytes_to_use": 24 * 6144, "verify": "all"}, async_scheduling=is_async)
    store_all(engine)
    num_good = engine.snapshot()["num_evictable"]
    worker = engine.workers[0].connector.worker_side.engine
    worker.unsafe_copy_slot(0, 1)
    found = engine.generate(again("2"))
    assert {name: found[f"{name}2"] for name in expected} == expected
    engine.settle_stores()
    view = engine.snapshot()
    assert view["damaged_blocks/0"] == view["num_set_aside"] == view["num_quarantined"] == 1
    assert view["num_evictable"] >= num_good - 1


def test_sampled_checks_find_damage_within_some_loads(make: Make) -> None:
    engine = make({"cpu_bytes_to_use": 24 * 6144, "verify": "sampled"})
    store_all(engine)
    # What is loaded unchecked is wrong; the toy's own check would end the test there.
    for worker in engine.workers:
        worker.model.check_kv = False
    engine.workers[0].connector.worker_side.engine.unsafe_copy_slot(0, 1)
    for i in range(2, 12):
        engine.drop_gpu_cache()
        engine.generate(again(str(i)))
        engine.settle_stores()
        if engine.snapshot()["damaged_blocks/0"] == 1:
            break
    assert engine.snapshot()["num_set_aside"] == 1


def test_damage_is_found_without_a_load_and_the_block_is_computed(make: Make, expected: dict[str, list[int]]) -> None:
    engine = make_with_damage_found(make)
    assert engine.snapshot()["num_set_aside"] == 1
    found = engine.generate(again("2"))
    assert {name: found[f"{name}2"] for name in expected} == expected
    assert engine.snapshot()["failed_loads"] == 0


def test_engine_gets_the_ends_that_it_waits_for_and_no_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # vllm#43226, vllm#46240
    side = make().scheduler.connector.scheduler_side

    def after_fold(received: set[str] | None, ended: list[str], stale: list[str]) -> set[str] | None:
        monkeypatch.setattr(side, "_fold", lambda reports: (ended, stale, []))
        output = KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=KvFerryWorkerMetadata([b"r"]))
        side.on_worker_output(output)
        return output.finished_recving

    assert after_fold({"gone", "another connector's"}, [], ["gone", "never there"]) == {"another connector's"}
    assert after_fold(None, ["ended"], []) == {"ended"}
    assert after_fold({"a"}, ["a", "b"], ["a"]) == {"a", "b"}
    assert after_fold(None, [], []) is None


def test_old_hook_tells_of_no_load_and_refuses_to_hide_a_failure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = make().workers[0].connector
    assert connector.get_finished(set()) == (None, None)
    monkeypatch.setattr(connector.worker_side, "collect", lambda: ["a"])
    with pytest.raises(ProtocolError, match=r"loads failed for \['a'\]"):
        connector.get_finished(set())


def test_connector_asks_the_engine_for_nothing_special(make: Make) -> None:
    connector = make().scheduler.connector
    assert connector.requires_kv_delivery is False
    assert connector.has_pending_push_work() is False
    assert connector.get_finished_count() is None
    assert connector.supports_sleep_mode(None) is True
    if versions.host_cache_hit_source() is not None:
        assert connector.get_external_cache_hit_sources(None, 32) == {"host": 32}


def test_shutdown_with_transfers_in_flight_waits_for_them_and_may_be_repeated(make: Make) -> None:
    engine = make({"host_link": {"latency_us": 100_000}})
    engine.generate(PROMPTS)
    connector, worker = engine.scheduler.connector, engine.workers[0].connector
    started = time.monotonic()
    for _ in range(2):
        connector.shutdown()
        worker.shutdown()
    assert time.monotonic() - started < 20
    # An abort that comes late finds an inert connector.
    assert connector.request_finished(engine.make_request("late", [1]), []) == (False, None)
