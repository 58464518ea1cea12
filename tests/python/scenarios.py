# SPDX-License-Identifier: Apache-2.0
"""Prompts, links and situations that several test files start from."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from harness import ToyEngine, prompt_of
from vllm.v1.request import RequestStatus

Make = Callable[..., ToyEngine]

# Loads of a 100-token prompt (6 blocks of 6 KiB) take about half a second: many steps.
SLOW_LOADS = {"h2d_gb_s": 0.00008}
SLOW_STORES = {"d2h_gb_s": 0.00008}

PROMPTS = {"a": prompt_of(1, 100), "b": prompt_of(2, 150), "c": prompt_of(3, 47)}

# Which blocks a full tier stores and evicts is to be foreseen: for tests that count them.
STORE_ALL = {"eviction": "lru", "admission": "always"}

# A model with full-attention and sliding-window layers, which vLLM gives two KV cache groups. The window is no multiple
# of the block, and shorter than the prompts.
HYBRID: dict[str, Any] = {"layer_pattern": "fw", "num_layers": 4, "sliding_window": 40, "max_model_len": 200}

# Five layers, of which vLLM makes groups of two, two and one: slots of two sizes.
UNEVEN: dict[str, Any] = {**HYBRID, "layer_pattern": "fww", "num_layers": 5, "num_blocks": 49}

# Layers of three kinds. A chunk is longer than a block, and shorter than the prompts.
CHUNKED: dict[str, Any] = {**HYBRID, "layer_pattern": "fwc", "num_layers": 6, "num_blocks": 49, "chunk_size": 48}

# Latent attention, with windows beside it.
LATENT: dict[str, Any] = {**HYBRID, "layer_pattern": "mw"}

# Latent attention only: every tensor-parallel rank holds the same.
REPLICATED: dict[str, Any] = {"layer_pattern": "m"}

# Recurrent state beside full attention: five layers, of which vLLM makes groups of two, two and one. A prompt is
# computed in several steps, which leave a state each; vLLM keeps the last one of them by default.
RECURRENT: dict[str, Any] = {
    "layer_pattern": "fss",
    "num_layers": 5,
    "num_blocks": 49,
    "max_model_len": 200,
    "max_num_batched_tokens": 64,
}

# For `pytest.mark.parametrize`: what to give to `ToySpec`.
MODELS = [pytest.param({}, id="plain"), pytest.param(HYBRID, id="hybrid")]
UNEVEN_MODEL = pytest.param(UNEVEN, id="uneven")
# Layers of one group whose parts of a block differ in bytes: as a drafter of another shape, one behind padding, and an
# indexer beside MLA. The largest block has as many bytes as the other toys' five layers.
WIDE_MODELS = [
    pytest.param({"layer_pattern": "fF"}, id="wide"),
    pytest.param({"layer_pattern": "Ff", "page_bytes": 2560}, id="wide-padded"),
    pytest.param({"layer_pattern": "mM"}, id="indexer"),
]
# Full attention with half of the bytes for each token, to which vLLM gives blocks of twice the tokens.
COARSE_MODEL = pytest.param({**HYBRID, "layer_pattern": "hww", "num_layers": 6, "num_blocks": 49}, id="coarse")
CHUNKED_MODEL = pytest.param(CHUNKED, id="chunked")
LATENT_MODEL = pytest.param(LATENT, id="latent")
RECURRENT_MODELS = [
    pytest.param(RECURRENT, id="recurrent"),
    pytest.param({**RECURRENT, "retention_interval": None}, id="recurrent-dense"),
]


def again(suffix: str) -> dict[str, list[int]]:
    """The prompts, under ids with a suffix."""
    return {request_id + suffix: prompt for request_id, prompt in PROMPTS.items()}


def start_loading(engine: ToyEngine, request_id: str, prompt: list[int]) -> None:
    """Add a request whose prefix is in the tier only, and step until the engine waits for its load."""
    request = engine.add(request_id, prompt)
    engine.run_until(lambda: request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)
    assert engine.snapshot()["num_loads_in_flight"] >= 1


def store_all(engine: ToyEngine) -> None:
    """Run the prompts, wait for their stores, and leave their blocks in the tier only."""
    engine.generate(PROMPTS)
    leave_to_the_tier(engine)


def make_with_damage_found(make: Make) -> ToyEngine:
    """Make an engine that has all prompts in its tier, and a damaged block that the scrubber has found."""
    engine = make({"cpu_bytes_to_use": 24 * 6144, "verify": "all", "scrub_bandwidth": "10GB/s"})
    store_all(engine)
    engine.workers[0].connector.worker_side.engine.unsafe_copy_slot(0, 1)
    deadline = time.monotonic() + 60
    while engine.snapshot()["damaged_blocks/0"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
        engine.generate({f"short{time.monotonic()}": [1, 2, 3]}, max_tokens=1)
    return engine


def leave_to_the_tier(engine: ToyEngine) -> None:
    """Wait for all stores, and leave what was stored in the tier only."""
    engine.settle_stores()
    engine.drop_gpu_cache()


def steps_of(engine: ToyEngine, request_id: str, prompt: list[int], max_tokens: int) -> int:
    """Run a request alone, which is never preempted and leaves nothing held; return the steps that it took."""
    engine.add(request_id, prompt, max_tokens)
    before = engine.num_steps
    engine.run_until(lambda: request_id in engine.finished)
    num_steps = engine.num_steps - before
    assert engine.finished[request_id].status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert engine.requests[request_id].num_preemptions == 0
    # With async scheduling vLLM frees what a step in flight may still write when that step has ended.
    engine.drain_outputs()
    assert_pool_is_whole(engine)
    return num_steps


def assert_pool_is_whole(engine: ToyEngine) -> None:
    """Nothing holds a GPU block, and the engine knows no request."""
    assert engine.num_free_blocks == engine.spec.num_blocks - 1
    assert not engine.scheduler.requests
    engine.check_pool()


def assert_at_rest(engine: ToyEngine) -> None:
    """Nothing holds a GPU block, nothing waits, and every slot is in exactly one state."""
    assert_pool_is_whole(engine)
    view = engine.snapshot()
    assert view["num_loads_in_flight"] == 0
    assert view["num_tombstones"] == 0
    assert view["num_leased"] == 0
    states = ("num_free", "num_writable", "num_aborted", "num_evictable", "num_leased", "num_dying", "num_quarantined")
    assert sum(view[state] for state in states) == view["num_slots"]
