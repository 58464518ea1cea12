# SPDX-License-Identifier: Apache-2.0
"""KV cache configurations as vLLM plans them, of layers of some kinds."""

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=32)
CHUNK = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, attention_chunk_size=64
)
STATE = MambaSpec(
    block_size=16,
    shapes=((2, 8), (3,)),
    dtypes=(torch.float32, torch.bfloat16),
    page_size_padded=2048,
    mamba_cache_mode="align",
)
MLA = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)


def kv_cache(*specs: KVCacheSpec, layers: int | list[int] = 2) -> KVCacheConfig:
    """Groups of so many layers, which lie over each other in the pool, the layers outermost."""
    num_blocks = 8
    counts = [layers] * len(specs) if isinstance(layers, int) else layers
    groups, tensors = [], []
    for number, (spec, count) in enumerate(zip(specs, counts, strict=True)):
        of_layers = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else {}
        of_layers = of_layers or {f"g{number}.l{i}": spec for i in range(count)}
        groups.append(KVCacheGroupSpec(list(of_layers), spec))
        offset = 0
        for shape in dict.fromkeys(of_layers.values()):
            names = [name for name, its in of_layers.items() if its == shape]
            stride = shape.page_size_bytes * num_blocks
            tensors.append(KVCacheTensor(0, names, stride, shape.page_size_bytes, offset))
            offset += stride * len(names)
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)
