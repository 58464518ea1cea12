# SPDX-License-Identifier: Apache-2.0
"""An engine's configuration and KV cache, of which its name space and its probes are made."""

from pathlib import Path
from typing import Any

import torch
from harness import ToySpec, make_kv_cache_configs, make_vllm_config
from kvferry.vllm.fingerprint import NameSpace, name_space_of, probe_of_rank
from kvferry.vllm.layout import fragments_of_groups
from vllm.config import MultiModalConfig
from vllm.v1.worker.utils import allocate_kv_cache


class Engine:
    """An engine's configuration, its KV cache, and what kvferry makes of both."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.spec = ToySpec(extra_config={}, **spec)
        self.config = make_vllm_config(folder, self.spec)
        self.config.model_config.multimodal_config = MultiModalConfig()
        self.kv = make_kv_cache_configs(self.config, self.spec)[0]
        self.slot_bytes = [[6144] * self.spec.world_size]

    def name_space(self) -> NameSpace:
        return name_space_of(self.config, self.kv, self.slot_bytes)

    def probe(self, caches: dict[str, torch.Tensor] | None = None) -> int:
        caches = caches or allocate_kv_cache(self.kv, torch.device("cpu"), self.spec.layout)
        groups = [group.layer_names for group in self.kv.kv_cache_groups]
        return probe_of_rank(self.config, self.kv, caches, fragments_of_groups(groups, caches, self.kv.num_blocks))

    def configuration(self, of: str) -> Any:
        """The object of one of vLLM's configuration classes."""
        config = self.config
        return {
            "ModelConfig": config.model_config,
            "MultiModalConfig": config.model_config.multimodal_config,
            "CacheConfig": config.cache_config,
            "ParallelConfig": config.parallel_config,
            "LoadConfig": config.load_config,
            "SpeculativeConfig": config.speculative_config,
            "VllmConfig": config,
        }[of]
