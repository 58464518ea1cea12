# SPDX-License-Identifier: Apache-2.0
"""The KV caches of model families as vLLM's own code plans them: both sides find the same slots for their blocks.

``shared/tools/model_specs`` beside the repository makes them, with vLLM 0.33 and for most families with 0.32.
"""

import importlib.util
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kvferry.vllm import preflight, topology
from vllm.v1.attention.backends import utils as backend_utils

FAMILIES = Path(__file__).resolve().parents[3] / "shared/tools/model_specs/families.py"
# With the slab classes of the groups that are kept.
ACCEPTED = {
    "llama70b": [0],
    "gpt_oss": [0, 0],
    "gemma3_27b": [1, 1, 1, 1, 2, 2, 0],
    "gemma4_31b": [0, 0, 0, 0, 0, 1],
    "gemma4_31b_no_hma": [0],
    "mimo_v2_flash": [0, 1, 1, 1, 1, 2],
    "deepseek_v3": [0],
    "deepseek_v32": [0],
    "deepseek_v4_flash": [2, 3, 0, 1, 4],
    "deepseek_v41": [0, 0, 0, 0, 0, 1],
    "minimax_m3": [0],
    "kimi_k2_eagle3": [0],
    "qwen3_30b_other_drafter": [0],
    "fp8_skip_layers": [0],
    "qwen35_mtp": [1, 1, 1, 0],
}
pytestmark = pytest.mark.skipif(not FAMILIES.exists(), reason=f"{FAMILIES.name} is not beside the repository")


@cache
def families() -> Any:
    """Load the module, and take back what it changes for the whole process."""
    spec = importlib.util.spec_from_file_location("families", FAMILIES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_utils, "get_kv_connector_cache_layout", backend_utils.get_kv_connector_cache_layout)
        spec.loader.exec_module(module)
    logging.disable(logging.NOTSET)
    return module


def plan(name: str) -> tuple[Any, Any]:
    """The worker's and the scheduler's KV cache configuration of a family, or skip one that this vLLM lacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_utils, "get_kv_connector_cache_layout", lambda vllm_config: None)
        try:
            worker, scheduler, _ = families().plan(name)
        except (ImportError, AttributeError) as error:
            pytest.skip(f"this vLLM does not know {name}: {error}")
    return worker, scheduler


@pytest.mark.parametrize("name", ACCEPTED)
def test_both_sides_find_the_same_slots(name: str) -> None:
    worker, scheduler = plan(name)
    preflight.check_kv_cache(scheduler)
    preflight.check_kv_cache(worker)
    worker, scheduler = preflight.kept_part(worker), preflight.kept_part(scheduler)
    groups = worker.kv_cache_groups
    found = topology.slab_classes_of_rank(worker)
    assert found.of_groups == ACCEPTED[name]
    assert topology.slab_classes_of_rank(scheduler) == found
    assert topology.group_bytes(scheduler) == topology.group_bytes(worker)
    for group, num_bytes in zip(groups, topology.group_bytes(worker), strict=True):
        content = topology.content_bytes_of_group(group)
        assert content <= num_bytes < 1.06 * content
        assert preflight.reach_of_group(group, num_drafts=3)
