# SPDX-License-Identifier: Apache-2.0
"""Hits in the engine's own cache that end within a block: vLLM tells a connector only their whole blocks."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import vllm
from harness import ToyEngine, ToySpec, prompt_of
from kvferry.vllm.weights_versions import AT_START
from packaging.version import Version
from scenarios import STORE_ALL, Make, assert_at_rest, leave_to_the_tier
from seeds import seed_range
from test_weights_versions import Training
from vllm.v1.kv_cache_interface import MambaSpec

_STATE_TOKENS = 64
_COMMON = {"layer_pattern": "fs", "num_layers": 4, "num_blocks": 81}


def model() -> dict[str, Any]:
    """A model whose recurrent state has a block for four of attention; vLLM keeps a state in the midst of it, too."""
    layers = {
        name: dataclasses.replace(spec, block_size=_STATE_TOKENS) if isinstance(spec, MambaSpec) else spec
        for name, spec in ToySpec(**_COMMON).layer_specs().items()
    }
    limits = {"max_model_len": 400, "max_num_batched_tokens": 256}
    return {**_COMMON, **limits, "layers": layers, "block_size": _STATE_TOKENS, "retention_interval": None}


@pytest.fixture
def training(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(make, folder, monkeypatch)


def forget_in_gpu(engine: ToyEngine) -> None:
    assert engine.scheduler.reset_prefix_cache()
    for worker in engine.workers:
        worker.model.bad_blocks.clear()
    engine.drop_gpu_cache()


def test_what_a_partial_hit_found_of_another_version_is_not_stored(training: Training, is_async: bool) -> None:
    engine = training.make(STORE_ALL, async_scheduling=is_async, **model())
    prompt = prompt_of(1, 200)
    engine.generate({"old": prompt[:50]})
    engine.settle_stores()
    assert engine.own_hit_tokens(prompt[:56]) % _STATE_TOKENS != 0, "it is no partial hit"
    training.update(engine, "B", clear_cache=False)
    engine.generate({"misled": prompt[:56]})
    assert "misled" in engine.misled
    engine.settle_stores()
    forget_in_gpu(engine)
    tokens = engine.generate({"new": prompt})["new"]
    leave_to_the_tier(engine)
    assert engine.generate({"again": prompt})["again"] == tokens
    assert engine.external_hit_tokens["again"] > 0


@pytest.mark.parametrize("seed", seed_range(12))
def test_random_lives_with_partial_hits_and_versions_leave_nothing_wrong_in_the_tier(
    training: Training, is_async: bool, seed: int
) -> None:
    if is_async and Version(vllm.__version__) < Version("0.32"):
        pytest.skip("this vLLM caches a wrong state in the midst of a block, without a connector, too")
    rng = random.Random(seed)
    engine = training.make({"cpu_bytes_to_use": 200 * 6144}, async_scheduling=is_async, **model())
    version, num_partial = AT_START, 0
    for number in range(60):
        prompt = prompt_of(number % 3, rng.randint(20, 200))
        num_partial += engine.own_hit_tokens(prompt) % _STATE_TOKENS != 0
        engine.add(str(number), prompt, max_tokens=rng.randint(1, 12))
        for _ in range(rng.randint(0, 6)):
            engine.step()
        if rng.random() < 0.15:
            engine.run()
            version = "B" if version == AT_START else AT_START
            training.update(engine, version, clear_cache=False)
            if rng.random() < 0.5:
                forget_in_gpu(engine)
    engine.run()
    assert num_partial > 5
    engine.settle_stores()
    # Each version finds only its own blocks; the engine checks what it reads.
    for other in ("C", "B", AT_START):
        training.update(engine, other, clear_cache=False)
        forget_in_gpu(engine)
        engine.generate({f"{other} {number}": prompt_of(number, 200) for number in range(3)})
        assert not engine.misled & {f"{other} {number}" for number in range(3)}
    assert sum(engine.external_hit_tokens.values()) > 0
    engine.settle_stores()
    assert_at_rest(engine)
