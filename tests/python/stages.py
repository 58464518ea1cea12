# SPDX-License-Identifier: Apache-2.0
"""How the layers of a model may be divided among pipeline stages."""

import random
from collections.abc import Collection, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from harness import ToySpec, make_kv_cache_configs, make_vllm_config
from model_families import Setting


def divisions(layers: Sequence[str], groups: Sequence[Collection[str]], num_stages: int) -> list[tuple[int, ...]]:
    """Divisions in which every stage has a layer of each group, and no stage twice what is even, or less than half.

    Parameters
    ----------
    layers
        Names, in layer order.
    groups
        Layers of each KV cache group.
    num_stages
        Of the pipeline.

    """
    even = len(layers) / num_stages
    found = []
    for cuts in combinations(range(1, len(layers)), num_stages - 1):
        borders = [0, *cuts, len(layers)]
        stages = [layers[first:end] for first, end in pairwise(borders)]
        is_even = all(even / 2 <= len(stage) <= 2 * even for stage in stages)
        if is_even and all(not set(stage).isdisjoint(group) for stage in stages for group in groups):
            found.append(tuple(map(len, stages)))
    return found


def random_division(rng: random.Random, setting: Setting) -> tuple[int, ...]:
    """Draw stages of a family, none with drafts: kvferry refuses both together on model runner v1."""
    num_stages = rng.choice([1, 2, 3])
    if num_stages == 1 or setting.family.num_drafts:
        return ()
    possible = divisions(list(setting.family.layers), setting.alike, num_stages)
    return rng.choice(possible) if possible else ()


def random_stages(rng: random.Random, folder: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Draw pipeline stages for a toy model of as many layers each as the whole had; what to give to ``ToySpec``."""
    num_stages = rng.choice([1, 2, 3])
    if num_stages == 1:
        return model
    spec = ToySpec(**{**model, "num_layers": num_stages * ToySpec(**model).num_layers, "extra_config": None})
    config = make_kv_cache_configs(make_vllm_config(folder, spec), spec)[0]
    groups = [group.layer_names for group in config.kv_cache_groups]
    stages = rng.choice(divisions(list(spec.layer_specs()), groups, num_stages))
    return {**model, "num_layers": spec.num_layers, "stages": stages}
