# SPDX-License-Identifier: Apache-2.0
"""What kind of engine the toy is, and vLLM's own configuration and KV cache planning for it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from kvferry.vllm import versions
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.model_executor.models import registry
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

# vLLM asks a model's class what it can do in a process that imports all of vLLM for that, once for each class.
registry._run_in_subprocess = lambda function: function()

VOCABULARY = 1000
HEAD_SIZE = 8
NUM_KV_HEADS = 2
# Of a recurrent state.
NUM_CELLS = 16


@dataclass(frozen=True, kw_only=True)
class ToySpec:
    """What kind of engine to make.

    Attributes
    ----------
    num_blocks, block_size
        Of the GPU pool (vLLM keeps block 0 for itself), and tokens of a block.
    num_layers, layer_time_s, token_time_s
        Of the toy model, and how long it takes over each, and over a token: time for what goes on beside a forward.
    layer_pattern, sliding_window, chunk_size
        Kinds of layers, repeated over the model: ``"f"`` attends to the whole prefix, ``"w"`` to the last
        `sliding_window` tokens, ``"c"`` to those since the last multiple of `chunk_size`; ``"m"`` to the whole prefix,
        with one latent vector per token in place of keys and values; ``"s"`` keeps recurrent state. ``"F"`` has twice
        the heads of ``"f"``, ``"h"`` half of them (beside another reach vLLM gives it blocks of twice the tokens), and
        ``"M"`` a latent vector of half the length, as an indexer beside MLA. With several
        reaches vLLM makes several KV cache groups.
    layers
        Layer name to vLLM's specification of its KV cache, in layer order, in place of all that.
    world_size
        Ranks of a pipeline stage, all in this process: tensor-parallel ones, but for `num_prefill_ranks`.
    num_context_ranks, interleaving
        vLLM's decode context parallelism: how many tensor-parallel ranks divide the tokens of a block, and how many
        tokens in a row one of them has.
    num_prefill_ranks
        vLLM's prefill context parallelism: how many ranks keep each part of the KV cache, all of them the whole of it.
    stages
        Layers of each pipeline stage; empty: there is one.
    max_num_batched_tokens, max_num_seqs, max_model_len
        As vLLM's.
    async_scheduling
        vLLM's AsyncScheduler with two batches in flight.
    extra_config
        ``kv_connector_extra_config``; None: no connector.
    connector, connector_module
        Which connector.
    load_failure_policy
        ``"recompute"`` or ``"fail"``.
    layout
        Of the KV cache tensors.
    prefix_caching
        The engine's.
    policy
        ``"fcfs"`` or ``"priority"``.
    num_drafts
        Tokens that the toy proposes beyond each token of a decode; some are rejected.
    draft_method
        What vLLM is told of them. With ``"mtp"`` or ``"eagle3"`` it takes a drafter's layers into account, which it
        recognises, and loses a block more of a hit.
    num_draft_modules
        With ``"mtp"``: of several vLLM keeps more of a window than a token sees (``extra_retained_tokens``).
    kv_events
        Whether the engine publishes KV events; to nobody, unless a test replaces the publisher's ``publish``.
    retention_interval
        vLLM's ``prefix_cache_retention_interval``: of the states and window blocks that steps leave, its cache keeps
        those where a request of the same prompt goes on (0), or all (None).
    mamba_cache_mode
        vLLM's: whether the layers of ``"s"`` keep the states of some block boundaries (``"align"``), or of all.
    hybrid_manager
        vLLM's, for groups of several kinds; not every connector goes with it.
    page_bytes
        From one block of a full-attention layer to where the next may lie: its bytes, or more.

    """

    num_blocks: int = 33
    block_size: int = 16
    num_layers: int = 3
    layer_time_s: float = 0.0
    token_time_s: float = 0.0
    layer_pattern: str = "f"
    sliding_window: int = 40
    chunk_size: int = 64
    layers: Mapping[str, KVCacheSpec] | None = None
    world_size: int = 1
    num_context_ranks: int = 1
    interleaving: int = 1
    num_prefill_ranks: int = 1
    stages: tuple[int, ...] = ()
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 16
    max_model_len: int = 512
    async_scheduling: bool = False
    extra_config: Mapping[str, Any] | None = field(default_factory=lambda: {"cpu_bytes_to_use": "64MiB"})
    connector: str = "KvFerryConnector"
    connector_module: str | None = "kvferry.vllm"
    load_failure_policy: str = "recompute"
    layout: KVCacheLayout = KVCacheLayout.LBHNC
    prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    num_drafts: int = 0
    draft_method: Literal["ngram", "eagle3", "mtp"] = "ngram"
    num_draft_modules: int = 1
    kv_events: bool = False
    retention_interval: int | None = 0
    mamba_cache_mode: Literal["align", "all"] = "align"
    hybrid_manager: bool = True
    page_bytes: int | None = None

    @property
    def num_tensor_ranks(self) -> int:
        """Tensor-parallel ranks of a stage."""
        return self.world_size // self.num_prefill_ranks

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return max(1, len(self.stages))

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages, those of the first one first."""
        return self.num_stages * self.world_size

    def layers_of_rank(self, rank: int) -> list[str]:
        """Names of the layers that a rank has, in layer order."""
        names = list(self.layer_specs())
        if not self.stages:
            return names
        assert sum(self.stages) == len(names), f"{self.stages} layers in stages, {len(names)} of the model"
        start = sum(self.stages[: rank // self.world_size])
        return names[start : start + self.stages[rank // self.world_size]]

    def layer_specs(self) -> dict[str, KVCacheSpec]:
        """Layer name to what vLLM calls its KV cache specification, in layer order."""
        if self.layers is not None:
            return dict(self.layers)
        shape = {
            "block_size": self.block_size,
            "num_kv_heads": NUM_KV_HEADS,
            "head_size": HEAD_SIZE,
            "dtype": torch.float32,
        }
        latent = shape | {"num_kv_heads": 1}
        if "max_tp_shards" in MLAAttentionSpec.__dataclass_fields__:  # vLLM 0.31 and newer
            latent["max_tp_shards"] = 1
        kinds: dict[str, KVCacheSpec] = {
            "m": MLAAttentionSpec(**(latent | {"head_size": 2 * NUM_KV_HEADS * HEAD_SIZE})),
            "M": MLAAttentionSpec(**(latent | {"head_size": NUM_KV_HEADS * HEAD_SIZE})),
            "f": FullAttentionSpec(**shape, page_size_padded=self.page_bytes),
            "h": FullAttentionSpec(**(shape | {"num_kv_heads": 1})),
            "F": FullAttentionSpec(**(shape | {"num_kv_heads": 2 * NUM_KV_HEADS})),
            "w": SlidingWindowSpec(**shape, sliding_window=self.sliding_window),
            "c": ChunkedLocalAttentionSpec(**shape, attention_chunk_size=self.chunk_size),
        }
        kinds["s"] = MambaSpec(
            block_size=self.block_size,
            shapes=((NUM_CELLS // 4,), (NUM_CELLS // 4, 3)),
            dtypes=(torch.int32, torch.int32),
            page_size_padded=kinds["f"].page_size_bytes,
            mamba_cache_mode=self.mamba_cache_mode,
            num_speculative_blocks=self.num_drafts,
        )
        return {
            f"model.layers.{i}.self_attn.attn": kinds[self.layer_pattern[i % len(self.layer_pattern)]]
            for i in range(self.num_layers)
        }


def write_model_config(folder: Path, spec: ToySpec) -> Path:
    """Write the configuration of a small Llama, which vLLM wants to read; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": NUM_KV_HEADS * spec.world_size,
        "num_hidden_layers": spec.num_layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": spec.max_model_len,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_vllm_config(folder: Path, spec: ToySpec) -> VllmConfig:
    """Make the engine's configuration.

    Parameters
    ----------
    folder
        Where the model's configuration may be written.
    spec
        What kind of engine.

    """
    model = ModelConfig(
        model=str(write_model_config(folder, spec)),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=spec.max_model_len,
        enforce_eager=True,
    )
    transfer = None
    if spec.extra_config is not None:
        transfer = KVTransferConfig(
            kv_connector=spec.connector,
            kv_connector_module_path=spec.connector_module,
            kv_role="kv_both",
            kv_connector_extra_config=dict(spec.extra_config),
            kv_load_failure_policy=spec.load_failure_policy,
        )
    parallel = ParallelConfig()
    drafts = None
    if spec.num_drafts:
        drafts = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=spec.num_drafts,
            prompt_lookup_max=2,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(
            block_size=spec.block_size,
            enable_prefix_caching=spec.prefix_caching,
            num_gpu_blocks_override=spec.num_blocks,
            prefix_cache_retention_interval=spec.retention_interval,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_model_len=spec.max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            # vLLM refuses it with "ngram"; the toy says what its drafts are as EAGLE does.
            async_scheduling=spec.async_scheduling and not spec.num_drafts,
            policy=spec.policy,
            disable_hybrid_kv_cache_manager=not spec.hybrid_manager,
        ),
        parallel_config=parallel,
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfer,
        speculative_config=drafts,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if spec.kv_events else None,
    )
    if config.speculative_config is not None:
        # Made with another method it would ask for the drafter's own model.
        config.speculative_config.method = spec.draft_method
        if spec.num_draft_modules > 1:
            modules = SimpleNamespace(num_nextn_predict_layers=spec.num_draft_modules)
            config.speculative_config.draft_model_config = SimpleNamespace(hf_config=modules)
    # vLLM's CPU platform forces these; nothing here runs on its executor.
    config.scheduler_config.async_scheduling = spec.async_scheduling
    config.parallel_config.tensor_parallel_size = spec.num_tensor_ranks
    config.parallel_config.pipeline_parallel_size = spec.num_stages
    config.parallel_config.world_size = spec.num_ranks
    config.parallel_config.prefill_context_parallel_size = spec.num_prefill_ranks
    config.parallel_config.decode_context_parallel_size = spec.num_context_ranks
    config.parallel_config.cp_kv_cache_interleave_size = spec.interleaving
    config.cache_config.block_size = spec.block_size
    if any(isinstance(layer, MambaSpec) for layer in spec.layer_specs().values()):
        config.cache_config.mamba_cache_mode = spec.mamba_cache_mode
        config.cache_config.mamba_block_size = spec.block_size
    return config


def make_kv_cache_configs(config: VllmConfig, spec: ToySpec) -> list[KVCacheConfig]:
    """Make each rank's KV cache configuration, as the engine core does."""
    config.cache_config.kv_cache_layout = spec.layout.name
    of_model = spec.layer_specs()
    specs = [{name: of_model[name] for name in spec.layers_of_rank(rank)} for rank in range(spec.num_ranks)]
    configs = versions.plan_kv_caches(config, specs, [2**30] * spec.num_ranks)
    config.cache_config.num_gpu_blocks = configs[0].num_blocks
    return configs
