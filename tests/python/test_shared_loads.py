# SPDX-License-Identifier: Apache-2.0
"""Requests with one prefix share its load: the first brings it, the others have it from the engine's own cache."""

import time
from pathlib import Path

import pytest
from harness import expected_tokens, prompt_of
from scenarios import MODELS, PROMPTS, SLOW_LOADS, Make, assert_at_rest, start_loading, store_all
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.request import RequestStatus

SAME = {f"r{i}": PROMPTS["b"] for i in range(4)}


@pytest.mark.parametrize("model", MODELS)
def test_one_load_serves_all(make: Make, folder: Path, is_async: bool, model: dict[str, object]) -> None:
    engine = make({"host_link": {"latency_us": 3000}}, async_scheduling=is_async, num_blocks=129, **model)
    store_all(engine)
    expected = expected_tokens(folder, SAME, **model)
    assert engine.generate(SAME) == expected
    view = engine.snapshot()
    assert view["load_waits"] == len(SAME) - 1
    (longest, *others) = sorted(engine.external_hit_tokens.values(), reverse=True)[: len(SAME)]
    assert longest > 0
    assert others == [0] * (len(SAME) - 1)
    assert_at_rest(engine)


def test_without_it_every_request_loads(make: Make) -> None:
    engine = make({"host_link": {"latency_us": 3000}, "share_loads": False}, num_blocks=129)
    store_all(engine)
    engine.generate(SAME)
    assert all(engine.external_hit_tokens[request_id] > 0 for request_id in SAME)
    assert engine.snapshot()["load_waits"] == 0


def test_who_waits_goes_on_when_the_loader_is_aborted(make: Make, folder: Path) -> None:
    engine = make({"host_link": {"latency_us": 100_000}})
    store_all(engine)
    start_loading(engine, "loader", PROMPTS["b"])
    engine.add("waits", PROMPTS["b"])
    engine.step()
    assert engine.snapshot()["load_waits"] == 1
    engine.abort("loader")
    engine.run()
    assert engine.external_hit_tokens["waits"] > 0
    assert engine.finished["waits"].tokens == expected_tokens(folder, {"waits": PROMPTS["b"]})["waits"]
    assert_at_rest(engine)


def test_who_waits_does_not_hold_others_up(make: Make) -> None:
    engine = make({"host_link": SLOW_LOADS})
    store_all(engine)
    start_loading(engine, "loader", PROMPTS["b"])
    engine.add("waits", PROMPTS["b"])
    other = engine.add("other", prompt_of(40, 50))
    engine.run_until(other.is_finished)
    assert engine.requests["loader"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert engine.snapshot()["load_waits"] == 1


def test_who_waited_lets_loaded_requests_behind_it_run_that_hold_the_pool(
    make: Make, folder: Path, is_async: bool
) -> None:
    # The loader's nine blocks end first. Then the pool has too few blocks for who waited, because the last one's load
    # holds six, and nothing runs. vLLM stops at the first request without blocks, so it does not reach the last one.
    prompts = {"loader": PROMPTS["b"], "waits": PROMPTS["b"] + prompt_of(41, 60), "last": PROMPTS["a"]}
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async, num_blocks=18, max_model_len=240)
    store_all(engine)
    start_loading(engine, "loader", prompts["loader"])
    engine.add("waits", prompts["waits"])
    engine.add("last", prompts["last"])
    engine.step()
    assert engine.snapshot()["load_waits"] == 1
    assert engine.requests["last"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.run()
    expected = expected_tokens(folder, prompts)
    assert {request_id: engine.finished[request_id].tokens for request_id in prompts} == expected
    assert_at_rest(engine)


def test_a_load_that_takes_longer_is_not_waited_for(make: Make) -> None:
    engine = make({"host_link": {"h2d_gb_s": 0.00002}})
    store_all(engine)
    start_loading(engine, "loader", PROMPTS["b"])
    waits = engine.add("waits", PROMPTS["b"])
    began = time.monotonic()
    engine.run_until(lambda: waits.status == RequestStatus.WAITING_FOR_REMOTE_KVS)
    assert time.monotonic() - began < 2.5
    assert engine.snapshot()["num_loads_in_flight"] == 2


def test_as_a_child_of_multi_connector_nobody_waits(make: Make) -> None:
    child = {
        "kv_connector": "KvFerryConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": "16MiB",
            "min_load_tokens": 0,
            "host_link": {"latency_us": 3000},
        },
    }
    engine = make({"connectors": [child]}, connector="MultiConnector", connector_module=None)
    assert isinstance(engine.scheduler.connector, MultiConnector)
    store_all(engine)
    engine.generate(SAME)
    assert engine.snapshot()["hit_tokens"] > 0
    assert engine.snapshot()["load_waits"] == 0
