# SPDX-License-Identifier: Apache-2.0
"""The load format "random": real random weights for any model from its ``config.json`` alone.

vLLM's own format "dummy" cannot show a wrong block of the KV cache: its weights are so small that every block looks
alike.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

STD = 0.15


@register_model_loader("random")
class RandomLoader(BaseModelLoader):  # type: ignore[misc]
    """Draws matrices around zero and scales of norms around one, the same for the same model.

    A model may say ``"embedding_std"`` in its configuration: where each token's own embedding is the whole of what the
    last layer sees, the next token would follow from the last one alone.
    """

    def download_model(self, model_config: Any) -> None:
        """There is nothing to download."""

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """Draw all weights."""
        generator = torch.Generator().manual_seed(0)
        embedding_std = getattr(model_config.hf_config, "embedding_std", STD)
        for name, weights in model.state_dict().items():
            if not weights.is_floating_point():
                continue
            is_scale = weights.dim() == 1 and "norm" in name
            std = embedding_std if "embed" in name else STD
            weights.copy_(torch.normal(float(is_scale), std, weights.shape, generator=generator))
