# SPDX-License-Identifier: Apache-2.0
"""The tier that engines of one node share, and this engine's identity in it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.sizes import format_size
from kvferry.vllm.fingerprint import hash_seed, start_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


def shared_tier_of(config: KvFerryConfig, vllm_config: "VllmConfig", slot_bytes: Sequence[int]) -> "SharedTier | None":
    """Return the shared tier if the configuration names one; see `SharedTier`."""
    return SharedTier(config, vllm_config, slot_bytes) if config.shared_path is not None else None


def check_engine(config: KvFerryConfig, vllm_config: "VllmConfig") -> None:
    """Refuse engines whose blocks others could mistake for their own, or cannot reach.

    Raises
    ------
    ConfigError
        `shared_path` is set together with a mode that cannot be shared; the message says which, and what to do.

    """
    if config.shared_path is None:
        return
    if vllm_config.lora_config is not None:
        raise ConfigError(
            "shared_path is set and LoRA is enabled; vLLM's block hashes name an adapter and not its weights, which "
            "can differ in another engine, or after a restart: start vLLM without --enable-lora, or leave "
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
    hash_seed(vllm_config)


def stays_out(config: KvFerryConfig, vllm_config: "VllmConfig") -> "Callable[[Request], bool]":
    """Return a test for requests that stay out of a shared tier: those with images, audio or video.

    If a client gave an item a UUID, vLLM hashes the UUID instead of the content, and two clients can give the same UUID
    to two pictures. The scheduler side cannot distinguish such a hash from one of the content: with certain processor
    arguments vLLM hashes the UUID as it hashes pixels, and a UUID can look like a hash. So all of these requests stay
    out, and so do sessions that can get such items later. With `shared_multimodal` the user promises that UUIDs are
    unique, and none stays out.
    """
    if config.shared_path is None or config.shared_multimodal:
        return lambda request: False
    is_multimodal = vllm_config.model_config.is_multimodal_model
    return lambda request: bool(request.mm_features) or (is_multimodal and request.resumable)


class SharedTier:
    """The shared tier that an engine's configuration names: the same for its scheduler and all of its ranks.

    Parameters
    ----------
    config
        The connector's configuration, with a `shared_path`.
    vllm_config
        The engine's configuration.
    slot_bytes
        Bytes of a block on the rank with the largest blocks, by slab class, the largest first.

    Attributes
    ----------
    options
        The core's options for opening the file, besides those that the configuration passes unchanged.
    num_chunks, slots_per_chunk
        How the tier is divided; slots by slab class.

    Raises
    ------
    ConfigError
        A block does not fit into a chunk of the tier.

    """

    def __init__(self, config: KvFerryConfig, vllm_config: "VllmConfig", slot_bytes: Sequence[int]) -> None:
        assert config.shared_path is not None
        assert vllm_config.kv_transfer_config is not None
        self._num_ranks: int = vllm_config.parallel_config.world_size
        capacity_bytes = config.shared_capacity(self._num_ranks)
        self.options: dict[str, object] = {
            "shared_capacity_bytes": capacity_bytes,
            "shared_instance": start_of(vllm_config),
        }
        self.num_chunks, self._chunk_bytes, max_chunk_slots = _core.shared_tier_shape(
            config.shared_path, capacity_bytes, self._num_ranks, config.shared_chunk_bytes or 0
        )
        if slot_bytes[0] > self._chunk_bytes:
            raise ConfigError(
                f"a block of the KV cache has {slot_bytes[0]} bytes ({format_size(slot_bytes[0])}) on one rank, and "
                f"the shared tier is divided into chunks of {self._chunk_bytes}; raise cpu_bytes_to_use, or set "
                "shared_chunk_bytes so that a chunk holds several of the largest blocks of all engines that share it"
            )
        self.slots_per_chunk = [min(self._chunk_bytes // size, max_chunk_slots) for size in slot_bytes]

    def most_chunks(self, config: KvFerryConfig) -> int:
        """Most chunks that this engine takes; 0: all."""
        if config.shared_bytes_limit is None:
            return 0
        return max(1, config.shared_bytes_limit // (self._chunk_bytes * self._num_ranks))
