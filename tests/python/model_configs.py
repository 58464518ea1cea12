# SPDX-License-Identifier: Apache-2.0
"""Configurations of small models, as Hugging Face's directories have them: layers without weights."""

import json
from pathlib import Path
from typing import Any

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "head_dim": 64,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}

LLAMA = {**_SHAPE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
GEMMA3 = {
    **_SHAPE,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window": 128,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
# Gated delta nets, with experts.
QWEN3_NEXT = {
    **_SHAPE,
    **_EXPERTS,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 3,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
# Latent attention, which every tensor-parallel rank has whole.
DEEPSEEK_V3 = {
    **_SHAPE,
    **_EXPERTS,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# The same with an indexer.
SPARSE = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 64,
}


def write_model(folder: Path, config: dict[str, Any], **changes: Any) -> str:
    """Write a model's directory; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)
