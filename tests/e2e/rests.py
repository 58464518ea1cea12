# SPDX-License-Identifier: Apache-2.0
"""Operations of an engine process in which nothing happens for a while, and a time-out that a script may shorten."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from .worker_death import wait_for, worker_state

if TYPE_CHECKING:
    from .engine_process import Engine

DEADLINE_S = 60.0
RANK_TIMEOUT_VARIABLE = "KVFERRY_E2E_RANK_TIMEOUT_S"


def shorten_rank_timeout() -> None:
    """Let the scheduler side lose its patience as early as the environment says: it is a minute and more by default."""
    from kvferry.config import KvFerryConfig

    KvFerryConfig.rank_timeout_s = float(os.environ[RANK_TIMEOUT_VARIABLE])  # type: ignore[assignment]


def rest(engine: Engine, seconds: float) -> dict[str, Any]:
    """Leave the engine alone. Returns the tier's account at the beginning."""
    before = engine.tier()
    time.sleep(seconds)
    return {"before": before}


def stop_worker_during_load(engine: Engine, prompts: list[list[int]], max_tokens: int, stop_s: float) -> dict[str, Any]:
    """Stop every rank's process while it loads returning prompts, as a debugger does, and let it go on."""
    from vllm import SamplingParams

    front = engine.llm.llm_engine
    wait_for(engine, "idle", lambda state: state["ring_used_bytes"] == state["in_flight_bytes"] == 0)
    engine.generate([[1], [2]], 1, "one_by_one")  # a store is committed by the report of a later step
    engine.reset_prefix_cache()
    before: list[dict[str, int]] = engine.llm.collective_rpc(worker_state)
    sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)
    for index, prompt in enumerate(prompts):
        front.add_request(f"stopped-{index}", {"prompt_token_ids": prompt}, sampling)
    states = wait_for(engine, "copying", lambda state: state["in_flight_bytes"] > 0)
    for state in states:
        os.kill(state["pid"], signal.SIGSTOP)
    try:
        time.sleep(stop_s)
    finally:
        for state in states:
            os.kill(state["pid"], signal.SIGCONT)
    tokens: dict[int, list[int]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(tokens) < len(prompts):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done {DEADLINE_S} s after the stop: {tokens}")
        for output in front.step():
            if output.finished:
                tokens[int(output.request_id.split("-")[1])] = list(output.outputs[0].token_ids)
    after: list[dict[str, int]] = engine.llm.collective_rpc(worker_state)
    return {
        "tokens": [tokens[index] for index in range(len(prompts))],
        "loaded_bytes": [
            late["loaded_bytes"] - early["loaded_bytes"] for early, late in zip(before, after, strict=True)
        ],
    }
