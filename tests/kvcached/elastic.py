# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler over kvcached's elastic block pool, and the toy's KV cache in kvcached's memory.

kvcached's own C++ and Python, on a stand-in for CUDA's virtual memory calls (``tests/fakes/fake_vmm``). A page is
unmapped the moment its last block is free: kvcached keeps none in reserve here (`conftest`), and waits for nothing, as
on a device it does while batches are queued.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import toy_worker
from harness import ToyEngine, ToySpec, expected_tokens
from kvcached import vmm_ops
from kvcached.integration.patch_base import PatchManager
from kvcached.integration.vllm import interfaces, model_runner_v2, patches
from vllm.v1.kv_cache_layout import KVCacheLayout

# Some of a page's blocks, of three layers, are free while others are in use.
PAGE_BYTES = 512 << 10
PAGE_BLOCKS = 4
NUM_LAYERS = 3
COMPOUND_BYTES = NUM_LAYERS * PAGE_BLOCKS * PAGE_BYTES


def patch_vllm() -> None:
    """Let kvcached change vLLM's scheduler side; there is no GPU worker that it could change."""
    manager = PatchManager("vllm")
    manager.register_patches(
        [
            patches.ElasticBlockPoolPatch(),
            patches.KVCacheCoordinatorPatch(),
            patches.KVCacheManagerAllocateSlotsPatch(),
        ]
    )
    results = manager.apply_all_patches()
    assert all(results.values()), results


class StandIn:
    """What the stand-in can be asked; see ``tests/fakes/fake_vmm``."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(vmm_ops._C.__file__).with_name("libfake_vmm.so")))
        for name in ("fake_vmm_used_bytes", "fake_vmm_num_unmaps"):
            getattr(library, name).restype = ctypes.c_int64
        self.used_bytes = library.fake_vmm_used_bytes
        self.num_unmaps = library.fake_vmm_num_unmaps
        library.fake_vmm_take.argtypes = [ctypes.c_int64]
        self.take = library.fake_vmm_take


class ElasticEngine(ToyEngine):
    """The toy engine over the elastic pool, with the connector."""

    def check_pool(self) -> None:
        """Check that nothing was freed twice; which blocks are free is kvcached's own to say."""
        self._num_free_checked = self.num_free_blocks
        pool = self.scheduler.kv_cache_manager.block_pool
        assert all(block.ref_cnt >= 0 for block in pool.blocks)

    @property
    def num_held_blocks(self) -> int:
        """Blocks that requests hold."""
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return sum(block.ref_cnt > 0 for block in blocks if not block.is_null)


def elastic_spec(**spec: Any) -> ToySpec:
    """Make a `ToySpec` whose blocks are large, as a page has some of them."""
    return ToySpec(
        **{
            "num_layers": NUM_LAYERS,
            "layout": KVCacheLayout.BLHNC,
            "page_bytes": PAGE_BYTES,
            "async_scheduling": True,
            **spec,
        }
    )


@contextlib.contextmanager
def elastic_engine(folder: Path, spec: ToySpec) -> Iterator[ElasticEngine]:
    """Make an engine over an elastic pool of its own, and take both down."""
    # Scheduler and worker are one process: nobody listens for another.
    with mock.patch.object(interfaces, "start_worker_listener_thread"):
        interfaces.init_kvcached(is_worker=True, device="cuda:0")
    # A page more than the blocks have, whatever they are in one.
    properties = SimpleNamespace(total_memory=(spec.num_blocks // PAGE_BLOCKS + 2) * COMPOUND_BYTES)

    def allocate(config: Any, device: Any, layout: KVCacheLayout) -> dict[str, torch.Tensor]:
        return model_runner_v2.allocate_kv_cache(config, "cuda:0", layout)

    with (
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.object(toy_worker, "allocate_kv_cache", allocate),
    ):
        engine = ElasticEngine(folder, spec)
    try:
        pool = engine.scheduler.kv_cache_manager.block_pool
        assert pool.kv_cache_manager._post_init_done.wait(30), "kvcached has not mapped the null block's page"
        yield engine
    finally:
        engine.close()
        for worker in engine.workers:
            worker.kv_caches.clear()
        assert interfaces.shutdown_kvcached()


def expected_without_kvcached(folder: Path, prompts: dict[str, list[int]], max_tokens: int = 4) -> dict[str, list[int]]:
    """Output tokens of an engine with a pool of vLLM's own."""
    with mock.patch.dict(os.environ, {"ENABLE_KVCACHED": "false"}):
        return expected_tokens(folder, prompts, max_tokens)
