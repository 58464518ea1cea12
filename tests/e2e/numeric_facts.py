# SPDX-License-Identifier: Apache-2.0
"""What a process decides once and all of its log probabilities depend on: to find out why one is off.

The order of a sum (the shape of a batch, the number of threads, the instruction set) moves a log probability of the
tiny model by at most 5e-5. One that is off by 1e-3 to 1e-2, with the right tokens, comes from a relative change of
about 1e-5 in everything: another rounding mode, weights that differ in their last bits, another table of rotations.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine_process import Engine

# FE_UPWARD of <fenv.h>.
UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
NEAREST = 0
# So many elements that each thread of OpenMP has some.
NUM_ELEMENTS = 1 << 20


def _rounding_modes() -> list[str]:
    """How the threads that compute round: usually all of them to the nearest number."""
    import torch

    ulp = 2.0**-23
    ones = torch.ones(NUM_ELEMENTS)
    upward = (ones + ulp / 4) > 1
    downward = (-ones - ulp / 4) < -1
    cut = (ones + 0.75 * ulp) == 1
    nearest = ~(upward | downward | cut)
    toward_zero = cut & ~downward
    masks = {"nearest": nearest, "upward": upward, "downward": downward, "toward zero": toward_zero}
    return [name for name, mask in masks.items() if bool(mask.any())]


def _hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def facts_of_worker(worker: Any) -> dict[str, Any]:
    """The facts of the process that computes; runs there."""
    import torch

    model = worker.model_runner.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    weights = sorted(Path(worker.model_config.model).glob("*.safetensors"))
    return {
        "rounding": _rounding_modes(),
        "num_threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        # Weights that are packed for matrix multiplication are empty here: their file stands for them.
        "weights": {path.name: _hash_of(path.read_bytes()) for path in weights},
        "tensors": {name: _hash_of(one.detach().contiguous().numpy().tobytes()) for name, one in tensors},
    }


def numerics(engine: Engine, prompts: list[list[int]], max_tokens: int, rounds_upward: bool = False) -> dict[str, Any]:
    """Tokens and log probabilities of prompts and completions, and the facts (in process only).

    With `rounds_upward` the engine's main thread rounds upward meanwhile.
    """
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens, prompt_logprobs=0, logprobs=0
    )
    maths = ctypes.CDLL("libm.so.6")
    if rounds_upward:
        assert maths.fesetround(UPWARD[platform.machine()]) == 0
    try:
        outputs = [
            engine.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0] for prompt in prompts
        ]
        (facts,) = engine.llm.collective_rpc(facts_of_worker)
    finally:
        maths.fesetround(NEAREST)
    engine.drain()
    logprobs = []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        positions = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
        # As bits: equal means the same.
        logprobs += [of[token].logprob for token, of in zip([*prompt[1:], *tokens], positions, strict=True)]
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": logprobs,
        "facts": facts,
    }


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What differs between two results of `numerics`, for people; empty if nothing does."""
    parts = []
    if one["tokens"] != other["tokens"]:
        parts.append("other tokens")
    largest = max(abs(a - b) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))
    if largest > 0.0 or math.isnan(largest):
        count = sum(a != b for a, b in zip(one["logprobs"], other["logprobs"], strict=True))
        parts.append(f"{count} of {len(one['logprobs'])} log probabilities are off, by {largest:.1e} at most")
    for name, fact in one["facts"].items():
        if fact == other["facts"][name]:
            continue
        if isinstance(fact, dict):
            keys = [key for key in {**fact, **other["facts"][name]} if fact.get(key) != other["facts"][name].get(key)]
            parts.append(f"{name} that differ: {', '.join(keys)}")
        else:
            parts.append(f"{name}: {fact} and {other['facts'][name]}")
    return "; ".join(parts)
