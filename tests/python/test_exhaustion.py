# SPDX-License-Identifier: Apache-2.0
"""Stores that end late, and memory that runs out, cost no step and hold no block."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import Finished, ToyEngine, ToySpec, prompt_of
from scenarios import assert_at_rest, steps_of

# Eleven steps of prefill, the last of which gives the first token, and three of decoding.
NUM_TOKENS, STEP_TOKENS, MAX_TOKENS = 90_000, 8192, 4
BLOCK = 16
REQUEST_BLOCKS = NUM_TOKENS // BLOCK + 1
RING_BLOCKS = STEP_TOKENS // BLOCK
LAYER_BYTES = BLOCK * 128
LONG_PROMPTS = {"first": prompt_of(1, NUM_TOKENS), "second": prompt_of(2, NUM_TOKENS)}
WINDOW = 1024


@dataclass(frozen=True, eq=False)
class Model:
    """A toy model, and the GPU blocks that one of the long requests holds at most."""

    spec: Mapping[str, Any]
    peak_blocks: int

    def engine_spec(self, **more: Any) -> ToySpec:
        """Make the engine: its pool is 1.15 times one request."""
        return ToySpec(
            num_blocks=int(1.15 * self.peak_blocks) + 1,
            block_size=BLOCK,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len=NUM_TOKENS + BLOCK,
            **self.spec,
            **more,
        )

    @property
    def num_groups(self) -> int:
        """KV cache groups, of one layer each."""
        return int(self.spec["num_layers"])

    @property
    def num_stored(self) -> int:
        """Blocks of both requests, in all groups."""
        return 2 * self.num_groups * (REQUEST_BLOCKS - 1)


# With async scheduling two steps' blocks of a window are in flight.
WINDOW_BLOCKS = (WINDOW + 2 * STEP_TOKENS) // BLOCK + 2
LONG_MODELS = [
    pytest.param(Model({"num_layers": 1}, REQUEST_BLOCKS), id="plain"),
    pytest.param(
        Model({"num_layers": 2, "layer_pattern": "fw", "sliding_window": WINDOW}, REQUEST_BLOCKS + WINDOW_BLOCKS),
        id="hybrid",
    ),
]


def make_engine(folder: Path, model: Model, is_async: bool, config: Mapping[str, Any] | None) -> ToyEngine:
    """Make an engine that stores at once: with a connector, its rank has registered."""
    engine = ToyEngine(folder, model.engine_spec(async_scheduling=is_async, extra_config=config))
    # Tokens tell of wrong cells, too; and there are many cells.
    engine.workers[0].model.check_kv = False
    if config is not None:
        engine.generate({"warm up": prompt_of(3, BLOCK - 1)}, 1)
    return engine


def steps_of_both(engine: ToyEngine) -> list[int]:
    """Run the long requests one after the other; return the steps that each took."""
    return [steps_of(engine, request_id, prompt, MAX_TOKENS) for request_id, prompt in LONG_PROMPTS.items()]


@dataclass(frozen=True)
class Reference:
    """How an engine without connector does."""

    num_steps: list[int]
    finished: dict[str, Finished]
    step_s: float


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool, Model], Reference]:
    """Run both requests in an engine without connector; each kind of engine once."""

    @functools.cache
    def run(is_async: bool, model: Model) -> Reference:
        folder = tmp_path_factory.mktemp("reference") / "model"
        engine = make_engine(folder, model, is_async, None)
        began = time.monotonic()
        num_steps = steps_of_both(engine)
        return Reference(num_steps, engine.finished, (time.monotonic() - began) / engine.num_steps)

    return run


@pytest.mark.xdist_group("references")
@pytest.mark.parametrize("lag", [1, 4, 12, 1000])
@pytest.mark.parametrize("model", LONG_MODELS)
def test_two_long_requests_take_their_steps_however_late_their_stores_end(
    folder: Path, references: Callable[[bool, Model], Reference], is_async: bool, model: Model, lag: int
) -> None:
    # vllm#42085. The engine hears of the end of a store `lag` steps behind the one that planned it; and the link is as
    # slow as it takes for a full ring to drain in about as many: its entries are really in use.
    reference = references(is_async, model)
    assert reference.num_steps == ([15, 15] if is_async else [14, 14])
    # With async scheduling the engine plans two steps before it hears of the first.
    ring_blocks = RING_BLOCKS * model.num_groups * (2 if is_async else 1)
    drain_s = min(lag, sum(reference.num_steps)) * reference.step_s
    config = {
        "cpu_bytes_to_use": 2 * model.num_groups * REQUEST_BLOCKS * LAYER_BYTES,
        "staging_bytes": ring_blocks * LAYER_BYTES,
        "retention": "dense",
        "host_link": {"d2h_gb_s": ring_blocks * LAYER_BYTES / drain_s / 1e9},
    }
    engine = make_engine(folder, model, is_async, config)
    rank = engine.workers[0]
    rank.report_delay = lag - 1
    if lag == 1:
        engine.on_step = lambda engine: rank.wait_for_copies()
    assert steps_of_both(engine) == reference.num_steps
    for request_id in LONG_PROMPTS:
        assert engine.finished[request_id] == reference.finished[request_id]
    if lag > sum(reference.num_steps):
        assert engine.snapshot()["stored"] == 0, "the engine heard of a store in time: nothing was shown"
    if lag == 1:
        engine.settle_stores()
        assert engine.snapshot()["stored"] == model.num_stored
        engine.drop_gpu_cache()
        rank.model.check_kv = True
        engine.add("again", LONG_PROMPTS["first"], MAX_TOKENS)
        engine.run()
        assert engine.external_hit_tokens["again"] == NUM_TOKENS
        assert engine.finished["again"] == reference.finished["first"]
    else:
        engine.run_until(lambda: engine.snapshot()["stored"] >= ring_blocks)
    assert engine.snapshot()["failed_stores"] == 0
    assert_at_rest(engine)
    engine.close()


@pytest.mark.parametrize("model", LONG_MODELS)
def test_default_ring_takes_every_block_of_a_long_prefill(folder: Path, is_async: bool, model: Model) -> None:
    config = {"cpu_bytes_to_use": 2 * model.num_groups * REQUEST_BLOCKS * LAYER_BYTES, "retention": "dense"}
    engine = make_engine(folder, model, is_async, config)
    engine.on_step = lambda engine: engine.workers[0].wait_for_copies()
    steps_of_both(engine)
    engine.settle_stores()
    if is_async and model.num_groups > 1:
        # Plans know the ring a step late, and what waits for its turn may slide out of the window meanwhile.
        assert engine.snapshot()["stored"] >= 0.75 * model.num_stored
    else:
        assert engine.snapshot()["stored"] == model.num_stored
    engine.close()
