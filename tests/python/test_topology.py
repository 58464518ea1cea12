# SPDX-License-Identifier: Apache-2.0
"""How many bytes a block has on each rank, and which KV cache groups share slots: the same on both sides."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ToySpec, make_vllm_config
from kv_cache_plans import FULL, STATE, WINDOW, kv_cache
from kvferry.errors import ConfigError
from kvferry.vllm import topology
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import KVCacheTensor, UniformTypeKVCacheSpecs


@pytest.fixture
def config(folder: Path) -> Any:
    return make_vllm_config(folder, ToySpec())


def test_groups_whose_blocks_differ_in_bytes_have_slots_of_their_own() -> None:
    wide = dataclasses.replace(WINDOW, num_kv_heads=4)
    assert topology.slab_classes(kv_cache(FULL, wide, STATE), 1) == ([1, 0, 2], [2 * 4096, 2 * 2048, 2 * 70])


def test_blocks_of_one_size_have_slots_of_their_own_if_their_layers_differ() -> None:
    # One layer of four heads beside two of two, and state as large as a layer of two.
    wide = dataclasses.replace(WINDOW, num_kv_heads=4)
    state = dataclasses.replace(STATE, shapes=((16, 32),), dtypes=(torch.float32,))
    found = topology.slab_classes(kv_cache(wide, FULL, state, WINDOW, layers=[1, 2, 2, 2]), 1)
    assert found == ([0, 2, 1, 2], [4096, 4096, 4096])


def test_blocks_of_one_size_have_slots_of_their_own_if_they_lie_elsewhere() -> None:
    config = kv_cache(FULL, WINDOW)
    config.kv_cache_tensors[1].offset += 4096
    assert topology.slab_classes(config, 1) == ([0, 1], [2 * 2048, 2 * 2048])


def test_slot_bytes_leave_padding_out() -> None:
    config = kv_cache(dataclasses.replace(FULL, page_size_padded=4096), layers=3)
    assert topology.slab_classes(config, 1) == ([0], [3 * 16 * 2 * 16 * 4])


def test_groups_with_fewer_layers_have_smaller_slots_on_every_rank(config: Any) -> None:
    found = kv_cache(WINDOW, FULL, WINDOW, layers=[1, 3, 3])
    config.parallel_config.world_size = 2
    classes = topology.slab_classes(found, 1)
    assert classes == ([1, 0, 0], [3 * 2048, 2048])
    assert topology.bytes_by_rank(classes, config.parallel_config) == [[3 * 2048] * 2, [2048] * 2]
    assert topology.group_bytes(found) == [2048, 3 * 2048, 3 * 2048]


def test_layers_of_different_size_count_with_their_pages_on_both_sides() -> None:
    wide = dataclasses.replace(FULL, head_size=16, page_size_padded=4096)
    spec = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": FULL, "b": wide, "c": FULL})
    of_worker = kv_cache(spec)
    assert topology.group_bytes(of_worker) == [2048 + 4096 + 2048]
    assert topology.content_bytes_of_group(of_worker.kv_cache_groups[0]) == 2048 + 3072 + 2048
    of_scheduler = generate_scheduler_kv_cache_config([of_worker])
    assert of_scheduler.kv_cache_groups[0].kv_cache_spec == FULL
    assert topology.slab_classes(of_scheduler, 1) == topology.slab_classes(of_worker, 1)


def test_pages_are_found_where_blocks_are_outermost() -> None:
    config = kv_cache(FULL, layers=3)
    config.kv_cache_tensors = [KVCacheTensor(0, ["g0.l0", "g0.l1", "g0.l2"], 2048, 8192, 64)]
    pages = topology.pages_of_group(config.kv_cache_groups[0], config)
    assert [page[:3] for page in pages] == [(64, 8192, 2048), (64 + 2048, 8192, 2048), (64 + 4096, 8192, 2048)]


def test_layer_without_memory_is_refused() -> None:
    config = kv_cache(FULL)
    config.kv_cache_tensors[0].layers.pop()
    with pytest.raises(ConfigError, match=r"layer 'g0\.l1' has no memory"):
        topology.group_bytes(config)


def test_with_stages_each_group_has_slots_of_its_own_in_the_order_of_the_first_stage(config: Any) -> None:
    found = topology.slab_classes(kv_cache(WINDOW, FULL, WINDOW, layers=[1, 3, 3]), 2)
    assert found == ([2, 0, 1], [3 * 2048, 3 * 2048, 2048])
    config.parallel_config.pipeline_parallel_size = 2
    config.parallel_config.world_size = 4
    # Of the ranks of the second stage nothing is known.
    assert topology.bytes_by_rank(found, config.parallel_config) == [
        [3 * 2048] * 2 + [0, 0],
        [3 * 2048] * 2 + [0, 0],
        [2048, 2048, 0, 0],
    ]
