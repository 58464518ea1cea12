# SPDX-License-Identifier: Apache-2.0
"""Weights that change in the real engine: each version finds its own blocks, by the name that vLLM is told."""

from __future__ import annotations

from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier, settle

PROMPT_TOKENS = 300
NUM_HIT_TOKENS = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
LOSE = {"op": "reset_prefix_cache"}


def turns(names: list[tuple[str, str, float]]) -> dict[str, dict[str, Any]]:
    """For each name the version and factor of the weights: an update, a completion, and its stores."""
    prompt = Prompts(seed=21).make(PROMPT_TOKENS)
    script: dict[str, dict[str, Any]] = {}
    for name, version, factor in names:
        script[f"update {name}"] = {"op": "update_weights", "version": version, "factor": factor}
        script[name] = generate([prompt], max_tokens=16)
        script[f"settled {name}"] = settle()
        script[f"lost {name}"] = LOSE
    return script


VISITS = [("A", "default", 1.0), ("B", "B", 3.0), ("A again", "default", 1.0), ("B again", "B", 3.0)]


def test_each_version_loads_its_own_blocks_and_gives_its_own_tokens(runner: EngineRunner) -> None:
    tier = {"cpu_bytes_to_use": "64MiB"}
    result = runner.run_named(turns(VISITS), runner.kv_config(**tier, weights_run="run"), num_gpu_blocks=44)
    alone = runner.run_named(turns(VISITS[:2]), None, num_gpu_blocks=44)
    assert alone["A"]["tokens"] != alone["B"]["tokens"]
    for name in ("A", "B"):
        assert num_tokens_from_tier(result[name]) == 0
        assert num_tokens_from_tier(result[f"{name} again"]) == NUM_HIT_TOKENS
        for visit in (name, f"{name} again"):
            assert result[visit]["tokens"] == alone[name]["tokens"], visit


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_vllm_tells_the_connector_a_version_wherever_the_core_is(runner: EngineRunner, multiprocessing: bool) -> None:
    prompt = Prompts(seed=22).make(PROMPT_TOKENS)
    script: dict[str, dict[str, Any]] = {
        "first": generate([prompt], max_tokens=4),
        "stored": {"op": "await_figure", "name": "vllm:kvferry_stored_blocks", "least": NUM_HIT_TOKENS // BLOCK_TOKENS},
    }
    for number, version in enumerate(("default", "other", "default")):
        script |= {
            f"lost {number}": LOSE,
            f"named {number}": {"op": "name_weights", "version": version},
            f"again {number}": generate([prompt], max_tokens=4),
        }
    kv_config = runner.kv_config(cpu_bytes_to_use="64MiB", weights_run="run")
    result = runner.run_named(script, kv_config, num_gpu_blocks=44, multiprocessing=multiprocessing)
    hits = [num_tokens_from_tier(result[f"again {number}"]) for number in range(3)]
    assert hits == [NUM_HIT_TOKENS, 0, NUM_HIT_TOKENS]
    assert [result[f"named {number}"]["version"] for number in range(3)] == ["default", "other", "default"]
