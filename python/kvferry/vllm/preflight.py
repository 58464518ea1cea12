# SPDX-License-Identifier: Apache-2.0
"""What kvferry refuses before the engine serves. Each refusal names the value, what is allowed, and the remedy."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import vllm
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size, resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from kvferry import _core, transfer_config
from kvferry.errors import ConfigError
from kvferry.vllm import versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

logger = init_logger("vllm.kvferry")

_WITHOUT = "start vLLM without KvFerryConnector"

# The known kinds of KV cache, in the order in which a spec is checked for them.
_SPECS = (MambaSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, FullAttentionSpec)
# Specs that were tested with random requests.
_TRIED = (
    "FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec",
    "MambaSpec",
)  # fmt: skip
# Why the bytes of their blocks alone do not restore them. vLLM's releases have different subsets of these.
_WRONG = {
    "SinkFullAttentionSpec": "its attention sinks lie outside the blocks",
    "HiddenStateCacheSpec": "it keeps hidden states, which belong to the request and not to its tokens",
    "RSWASpec": "its blocks are reused for later tokens of the same request",
    "KpoolTailSpec": "its blocks are reused for later tokens of the same request",
    "CrossAttentionSpec": "it keeps an encoder's output, which the block hashes do not cover",
    "EncoderOnlyAttentionSpec": "it has no KV cache",
    **dict.fromkeys(("HiSparseHotSpec", "HiSparseResidentSpec"), "its blocks are copies of blocks in host memory"),
}

# Modes without scales, with scales that belong to the model, or with opaque cells that contain their scales (MLA's).
_QUANT_MODES = ("NONE", "FP8_PER_TENSOR", "NVFP4_DS_MLA")


def warn_without_prefix_caching() -> None:
    """Warn that kvferry does nothing. The line is in the place of the one that says that the tier is ready."""
    logger.warning(
        "kvferry %s does nothing: prefix caching is disabled, and the tier's keys are its block hashes; start vLLM "
        "with --enable-prefix-caching to use the tier",
        _core.__version__,
    )


def check_engine(vllm_config: "VllmConfig") -> None:
    """Check the engine's mode.

    Raises
    ------
    ConfigError
        kvferry does not support the mode.

    """
    transfer_config.check_role(vllm_config.kv_transfer_config.kv_role)
    model = vllm_config.model_config
    if model.is_encoder_decoder:
        raise _refusal("the model is an encoder-decoder", "decoder-only models", _WITHOUT)
    if model.enable_sleep_mode and not versions.tells_of_sleep(vllm.__version__):
        raise _refusal(
            f"enable_sleep_mode is True and vLLM {vllm.__version__} does not tell a connector that the KV cache is "
            "about to lose its memory",
            "sleep mode with vLLM 0.33 or newer",
            "upgrade vLLM or remove --enable-sleep-mode",
        )
    if vllm_config.lora_config is not None and not versions.hashes_cover_adapter_path(vllm.__version__):
        raise _refusal(
            f"LoRA is enabled and the block hashes of vLLM {vllm.__version__} name an adapter without its path, so "
            "another adapter of the same name would get its blocks",
            "LoRA with vLLM 0.31 or newer",
            "upgrade vLLM or remove --enable-lora",
        )
    _check_elastic_pool(vllm_config)
    parallel = vllm_config.parallel_config
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise _refusal(
            f"distributed_executor_backend is 'external_launcher' with {parallel.world_size} ranks",
            "executors with one scheduler for all ranks",
            "use 'mp' or 'ray'",
        )
    if getattr(parallel, "enable_fault_tolerance", False):
        raise _refusal(
            "enable_fault_tolerance is True, with which vLLM runs on after a step that failed on some rank, so that a "
            "rank misses a plan, or the scheduler a report",
            "engines that end with such a step",
            "remove --enable-fault-tolerance",
        )
    if (
        vllm_config.speculative_config is not None
        and parallel.pipeline_parallel_size > 1
        and not vllm_config.use_v2_model_runner
    ):
        raise _refusal(
            f"speculative decoding with pipeline_parallel_size {parallel.pipeline_parallel_size} on model runner v1",
            "one of the two, or model runner v2",
            "set --pipeline-parallel-size 1 or VLLM_USE_V2_MODEL_RUNNER=1",
        )


def check_layout(wanted: str, vllm_config: "VllmConfig") -> None:
    """Check that the engine's KV cache has the layout of the key `kv_cache_layout`.

    Parameters
    ----------
    wanted
        ``"engine"``, or vLLM's name of a layout.
    vllm_config
        The engine's configuration, with the layout that it has chosen.

    Raises
    ------
    ConfigError
        The layout differs: the attention back end or the model does not support the wanted one, or
        ``VLLM_KV_CACHE_LAYOUT`` is set.

    """
    found = vllm_config.cache_config.kv_cache_layout
    if wanted in ("engine", found):
        return
    raise _refusal(
        f"kv_cache_layout is {wanted!r} and the engine's KV cache has the layout {found}, because the attention back "
        "end or the model does not support the other, or VLLM_KV_CACHE_LAYOUT is set",
        "a layout that the engine supports, or 'engine'",
        "leave kv_cache_layout out, choose another --attention-backend, or unset VLLM_KV_CACHE_LAYOUT",
    )


def _check_elastic_pool(vllm_config: "VllmConfig") -> None:
    """Check the engine's mode if kvcached is on, which takes the memory of a block away once no request holds it.

    kvcached waits for the devices first, but only if the engine queues batches. Otherwise the output of a step, which
    ends requests, can arrive before the step's blocks are gathered: model runner v2, which kvcached needs, gathers
    them after it. Then zeros would be stored.
    """
    is_on = os.getenv("ENABLE_KVCACHED", "false").lower() in ("true", "1")
    if not is_on or importlib.util.find_spec("kvcached") is None:
        return
    if not vllm_config.scheduler_config.async_scheduling and vllm_config.parallel_config.pipeline_parallel_size == 1:
        raise _refusal(
            "kvcached is enabled (ENABLE_KVCACHED) without asynchronous scheduling, in which it may take the memory of "
            "blocks away before they are stored",
            "asynchronous scheduling or pipeline parallel together with kvcached",
            "set --async-scheduling, or unset ENABLE_KVCACHED",
        )


def check_kv_cache(kv_cache_config: "KVCacheConfig") -> list["KVCacheGroupSpec"]:
    """Check the KV cache.

    Returns
    -------
    list[KVCacheGroupSpec]
        Its groups, which share the pages of the pool.

    Raises
    ------
    ConfigError
        There is no group, or kvferry cannot keep the blocks of a group.

    """
    groups = list(kv_cache_config.kv_cache_groups)
    if kv_cache_config.hisparse_host_num_blocks is not None or any(group.host_resident for group in groups):
        raise _refusal("the KV cache has host-resident blocks (HiSparse)", "a KV cache on the device", _WITHOUT)
    if not groups:
        raise _refusal("the model has no KV cache", "a model with attention layers", _WITHOUT)
    for group in groups:
        for spec in iter_layer_specs(group.kv_cache_spec) if is_kept(group) else ():
            _check_spec(spec)
    if not any(map(is_kept, groups)):
        raise _refusal("no KV cache group of the model is prefix-cacheable", "one at least", _WITHOUT)
    return groups


def is_kept(group: "KVCacheGroupSpec") -> bool:
    """Whether the engine itself caches the group's blocks. kvferry neither stores nor waits for those of other groups.

    Circular buffers and the windows of a bounded replay are scratch memory of one request, which is computed again.
    """
    return getattr(group, "enable_kv_transfer", True) and getattr(group.kv_cache_spec, "prefix_cacheable", True)


def kept_part(kv_cache_config: "KVCacheConfig") -> "KVCacheConfig":
    """Return the configuration with only the groups that are kept."""
    kept = [group for group in kv_cache_config.kv_cache_groups if is_kept(group)]
    return dataclasses.replace(kv_cache_config, kv_cache_groups=kept)


def can_store_later_turns(vllm_config: "VllmConfig", groups: Sequence["KVCacheGroupSpec"]) -> bool:
    """Whether the engine computes the later turns of a streaming session correctly.

    It continues from the recurrent state of a wrong token if drafts are taken back, or if a step is under way when a
    turn ends. Old releases also keep the hashes of tokens that a session takes back.

    Parameters
    ----------
    vllm_config
        The engine's configuration.
    groups
        Its KV cache groups.

    """
    has_state = any(isinstance(spec, MambaSpec) for group in groups for spec in iter_layer_specs(group.kv_cache_spec))
    is_ahead = bool(vllm_config.num_speculative_tokens or vllm_config.scheduler_config.async_scheduling)
    return versions.sessions_take_hashes_back() and not (has_state and is_ahead)


def reach_of_group(group: "KVCacheGroupSpec", num_drafts: int) -> tuple[str, int]:
    """How far back a token sees in the group, for the core's SchedulerEngine.

    Parameters
    ----------
    group
        A group of the KV cache.
    num_drafts
        Number of draft tokens of speculative decoding, which a step can take back.

    Raises
    ------
    ConfigError
        The layers of the group see different tokens.

    """
    if not is_kept(group):
        return "none", 0
    reaches = set()
    for spec in iter_layer_specs(group.kv_cache_spec):
        reaches.add(_reach(spec, num_drafts))
    if len(reaches) != 1:
        raise _refusal(f"the layers of one KV cache group see {sorted(reaches)} tokens", "the same", _WITHOUT)
    return reaches.pop()


def unseen_tokens(group: "KVCacheGroupSpec") -> int:
    """How many tokens of a group's window no token sees; vLLM keeps them for drafters of several modules."""
    return max(int(getattr(spec, "extra_retained_tokens", 0)) for spec in iter_layer_specs(group.kv_cache_spec))


