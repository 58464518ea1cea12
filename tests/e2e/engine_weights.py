# SPDX-License-Identifier: Apache-2.0
"""Operations of an engine process for weights that change while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine_process import Engine


def update_weights(engine: Engine, version: str, factor: float) -> dict[str, Any]:
    """Do as an RL framework: reset the caches, load weights (of the start, up to `factor` times), name the version."""
    import torch

    assert engine.llm.reset_prefix_cache(reset_connector=True), "requests are running"
    model = engine.core.model_executor.driver_worker.worker.model_runner.model
    first = getattr(engine, "first_weights", None)
    if first is None:
        # Those of norms: vLLM's CPU build computes with copies of the matrices.
        first = {name: value.detach().clone() for name, value in model.named_parameters() if value.dim() == 1}
        engine.first_weights = first  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in first:
                value.copy_(first[name] * torch.linspace(1, factor, value.numel()))
    return name_weights(engine, version)


def name_weights(engine: Engine, version: str) -> dict[str, Any]:
    """Tell vLLM the weights' version, in whichever process the engine core is."""
    engine.llm.llm_engine.engine_core.set_weight_version(version)
    return {"version": engine.llm.llm_engine.engine_core.get_weight_version()}
