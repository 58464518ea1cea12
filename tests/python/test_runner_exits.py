# SPDX-License-Identifier: Apache-2.0
"""A rank that leaves a step early: whatever a plan gave it comes back, and nothing stays reserved for ever.

The ways are those of vLLM's model runners, played by vLLM's own code (`toy_runner`): steps without tokens; saving
behind the report, with speculative decoding; and not at all, on a pipeline stage that is not the last. An encoder-cache
producer leaves before it binds; it has no KV cache, and kvferry refuses it (`test_preflight.py`).
"""

from pathlib import Path

import pytest
from harness import ToyEngine, Way, expected_tokens, prompt_of
from scenarios import MODELS, PROMPTS, Make, again, assert_at_rest, start_loading, store_all
from vllm.v1.request import RequestStatus

# Two whole blocks when its second token comes out; the third while it decodes.
DECODED = prompt_of(8, 31)
DECODED_TOKENS = 20

WAYS = [pytest.param(way, id=way.value) for way in Way]


def assert_nothing_is_reserved(engine: ToyEngine) -> None:
    """Every block of the ended requests is stored or free, on both sides."""
    engine.settle_stores()
    assert_at_rest(engine)
    view = engine.snapshot()
    assert (view["num_writable"], view["num_aborted"], view["num_quarantined"]) == (0, 0, 0)
    assert view["num_stores_in_flight"] == 0
    for worker in engine.workers:
        worker.wait_for_copies()


def assert_stored(engine: ToyEngine, num_blocks: int, way: Way) -> None:
    """The first blocks of a prefix are in the tier, of every KV cache group."""
    stored, num_groups = engine.snapshot()["num_evictable"], len(engine.kv_cache_config.kv_cache_groups)
    if way == Way.V1_DRAFTS_STAGE:
        # Skipped, and offered again; but vLLM caches few blocks of a window, and the others are not offered twice.
        assert num_blocks <= stored <= num_blocks * num_groups
    else:
        assert stored == num_blocks * num_groups


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> dict[str, object]:
    """What to give to `ToySpec`."""
    return dict(request.param)


@pytest.fixture
def expected(folder: Path, model: dict[str, object]) -> dict[str, list[int]]:
    """What the prompts give in an engine without connector."""
    return expected_tokens(folder, PROMPTS, **model)


@pytest.fixture
def engine(make: Make, is_async: bool, model: dict[str, object]) -> ToyEngine:
    """Two ranks, which have registered."""
    engine = make({"retention": "dense"}, world_size=2, async_scheduling=is_async, **model)
    engine.generate({"warm up": prompt_of(9, 15)}, max_tokens=1)
    return engine


@pytest.mark.parametrize("way", WAYS)
def test_prefill_on_a_rank_that_leaves_early_reserves_nothing_for_ever(
    engine: ToyEngine, expected: dict[str, list[int]], way: Way
) -> None:
    engine.workers[1].way = way
    engine.add("a", PROMPTS["a"])
    engine.step()
    view = engine.snapshot()
    assert view["num_writable"] + view["num_evictable"] > 0, "nothing was planned: nothing was shown"
    engine.workers[1].way = Way.V1
    engine.run()
    assert engine.finished["a"].tokens == expected["a"]
    assert_nothing_is_reserved(engine)
    assert_stored(engine, len(PROMPTS["a"]) // 16, way)


@pytest.mark.parametrize("way", WAYS)
def test_decode_on_a_rank_that_leaves_early_reserves_nothing_for_ever(engine: ToyEngine, way: Way) -> None:
    request = engine.add("a", DECODED, max_tokens=DECODED_TOKENS)
    engine.run_until(lambda: request.num_output_tokens >= 1)
    stored = engine.snapshot()["stored"]
    engine.workers[1].way = way
    engine.run_until(lambda: request.num_output_tokens >= DECODED_TOKENS - 1)
    assert engine.snapshot()["num_writable"] + engine.snapshot()["stored"] > stored, "nothing was planned"
    engine.workers[1].way = Way.V1
    engine.run()
    assert_nothing_is_reserved(engine)
    assert_stored(engine, (len(DECODED) + DECODED_TOKENS - 1) // 16, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("beside", ["nothing", "a decode"])
def test_load_on_a_rank_that_leaves_early_ends_as_any_other(
    engine: ToyEngine, expected: dict[str, list[int]], way: Way, beside: str
) -> None:
    store_all(engine)
    if beside == "a decode":
        request = engine.add("beside", DECODED, max_tokens=DECODED_TOKENS)
        engine.run_until(lambda: request.num_output_tokens >= 1)
    engine.workers[0].hold_reports()
    engine.workers[1].way = way
    start_loading(engine, "a2", PROMPTS["a"])
    engine.workers[0].release_reports()
    engine.workers[1].way = Way.V1
    engine.run()
    assert engine.finished["a2"].tokens == expected["a"]
    assert engine.external_hit_tokens["a2"] == 96
    assert_nothing_is_reserved(engine)


@pytest.mark.parametrize("way", WAYS)
def test_aborted_load_on_a_rank_that_leaves_early_frees_its_blocks(engine: ToyEngine, way: Way) -> None:
    store_all(engine)
    engine.workers[0].hold_reports()
    engine.workers[1].way = way
    start_loading(engine, "a2", PROMPTS["a"])
    engine.workers[0].release_reports()
    engine.abort("a2")
    engine.step()
    engine.workers[1].way = Way.V1
    engine.run()
    assert engine.finished["a2"].status == RequestStatus.FINISHED_ABORTED
    assert_nothing_is_reserved(engine)


@pytest.mark.parametrize("way", WAYS)
def test_engine_whose_ranks_always_go_one_way_stores_and_loads_everything(
    engine: ToyEngine, expected: dict[str, list[int]], way: Way
) -> None:
    for worker in engine.workers:
        worker.way = way
    assert engine.generate(PROMPTS) == expected
    assert_nothing_is_reserved(engine)
    engine.drop_gpu_cache()
    tokens = engine.generate(again("2"))
    assert [tokens[request_id + "2"] for request_id in PROMPTS] == list(expected.values())
    # Steps without tokens save, on a stage that is not the last too, and take what waits in the backlog.
    assert [engine.external_hit_tokens[request_id + "2"] for request_id in PROMPTS] == [96, 144, 32]
    assert_nothing_is_reserved(engine)
