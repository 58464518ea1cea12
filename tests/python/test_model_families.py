# SPDX-License-Identifier: Apache-2.0
"""The KV caches of model families as vLLM's own code plans them: both sides find the same slots for their blocks."""

import pytest
from kvferry.vllm import preflight, topology
from model_families import NEEDS_FAMILIES, light, plan, scaled_plan
from vllm.v1.kv_cache_interface import KVCacheConfig, iter_layer_specs

# With the slab classes of the groups that are kept.
ACCEPTED = {
    "llama70b": [0],
    "gpt_oss": [0, 0],
    "gemma3_27b": [1, 1, 1, 1, 2, 2, 0],
    "gemma4_31b": [0, 0, 0, 0, 0, 1],
    "gemma4_31b_no_hma": [0],
    "mimo_v2_flash": [0, 1, 1, 1, 1, 2],
    "deepseek_v3": [0],
    "deepseek_v3_dcp4": [0],
    "deepseek_v32": [0],
    "deepseek_v4_flash": [2, 3, 0, 1, 4],
    "deepseek_v41": [0, 0, 0, 0, 0, 1],
    "minimax_m3": [0],
    "kimi_k2_eagle3": [0],
    "qwen3_30b_other_drafter": [0],
    "fp8_skip_layers": [0],
    "qwen35_mtp": [1, 1, 1, 0],
}
pytestmark = NEEDS_FAMILIES


@pytest.mark.parametrize("name", ACCEPTED)
def test_both_sides_find_the_same_slots(name: str) -> None:
    worker, scheduler = plan(name)
    preflight.check_kv_cache(scheduler)
    preflight.check_kv_cache(worker)
    worker, scheduler = preflight.kept_part(worker), preflight.kept_part(scheduler)
    groups = worker.kv_cache_groups
    found = topology.slab_classes(worker, 1)
    assert found.of_groups == ACCEPTED[name]
    assert topology.slab_classes(scheduler, 1) == found
    assert topology.group_bytes(scheduler) == topology.group_bytes(worker)
    for group, num_bytes in zip(groups, topology.group_bytes(worker), strict=True):
        content = topology.content_bytes_of_group(group)
        assert content <= num_bytes < 1.06 * content
        assert preflight.reach_of_group(group, num_drafts=3)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_family_made_small_has_the_groups_of_the_real_one(name: str) -> None:
    real, small = preflight.kept_part(plan(name)[0]), preflight.kept_part(scaled_plan(name)[0])
    assert [group.layer_names for group in small.kv_cache_groups] == [g.layer_names for g in real.kv_cache_groups]
    assert topology.slab_classes(small, 1).of_groups == topology.slab_classes(real, 1).of_groups
    ratios = set()
    for group, real_group in zip(small.kv_cache_groups, real.kv_cache_groups, strict=True):
        ratios.add(real_group.kv_cache_spec.block_size / group.kv_cache_spec.block_size)
        for ours, theirs in zip(*(iter_layer_specs(g.kv_cache_spec) for g in (group, real_group)), strict=True):
            assert type(ours) is type(theirs)
            has_padding = [topology.content_bytes(spec) < spec.page_size_bytes for spec in (ours, theirs)]
            assert has_padding[0] == has_padding[1]
    assert len(ratios) == 1


@pytest.mark.parametrize("name", ["gpt_oss", "gemma3_27b", "mimo_v2_flash", "deepseek_v4_flash", "qwen35_mtp"])
def test_light_family_has_the_groups_of_the_family(name: str) -> None:
    def kinds(config: KVCacheConfig) -> list[list[tuple[str, int, int | None]]]:
        groups = [iter_layer_specs(group.kv_cache_spec) for group in config.kv_cache_groups]
        return sorted(
            sorted({(type(one).__name__, one.block_size, getattr(one, "sliding_window", None)) for one in group})
            for group in groups
        )

    worker, _ = plan(name)
    small, _ = scaled_plan(name, light(name))
    assert kinds(small) == kinds(worker)
    assert sum(len(group.layer_names) for group in small.kv_cache_groups) < 2 * len(worker.kv_cache_groups)
    assert small.kv_cache_tensors[0].size < worker.kv_cache_tensors[0].size / 100
