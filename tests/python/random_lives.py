# SPDX-License-Identifier: Apache-2.0
"""Clients and an engine that do anything at any time."""

import random
from collections.abc import Callable
from typing import Any

from harness import ToyEngine, prompt_of
from vllm.v1.request import RequestStatus

NUM_TOKENS = 8

Params = Callable[[list[int]], dict[str, Any]]


def no_params(prompt: list[int]) -> dict[str, Any]:
    """Return nothing: a request as any other."""
    return {}


def random_prompts(rng: random.Random, unit: int = 16) -> dict[str, list[int]]:
    """Prompts that share beginnings of some units, of a block's tokens or more; half of them end with a unit."""
    shared = prompt_of(7, 4 * unit)
    lengths = (unit + unit // 4, 7 * unit + unit // 2)
    prompts = {}
    for i in range(8):
        length = rng.choice([rng.randrange(*lengths), unit * rng.randrange(2, 8)])
        prompts[f"x{i}"] = shared[: unit * rng.randrange(5)] + prompt_of(60 + i, length)
    return prompts


def random_link(rng: random.Random, seed: int) -> dict[str, object]:
    """A ``host_link`` that may be slow, out of order and failing."""
    return {
        "bandwidth_gb_s": rng.choice([0, 0.01, 0.001]),
        "jitter_us": rng.choice([0, 500]),
        "order": rng.choice(["fifo", "shuffled"]),
        "fail_probability": rng.choice([0, 0.1]),
        "seed": seed,
    }


def live(
    engine: ToyEngine,
    rng: random.Random,
    prompts: dict[str, list[int]],
    expected: dict[str, list[int]],
    what: str,
    num_steps: int = 400,
    num_tokens: int = NUM_TOKENS,
    params: Params = no_params,
) -> None:
    """Take so many random steps and run to the end; every request that ends by itself has its `expected` tokens.

    `params` says what the ``SamplingParams`` of a prompt's requests are told beside that.
    """
    live_together([engine], rng, prompts, expected, what, num_steps=num_steps, num_tokens=num_tokens, params=params)


def live_together(
    engines: list[ToyEngine],
    rng: random.Random,
    prompts: dict[str, list[int]],
    expected: dict[str, list[int]],
    what: str,
    reset_share: float = 0.005,
    num_steps: int = 400,
    num_tokens: int = NUM_TOKENS,
    params: Params = no_params,
) -> None:
    """Take random steps with each engine, in any order, that share of them resets of the tier; else as `live`."""
    ids: list[dict[str, str]] = [{} for _ in engines]

    def check_finished() -> None:
        for engine, ids_of_engine in zip(engines, ids, strict=True):
            for request_id, end in engine.finished.items():
                # Beside kvferry somebody may give wrong KV, and say so (`ToyModel.bad_blocks`).
                if end.status == RequestStatus.FINISHED_LENGTH_CAPPED and request_id not in engine.misled:
                    assert end.tokens == expected[ids_of_engine[request_id]], f"{request_id} with {what}"

    for _ in range(num_steps * len(engines)):
        index = rng.randrange(len(engines)) if len(engines) > 1 else 0
        _step(engines[index], rng, prompts, ids[index], reset_share, num_tokens, params)
        check_finished()
    for engine in engines:
        engine.run()
    check_finished()


def _step(
    engine: ToyEngine,
    rng: random.Random,
    prompts: dict[str, list[int]],
    ids: dict[str, str],
    reset_share: float,
    num_tokens: int,
    params: Params,
) -> None:
    """Do one thing that clients or the engine may do; `ids` maps the ids in use to the prompts they have."""
    choice = rng.random()
    live_ids = [request_id for request_id in ids if request_id in engine.scheduler.requests]
    if choice < 0.25 and len(live_ids) < 8:
        # Few ids, so that they are used again.
        request_id = f"r{rng.randrange(12)}"
        # Drafts of an id's earlier life, or a token still in the pipeline, would be counted as those of the later one.
        is_counted = engine.spec.num_drafts or engine.spec.num_stages > 1
        if request_id not in engine.scheduler.requests and (not is_counted or engine.can_reuse(request_id)):
            ids[request_id] = rng.choice(list(prompts))
            engine.finished.pop(request_id, None)
            options = {"priority": rng.randrange(3)} if engine.spec.policy == "priority" else {}
            prompt = prompts[ids[request_id]]
            engine.add(request_id, prompt, max_tokens=num_tokens, options=options, **params(prompt))
    elif choice < 0.30 and live_ids:
        engine.abort(rng.choice(live_ids))
    elif reset_share and choice < 0.30 + reset_share:
        engine.scheduler.reset_connector_cache()
    elif choice < 0.40:
        engine.scheduler.reset_prefix_cache()
    engine.step()
