# SPDX-License-Identifier: Apache-2.0
"""The operation `kill_worker_during_transfer` of an engine process whose core and ranks are processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine_process import Engine

DEADLINE_S = 60.0


def worker_state(worker: Any) -> dict[str, int]:
    """Process id and counters of a rank; runs there."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector: Any = get_kv_transfer_group()
    return {"pid": os.getpid(), **connector.worker_side.engine.stats()}


def wait_for(engine: Engine, what: str, holds: Callable[[dict[str, int]], bool]) -> list[dict[str, int]]:
    """The ranks' states, as soon as `holds` is true of each."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        states: list[dict[str, int]] = engine.llm.collective_rpc(worker_state)
        if all(map(holds, states)):
            return states
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {DEADLINE_S} s the ranks are not {what}: {states}")
        time.sleep(0.05)


def kill_worker_during_transfer(engine: Engine, prompts: list[list[int]], transfer: str, rank: int) -> dict[str, Any]:
    """Kill one rank while every rank has bytes on the link.

    Parameters
    ----------
    engine
        Its link is slow in the direction of the transfer.
    prompts
        Returning ones for a load, new ones for a store.
    transfer
        ``"load"`` or ``"store"``.
    rank
        Which one.
    """
    from vllm import SamplingParams

    front = engine.llm.llm_engine
    if transfer == "load":
        # A store is committed by the report of a later step.
        wait_for(engine, "idle", lambda state: state["ring_used_bytes"] == state["in_flight_bytes"] == 0)
        engine.generate([[1], [2]], 1, "one_by_one")
        engine.reset_prefix_cache()
    before: list[dict[str, int]] = engine.llm.collective_rpc(worker_state)
    sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=4)
    for index, prompt in enumerate(prompts):
        front.add_request(f"killed-{index}", {"prompt_token_ids": prompt}, sampling)
    states = wait_for(engine, "copying", lambda state: state["in_flight_bytes"] > 0)
    os.kill(states[rank]["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    num_finished = 0
    error: Exception | None = None
    try:
        while num_finished < len(prompts):
            num_finished += sum(output.finished for output in front.step())
        engine.generate([prompts[0]], 1, "together")
    except Exception as caught:  # whatever the engine says is what the test looks at
        error = caught
    return {
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
        "seconds": time.monotonic() - killed_at,
        "num_finished": num_finished,
        "before": before,
        "at_kill": states,
    }