def _reach(spec: "KVCacheSpec", num_drafts: int) -> tuple[str, int]:
    if isinstance(spec, MambaSpec):
        # With "all" a step leaves a state in each block that it completes; with "align" the engine says where.
        return ("states", 0) if spec.mamba_cache_mode == "all" else ("state", num_drafts)
    if isinstance(spec, SlidingWindowSpec):
        # A drafter of several modules can read the tokens that the engine retains beyond the window.
        return "window", int(spec.sliding_window) + int(spec.extra_retained_tokens)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return "chunk", int(spec.attention_chunk_size)
    return "all", 0


def _check_spec(spec: "KVCacheSpec") -> None:
    name = type(spec).__name__
    if name in _WRONG:
        raise _refusal(f"the KV cache spec is {name}: {_WRONG[name]}", "specs whose blocks hold all of it", _WITHOUT)
    if not isinstance(spec, _SPECS):
        kinds = " or ".join(kind.__name__ for kind in _SPECS)
        raise _refusal(f"the KV cache spec is {name}, of no kind that is known", kinds, _WITHOUT)
    if name not in _TRIED:
        logger.warning_once(
            "kvferry has not been tried with KV cache specs of %s; it treats them like their base class. Compare "
            "outputs with and without it before you rely on it",
            name,
        )
    if isinstance(spec, MambaSpec):
        _check_states(spec)
        return
    mode = spec.kv_quant_mode.name
    # An attention back end that keeps scales in the page states the bytes of a token's cell including them.
    if mode not in _QUANT_MODES and spec.state_content_bytes is None:
        raise _refusal(
            f"the KV cache quantization is {mode}, and its attention back end keeps the scales outside the blocks, or "
            "does not say where",
            f"{', '.join(_QUANT_MODES)}, and others with scales inside the blocks (state_content_bytes)",
            "choose another --kv-cache-dtype or --attention-backend",
        )


