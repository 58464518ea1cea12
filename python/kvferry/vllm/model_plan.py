# SPDX-License-Identifier: Apache-2.0
"""The KV cache that vLLM would plan for a model. The model's layers are made without memory, on no device."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.worker_base import WorkerBase

from kvferry.vllm import versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_PROPOSERS = {"draft_model": DraftModelProposer, "dflash": DFlashProposer}
MEMORY_BYTES = 1 << 50
"""Bytes of the KV cache on a rank. More than any device has: the number of blocks does not change those of a block."""


def kv_caches_of(vllm_config: "VllmConfig") -> "list[KVCacheConfig]":
    """Plan the KV caches as the engine core does after its workers have made the model.

    Parameters
    ----------
    vllm_config
        The engine's configuration. The block size and the layout that workers would determine are written into it.

    Returns
    -------
    list[KVCacheConfig]
        The KV cache of the first rank of each pipeline stage. Their number of blocks has no meaning.

    Raises
    ------
    Exception
        Whatever vLLM raises: this build of vLLM cannot make the model or its attention on this machine.

    """
    register_all_kvcache_specs(vllm_config)
    stages = [_Stage(vllm_config, number) for number in range(vllm_config.parallel_config.pipeline_parallel_size)]
    # In an engine each worker sets these in its own copy.
    vllm_config.cache_config.block_size = stages[0].config.cache_config.block_size
    vllm_config.cache_config.mamba_block_size = stages[0].config.cache_config.mamba_block_size
    specs = [stage.specs for stage in stages]
    every_spec = [spec for of_stage in specs for spec in of_stage.values()]
    resolve_kv_cache_layout(vllm_config, [stage.layouts for stage in stages], every_spec)
    return versions.plan_kv_caches(vllm_config, specs, [MEMORY_BYTES] * len(specs))


class _Stage:
    """The layers of a pipeline stage, as its first rank has them.

    Attributes
    ----------
    config
        The stage's copy of the engine's configuration.
    specs
        vLLM's KV cache specification of each layer, by name.
    layouts
        Layouts that its attention back ends support, the most preferred first.

    """

    def __init__(self, vllm_config: "VllmConfig", number: int) -> None:
        self.config = copy.deepcopy(vllm_config)
        parallel = self.config.parallel_config
        parallel.rank = number * (parallel.world_size // parallel.pipeline_parallel_size)
        with _alone_in(self.config), set_current_vllm_config(self.config):
            with torch.device("meta"), set_default_torch_dtype(self.config.model_config.dtype):
                initialize_model(self.config)
                _make_drafter(self.config)
            current_platform.update_block_size_for_backend(self.config)
            self.specs: dict[str, KVCacheSpec] = get_kv_cache_spec(self.config)
            of_worker: Any = SimpleNamespace(vllm_config=self.config)
            self.layouts: list[str] = WorkerBase.get_supported_kv_cache_layouts(of_worker)


def _make_drafter(vllm_config: "VllmConfig") -> None:
    """Make the model of speculative decoding, if there is one. Its layers join those of `vllm_config`."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.draft_model_config is None:
        return
    context = vllm_config.compilation_config.static_forward_context
    before = set(context)
    proposer = _PROPOSERS.get(speculative.method, EagleProposer)
    # A complete proposer needs a device; only its configuration is needed here.
    asked: Any = proposer.__new__(proposer)
    asked.vllm_config, asked.speculative_config = vllm_config, speculative
    prefix = "draft_model" if speculative.method == "draft_model" else ""
    initialize_model(asked._create_draft_vllm_config(), model_config=speculative.draft_model_config, prefix=prefix)
    for name in set(context) - before:
        context[name].is_draft_layer = True


class _Ranks(parallel_state.GroupCoordinator):
    """A group of ranks of which only this process exists. Layers ask it for the number of ranks."""

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks = list(ranks)
        self.rank = self.local_rank = self.device_index = rank
        self.world_size = len(self.ranks)
        self.rank_in_group = self.ranks.index(rank)
        self.group_ranks = [self.ranks]
        self.device = torch.device("meta")
        self.cpu_group = self.device_group = self
        self.device_communicator = self.mq_broadcaster = None
        self.use_device_communicator = False

    # A method of torch's process groups.
    def size(self) -> int:
        return self.world_size


@contextmanager
def _alone_in(vllm_config: "VllmConfig") -> Iterator[None]:
    """Replace vLLM's groups of ranks by those of one rank of the engine, for the layers that are made inside."""
    parallel = vllm_config.parallel_config
    rank, num_tensor = parallel.rank, parallel.tensor_parallel_size
    per_stage = parallel.world_size // parallel.pipeline_parallel_size
    stage = range(rank - rank % num_tensor, rank - rank % num_tensor + num_tensor)
    num_experts = num_tensor * parallel.data_parallel_size * parallel.prefill_context_parallel_size
    groups = {
        "_WORLD": range(parallel.world_size),
        "_INNER_DP_WORLD": range(parallel.world_size),
        "_TP": stage,
        "_ETP": stage,
        "_DCP": range(rank, rank + parallel.decode_context_parallel_size),
        "_PCP": range(rank, rank + parallel.prefill_context_parallel_size),
        "_PP": range(rank % per_stage, parallel.world_size, per_stage),
        "_DP": range(rank, rank + parallel.data_parallel_size),
        "_EP": range(stage.start, stage.start + num_experts),
        "_EPLB": range(stage.start, stage.start + num_experts),
    }
    found = {name: getattr(parallel_state, name) for name in groups if hasattr(parallel_state, name)}
    try:
        for name in found:
            setattr(parallel_state, name, _Ranks(groups[name], rank))
        yield
    finally:
        for name, group in found.items():
            setattr(parallel_state, name, group)
