# SPDX-License-Identifier: Apache-2.0
"""Which blocks are stored and loaded, and that their bytes are those that they had when they were complete."""

import pytest
from harness import prompt_of
from scenarios import MODELS, PROMPTS, SLOW_LOADS, STORE_ALL, UNEVEN, UNEVEN_MODEL, Make, assert_at_rest
from vllm.v1.request import RequestStatus

# Of one layer: 16 tokens, keys and values of 2 heads of 8 numbers.
LAYER_BYTES = 2048


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(32, 1), (30, 3), (31, 2), (17, 16)])
def test_last_complete_block_of_a_request_is_stored(
    make: Make, is_async: bool, num_prompt: int, max_tokens: int
) -> None:
    # vllm#41704: 32 tokens have KV at the end, which are two blocks. The last token that comes out has none.
    engine = make(async_scheduling=is_async)
    engine.generate({"a": prompt_of(5, num_prompt)}, max_tokens)
    engine.settle_stores()
    assert engine.snapshot()["stored"] == 2
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_block_that_several_requests_compute_is_stored_once(
    make: Make, is_async: bool, model: dict[str, object]
) -> None:
    # vllm#41289: at once, one after the other while the first store is under way, and once more when it is stored.
    engine = make({"retention": "dense"}, async_scheduling=is_async, **model)
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)
    engine.workers[0].hold_reports()
    for i in range(3):
        engine.add(f"a{i}", PROMPTS["a"], max_tokens=2)
    engine.run()
    engine.drop_gpu_cache()
    engine.generate({"again": PROMPTS["a"]}, max_tokens=2)
    engine.workers[0].wait_for_copies()
    engine.workers[0].release_reports()
    engine.settle_stores()
    engine.drop_gpu_cache()
    engine.add("without the cache", PROMPTS["a"], max_tokens=2, skip_reading_prefix_cache=True)
    engine.run()
    engine.settle_stores()
    view = engine.snapshot()
    num_groups = len(engine.kv_cache_config.kv_cache_groups)
    assert view["stored"] == view["num_evictable"] == 6 * num_groups
    assert engine.external_hit_tokens["without the cache"] == 0
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_store_keeps_the_bytes_of_its_step_though_the_next_one_overwrites_the_blocks(
    make: Make, is_async: bool, model: dict[str, object]
) -> None:
    # vllm#45704, vllm#39306. The link takes many steps for a block; each request writes over the blocks of the last.
    engine = make({"host_link": {"d2h_gb_s": 0.0002}}, async_scheduling=is_async, **model)
    prompts = {f"p{i}": prompt_of(20 + i, 130) for i in range(5)}
    expected = {request_id: engine.generate({request_id: prompt})[request_id] for request_id, prompt in prompts.items()}
    assert engine.snapshot()["num_writable"] > 0, "the stores had ended: nothing was shown"
    engine.settle_stores()
    engine.drop_gpu_cache()
    for request_id, prompt in prompts.items():
        assert engine.generate({request_id + "2": prompt})[request_id + "2"] == expected[request_id]
    assert sum(engine.external_hit_tokens[request_id + "2"] for request_id in prompts) >= 128
    assert_at_rest(engine)


@pytest.mark.parametrize("model", [*MODELS, UNEVEN_MODEL])
def test_load_writes_into_no_block_that_another_request_shares(
    make: Make, is_async: bool, model: dict[str, object]
) -> None:
    # LMCache#2671. The short request runs on the first blocks of the long one's prefix while that is loaded.
    long_prompt = prompt_of(6, 150)
    short_prompt = long_prompt[:70]
    engine = make({"host_link": SLOW_LOADS}, async_scheduling=is_async, **model)
    expected = engine.generate({"short": short_prompt, "long": long_prompt}, max_tokens=40)
    engine.settle_stores()
    engine.scheduler.reset_prefix_cache()
    engine.add("short2", short_prompt, max_tokens=40, skip_reading_prefix_cache=True)
    engine.run_until(lambda: engine.requests["short2"].num_output_tokens > 0)
    request = engine.add("long2", long_prompt, max_tokens=40)
    engine.run_until(lambda: request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)
    manager = engine.scheduler.kv_cache_manager
    tables = [manager.get_block_ids(request_id)[0] for request_id in ("short2", "long2")]
    assert tables[0][:4] == tables[1][:4], "nothing is shared: nothing was shown"
    blocks = manager.block_pool.blocks
    assert [blocks[block].ref_cnt for block in tables[1]] == [2] * 4 + [1] * (len(tables[1]) - 4)
    engine.run()
    assert engine.external_hit_tokens["long2"] == 144 - 64
    assert {name: engine.finished[name + "2"].tokens for name in expected} == expected
    assert_at_rest(engine)


def test_blocks_of_fewer_layers_take_less_of_the_tier(make: Make, is_async: bool) -> None:
    # Of each of the prompt's six whole blocks: two layers in two of the groups, one in the third.
    config = {**STORE_ALL, "cpu_bytes_to_use": 6 * 5 * LAYER_BYTES, "retention": "dense"}
    engine = make(config, async_scheduling=is_async, **UNEVEN)
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)
    tokens = engine.generate({"first": PROMPTS["a"]})
    engine.settle_stores()
    view = engine.snapshot()
    assert (view["num_evictable"], view["num_evicted_total"], view["num_free"]) == (18, 0, 0)
    assert view["wasted_bytes"] == 0
    engine.drop_gpu_cache()
    assert engine.generate({"again": PROMPTS["a"]})["again"] == tokens["first"]
    assert engine.external_hit_tokens["again"] == 96
    assert_at_rest(engine)
