# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages, each with the blocks of its own layers: the tokens are those of one process without tier."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM

from .conftest import make_model, make_runner
from .engine_runs import BLOCK_TOKENS, EngineReport, EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

PROMPT_TOKENS = 650
NUM_PROMPTS = 4
# Fewer than the prompts take once they are computed, so that each pushes the earlier ones out.
NUM_GPU_BLOCKS = 72
BASE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
    # Small ones would leave the next token to the embedding alone.
    "initializer_range": 0.3,
}  # fmt: skip
# Layers of Gemma 3: the first stage has two that see all tokens and one with a window, the second one the opposite.
ALL, WINDOW = "full_attention", "sliding_attention"
GEMMA: dict[str, Any] = {
    **BASE, "num_hidden_layers": 6, "layer_types": [ALL, ALL, WINDOW, ALL, WINDOW, WINDOW], "sliding_window": 100,
    "query_pre_attn_scalar": 32,
}  # fmt: skip
# Convolutions, of which vLLM makes two groups, with attention in between.
LFM: dict[str, Any] = {
    **BASE, "num_hidden_layers": 6, "layer_types": ["conv", ALL, "conv", "conv", ALL, "conv"], "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    # What vLLM's model reads beside.
    "conv_dim": 128, "conv_dim_out": 128, "block_dim": 128, "block_ff_dim": 256,
}  # fmt: skip


def write_gemma(directory: Path) -> None:
    Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA)).save_pretrained(directory)


def write_lfm(directory: Path) -> None:
    Lfm2ForCausalLM(Lfm2Config(**LFM)).save_pretrained(directory)  # type: ignore[no-untyped-call]


class Staged(NamedTuple):
    """A model in two stages.

    Attributes
    ----------
    write
        Writes it into a directory; None: the tiny Llama.
    partition
        Layers of each stage.
    block_bytes
        By rank and slab class.
    options
        Further ones of vLLM's ``LLM``.

    """

    write: Callable[[Path], None] | None
    partition: str
    block_bytes: list[list[int]]
    options: dict[str, Any]


# Of a layer: keys and values of two heads of 64 or 32 elements; the last two inputs of a convolution.
_TINY, _SMALL, _CONV = 2 * 2 * 64 * 4 * BLOCK_TOKENS, 2 * 2 * 32 * 4 * BLOCK_TOKENS, 2 * 128 * 4
MODELS = {
    "tiny": Staged(None, "3,3", [[3 * _TINY], [3 * _TINY]], {}),
    "gemma3": Staged(write_gemma, "3,3", [[2 * _SMALL, _SMALL], [_SMALL, 2 * _SMALL]], {}),
    "lfm2": Staged(write_lfm, "3,3", [[_SMALL, _CONV, _CONV]] * 2, {"mamba_cache_mode": "align"}),
}


def script() -> dict[str, dict[str, Any]]:
    """Named operations."""
    prompts = Prompts(seed=6)
    first = prompts.many(NUM_PROMPTS, PROMPT_TOKENS)
    others = prompts.many(NUM_PROMPTS, PROMPT_TOKENS + 50)
    return {
        "first": generate(first, submit="one_by_one"),
        "others": generate(others, submit="one_by_one"),
        "again": generate(first, submit="one_by_one"),
        "longer": generate([prompt + prompts.make(150) for prompt in first], submit="one_by_one"),
        "settled": settle(),
        "end": {"op": "inspect"},
    }


class Runs(NamedTuple):
    """Results by operation of one process without the connector and of two stages with it, and the log of those."""

    staged: Staged
    without: dict[str, dict[str, Any]]
    with_tier: dict[str, dict[str, Any]]
    log: str


@pytest.fixture(scope="module", params=MODELS)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    staged = MODELS[request.param]
    if staged.write is None:
        directory = make_model("tiny-llama")
    else:
        directory = tmp_path_factory.mktemp(request.param)
        torch.manual_seed(2)
        staged.write(directory)
    runner: EngineRunner = make_runner(directory)
    engine: dict[str, Any] = {"num_gpu_blocks": NUM_GPU_BLOCKS, "options": staged.options}
    generations = {name: operation for name, operation in script().items() if operation["op"] == "generate"}
    without = runner.run_named(generations, None, **engine)
    report: EngineReport = runner.run(
        list(script().values()),
        runner.kv_config(cpu_bytes_to_use=128 << 20),
        num_stages=2,
        environment={"VLLM_LOGGING_LEVEL": "INFO", "VLLM_PP_LAYER_PARTITION": staged.partition},
        **engine,
    )
    return Runs(staged, without, dict(zip(script(), report.results, strict=True)), report.log)


@pytest.mark.parametrize("operation", ["first", "others", "again", "longer"])
def test_tokens_are_those_of_one_process_without_tier(runs: Runs, operation: str) -> None:
    assert runs.with_tier[operation]["tokens"] == runs.without[operation]["tokens"]


@pytest.mark.parametrize("operation", ["again", "longer"])
def test_returning_prompts_are_served_by_the_tier(runs: Runs, operation: str) -> None:
    prompt_tokens = NUM_PROMPTS * (PROMPT_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS
    assert num_tokens_from_tier(runs.with_tier[operation]) >= prompt_tokens // 2


def test_a_stage_keeps_its_own_layers(runs: Runs) -> None:
    found = dict(re.findall(r"rank (\d) has \d+ slots of .*by slab class ([^)]*)\)", runs.log))
    expected = runs.staged.block_bytes
    assert found == {
        str(rank): ", ".join(f"{size / 1024:.2f} KiB" for size in sizes) for rank, sizes in enumerate(expected)
    }


def test_the_engine_ends_idle_and_nothing_is_kept(runs: Runs) -> None:
    assert_nothing_is_kept(runs.with_tier["end"])