def _check_states(spec: MambaSpec) -> None:
    """Check that blocks hold the states of their ends. vLLM 0.32 and newer have only the mode "align"."""
    mode = spec.mamba_cache_mode
    if mode == "all" and spec.num_speculative_blocks:
        raise _refusal(
            "mamba_cache_mode is 'all' with speculative decoding, in which a step leaves the states after its last "
            "tokens in other blocks than those that end there",
            "'all' without drafts, or 'align'",
            "set --mamba-cache-mode align, or leave --speculative-config out",
        )
    if mode not in ("align", "all"):
        raise _refusal(
            f"mamba_cache_mode is {mode!r}, in which no block holds the state of its end",
            "'align', or 'all' with vLLM 0.30 and 0.31",
            "set --mamba-cache-mode align",
        )


def _check_division(vllm_config: "VllmConfig", groups: Sequence["KVCacheGroupSpec"]) -> None:
    """Check that vLLM can find the blocks of every group again, if it divides their tokens among ranks.

    vLLM's managers can do so for full attention, and for layers that every rank has whole. Others fail while they run.
    """
    size = vllm_config.parallel_config.decode_context_parallel_size
    for group in groups if size > 1 else ():
        for spec in iter_layer_specs(group.kv_cache_spec):
            if not isinstance(spec, FullAttentionSpec) and versions.is_divided(spec):
                raise _refusal(
                    f"decode_context_parallel_size is {size} and a KV cache group has layers of {type(spec).__name__}, "
                    "whose blocks vLLM does not find again when their tokens are divided among ranks",
                    "full attention, and layers that every rank has whole",
                    "set --decode-context-parallel-size 1",
                )


