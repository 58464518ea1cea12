# SPDX-License-Identifier: Apache-2.0
"""The tier that engines of one node share: who this engine is there, and what its blocks depend on."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import vllm
from vllm.v1.core import kv_cache_utils

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

# Of what this file says in a fingerprint, and of how blocks are packed into slots.
_FINGERPRINT_VERSION = 1
# Of a file that is compared by what it holds: configurations, not weights.
_MOST_READ_BYTES = 1 << 20


def shared_tier_of(config: KvFerryConfig, vllm_config: "VllmConfig", slot_bytes: Sequence[int]) -> "SharedTier | None":
    """The shared tier, if the configuration names one; see `SharedTier`."""
    return SharedTier(config, vllm_config, slot_bytes) if config.shared_path is not None else None


def check_engine(config: KvFerryConfig, vllm_config: "VllmConfig") -> None:
    """Refuse engines whose blocks others could take for their own, or cannot reach.

    Raises
    ------
    ConfigError
        `shared_path` is set together with what cannot be shared; what, and what to do.

    """
    if config.shared_path is None:
        return
    if vllm_config.lora_config is not None:
        raise ConfigError(
            "shared_path is set and LoRA is enabled; vLLM's block hashes name an adapter and not its weights, which "
            "may be others in another engine, or by the next start: start vLLM without --enable-lora, or leave "
            "shared_path out"
        )
    parallel = vllm_config.parallel_config
    if parallel.local_world_size != parallel.world_size:
        raise ConfigError(
            f"shared_path is set and the engine's {parallel.world_size} ranks are on several nodes; allowed is one "
            "node: leave shared_path out"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"shared_path is set and pipeline_parallel_size is {parallel.pipeline_parallel_size}; allowed is 1: leave "
            "shared_path out"
        )
    _hash_seed(vllm_config)


class SharedTier:
    """The shared tier that an engine's configuration names: the same for its scheduler and all of its ranks.

    Parameters
    ----------
    config
        Of the connector, with a `shared_path`.
    vllm_config
        Of the engine.
    slot_bytes
        Bytes of a block on the rank that has the largest, by slab class, the largest first.

    Attributes
    ----------
    options
        What the core opens the file by.
    num_chunks, slots_per_chunk
        How it is divided; slots by slab class.

    Raises
    ------
    ConfigError
        A block does not fit into what the tier is divided into.

    """

    def __init__(self, config: KvFerryConfig, vllm_config: "VllmConfig", slot_bytes: Sequence[int]) -> None:
        assert config.shared_path is not None
        assert vllm_config.kv_transfer_config is not None
        self._num_ranks: int = vllm_config.parallel_config.world_size
        capacity_bytes = config.bytes_per_arena(self._num_ranks) * self._num_ranks
        self.options: dict[str, object] = {
            "path": config.shared_path,
            "capacity_bytes": capacity_bytes,
            "num_ranks": self._num_ranks,
            "chunk_bytes": config.shared_chunk_bytes or 0,
            "keep": config.shared_keep,
            # Another one for every start.
            "instance": f"{vllm_config.kv_transfer_config.engine_id}/{vllm_config.instance_id}",
        }
        self.num_chunks, self._chunk_bytes, max_chunk_slots = _core.shared_tier_shape(
            config.shared_path, capacity_bytes, self._num_ranks, config.shared_chunk_bytes or 0
        )
        if slot_bytes[0] > self._chunk_bytes:
            raise ConfigError(
                f"a block of the KV cache has {slot_bytes[0]} bytes ({format_size(slot_bytes[0])}) on one rank, and "
                f"the shared tier is divided into chunks of {self._chunk_bytes}; raise cpu_bytes_to_use, or set "
                "shared_chunk_bytes to some of the largest blocks of all engines that share it"
            )
        self.slots_per_chunk = [min(self._chunk_bytes // size, max_chunk_slots) for size in slot_bytes]

    def most_chunks(self, config: KvFerryConfig) -> int:
        """Chunks that this engine takes at most; 0: all."""
        if config.shared_bytes_limit is None:
            return 0
        return max(1, config.shared_bytes_limit // (self._chunk_bytes * self._num_ranks))


def name_space_of(
    vllm_config: "VllmConfig", groups: Sequence["KVCacheGroupSpec"], slot_bytes: Sequence[Sequence[int]]
) -> int:
    """Digest all that a block's bytes and its hash depend on: engines of which it differs share no block.

    Parameters
    ----------
    vllm_config
        Of the engine.
    groups
        Its KV cache groups.
    slot_bytes
        Packed bytes of a block, by slab class and rank.

    """
    parallel = vllm_config.parallel_config
    cache = vllm_config.cache_config
    facts = {
        "version": _FINGERPRINT_VERSION,
        "vllm": vllm.__version__,
        "python": platform.python_version(),  # Some hashes are of pickles.
        "model": _model_facts(vllm_config.model_config),
        "draft": _draft_facts(vllm_config),
        "load_format": str(vllm_config.load_config.load_format),
        "seed": vllm_config.model_config.seed,  # Of dummy weights.
        "device": str(vllm_config.device_config.device_type),
        "cache_dtype": str(cache.cache_dtype),
        "hash": [str(cache.prefix_caching_hash_algo), _hash_seed(vllm_config), cache.block_size],
        "parallel": [
            parallel.world_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.enable_expert_parallel,
        ],
        "groups": [[repr(group.kv_cache_spec), len(group.layer_names)] for group in groups],
        "slot_bytes": [list(sizes) for sizes in slot_bytes],
    }
    text = json.dumps(facts, sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _model_facts(model: "ModelConfig") -> list[object]:
    return [
        str(model.model),
        str(model.revision),
        str(model.dtype),
        str(model.quantization),
        model.compute_hash(),
        repr(getattr(model, "hf_overrides", None)),
        repr(getattr(model.multimodal_config, "mm_processor_kwargs", None)),
        getattr(model.hf_config, "_commit_hash", None),
        _weights_mark(str(model.model)),
    ]


def _draft_facts(vllm_config: "VllmConfig") -> list[object] | None:
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.draft_model_config is None:
        return None
    return [str(speculative.method), *_model_facts(speculative.draft_model_config)]


def _weights_mark(model: str) -> list[list[object]]:
    """Files of a model in a local folder, the small ones by what they hold: others of that name are other weights."""
    folder = Path(model)
    if not folder.is_dir():
        return []
    return [[entry.name, *_file_mark(entry)] for entry in sorted(folder.iterdir()) if entry.is_file()]


def _file_mark(file: Path) -> list[object]:
    stat = file.stat()
    if stat.st_size <= _MOST_READ_BYTES:
        return [hashlib.sha256(file.read_bytes()).hexdigest()]
    return [stat.st_size, stat.st_mtime_ns]


def _hash_seed(vllm_config: "VllmConfig") -> str:
    """Return what vLLM's block hashes begin with.

    Raises
    ------
    ConfigError
        It is another one in each process.

    """
    seed = os.environ.get("PYTHONHASHSEED")
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    fixed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    if seed is None and fixed is not None and algorithm.startswith("sha256"):
        seed = fixed
    if seed is None or seed == "random":
        raise ConfigError(
            f"shared_path is set and PYTHONHASHSEED is {seed or 'not set'}; with prefix_caching_hash_algo "
            f"{algorithm!r} vLLM hashes the same block to something else in each process then: set PYTHONHASHSEED to "
            "the same number for all engines that share the tier, such as 0"
        )
    return seed
