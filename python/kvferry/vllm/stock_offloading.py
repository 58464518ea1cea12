# SPDX-License-Identifier: Apache-2.0
"""The host memory that vLLM's own OffloadingConnector would take, by its own arithmetic."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class StockTier(NamedTuple):
    """The tier that OffloadingConnector would make.

    Attributes
    ----------
    num_chunks
        Chunks that it holds. A chunk is a block of any group, unless its configuration says otherwise.
    chunk_bytes
        Bytes of a chunk on each rank, rounded up; ranks that share one copy count once.
    chunk_tokens
        Tokens that a chunk covers, by KV cache group; 0: the group is left out.

    """

    num_chunks: int
    chunk_bytes: int
    chunk_tokens: list[int]


def stock_tier(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", tier_bytes: int) -> StockTier:
    """Compute the tier with OffloadingConnector's own code.

    Parameters
    ----------
    vllm_config, kv_cache_config
        The engine's configuration. The connector's keys are not read.
    tier_bytes
        Bytes of all ranks together.

    Raises
    ------
    Exception
        Whatever vLLM's code raises: its names differ between releases, and it refuses some engines.

    """
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    engine = build_offloading_config(vllm_config, kv_cache_config)
    spec = CPUOffloadingSpec(dataclasses.replace(engine, extra_config={"cpu_bytes_to_use": tier_bytes}))
    num_copies = 1 if spec.replicated_layout else engine.parallel.world_size
    chunk_tokens = {group.group_id: group.tokens_per_block * spec.blocks_per_chunk for group in engine.groups}
    return StockTier(
        num_chunks=int(spec.num_chunks),
        chunk_bytes=int(spec.kv_bytes_per_chunk) // num_copies,
        chunk_tokens=[chunk_tokens.get(number, 0) for number in range(len(kv_cache_config.kv_cache_groups))],
    )