def block_tokens(vllm_config: "VllmConfig", group: "KVCacheGroupSpec") -> int:
    """Tokens of a block of a group; with decode context parallelism those of all ranks that have a part of it."""
    num_ranks = vllm_config.parallel_config.decode_context_parallel_size
    return int(resolve_dcp_kv_block_size(group.kv_cache_spec, num_ranks))


class BlockSizes(NamedTuple):
    """How many tokens the engine's hashes and blocks have.

    Attributes
    ----------
    hash_tokens
        Tokens that one of its hashes covers.
    hashes_per_block
        Hashes that a block covers, by KV cache group. The last of them names the block. For a group that is left out:
        the number of hashes between two positions where both a block and a hash end, because the engine's hits end
        there.

    """

    hash_tokens: int
    hashes_per_block: list[int]

    @property
    def hit_tokens(self) -> int:
        """Smallest number of tokens at whose multiples blocks end in every group. Hits end there."""
        return self.hash_tokens * math.lcm(*self.hashes_per_block)

    def block_tokens(self, group: int) -> int:
        """Tokens of a block of a group."""
        return self.hash_tokens * self.hashes_per_block[group]


def block_sizes(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> BlockSizes:
    """Find which hashes name the blocks of each group.

    Raises
    ------
    ConfigError
        The blocks of a group do not end where hashes end, hits do not end where blocks end, or vLLM does not find the
        blocks again with context parallelism.

    """
    _check_division(vllm_config, kv_cache_config.kv_cache_groups)
    hit_tokens, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    hashes_per_block = []
    for group in kv_cache_config.kv_cache_groups:
        tokens = block_tokens(vllm_config, group)
        if not is_kept(group):
            hashes_per_block.append(math.lcm(tokens, hash_tokens) // hash_tokens)
            continue
        if tokens % hash_tokens:
            raise _refusal(
                f"a block has {tokens} tokens and a block hash covers {hash_tokens}",
                "hashes that end where blocks do",
                "set --block-size to the size of a block, or --mamba-cache-mode align",
            )
        hashes_per_block.append(tokens // hash_tokens)
    sizes = BlockSizes(hash_tokens, hashes_per_block)
    if hit_tokens != sizes.hit_tokens:
        raise _refusal(
            f"the engine's hits end at multiples of {hit_tokens} tokens, and its blocks of {sizes.hit_tokens}",
            "one number for both",
            _WITHOUT,
        )
    return sizes


def _refusal(found: str, allowed: str, remedy: str) -> ConfigError:
    return ConfigError(f"kvferry cannot start: {found}; allowed: {allowed}; {remedy}")
