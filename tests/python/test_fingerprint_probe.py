# SPDX-License-Identifier: Apache-2.0
"""What only a rank sees of its engine keeps engines apart as well: back ends, scales, layouts, orders of bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fingerprint_engine import Engine
from scenarios import HYBRID
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


class Attention:
    """A layer as vLLM's ``static_forward_context`` has it, as far as kvferry looks at it."""

    def __init__(self, backend: type, scale: float = 1.0) -> None:
        self._backend = backend
        self._k_scale_float = scale
        self.impl = object()

    def get_attn_backend(self) -> type:
        return self._backend


class OneBackend:
    """A back end."""


class OtherBackend:
    """A back end that orders bytes differently under the same specification and layout."""


@pytest.fixture
def engine(folder: Path) -> Engine:
    engine = Engine(folder)
    engine.config.compilation_config.static_forward_context = {
        name: Attention(OneBackend) for name in engine.spec.layer_specs()
    }
    return engine


def test_another_back_end_of_one_layer_is_another_probe(engine: Engine) -> None:
    before = engine.probe()
    layers = engine.config.compilation_config.static_forward_context
    name = list(layers)[1]
    layers[name] = Attention(OtherBackend)
    assert engine.probe() != before
    layers[name] = Attention(OneBackend)
    assert engine.probe() == before


def test_another_scale_of_one_layer_is_another_probe(engine: Engine) -> None:
    before = engine.probe()
    layers = engine.config.compilation_config.static_forward_context
    layers[list(layers)[2]]._k_scale_float = 0.5
    assert engine.probe() != before


@pytest.mark.parametrize("model", [{}, HYBRID, {"layer_pattern": "m"}], ids=["plain", "hybrid", "latent"])
def test_every_layout_has_a_probe_of_its_own(folder: Path, model: dict[str, Any]) -> None:
    engines = [Engine(folder, layout=layout, **model) for layout in KVCacheLayout]
    assert len({engine.probe() for engine in engines}) == len(KVCacheLayout)
    again = [Engine(folder, layout=layout, **model) for layout in KVCacheLayout]
    assert [engine.probe() for engine in again] == [engine.probe() for engine in engines]


def test_the_order_of_the_bytes_alone_is_another_probe(folder: Path) -> None:
    # Whatever the layout is called: one specification, one name, tokens and heads the other way round.
    engine = Engine(folder)
    caches = allocate_kv_cache(engine.kv, torch.device("cpu"), KVCacheLayout.LBHNC)
    other = allocate_kv_cache(engine.kv, torch.device("cpu"), KVCacheLayout.LBNHC)
    assert engine.probe(caches) != engine.probe(other)
    # And kernel blocks: two of eight tokens in the place of one of sixteen.
    split = {
        name: cache.reshape(cache.shape[0] * 2, cache.shape[1], -1, cache.shape[3]) for name, cache in caches.items()
    }
    assert engine.probe(split) != engine.probe(caches)


def test_the_order_in_which_ranks_divide_tokens_is_another_probe(folder: Path) -> None:
    engine = Engine(folder, num_context_ranks=2, world_size=2)
    before = engine.probe()
    # As vLLM does beside NIXL, before 0.33 in the workers alone.
    engine.config.parallel_config.cp_kv_cache_interleave_size = 16
    assert engine.probe() != before
