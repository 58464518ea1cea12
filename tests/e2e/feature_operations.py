# SPDX-License-Identifier: Apache-2.0
"""Operations of an engine process for what vLLM can do with a request, or with all of them, beside completing it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine_process import Engine

DEADLINE_S = 60.0


def ask(
    engine: Engine,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    salt: str | None = None,
    priorities: list[int] | None = None,
) -> dict[str, Any]:
    """Every completion of every prompt, in greedy mode unless `sampling` says otherwise.

    Also the log probabilities that each prompt's own tokens have, if they are asked for, and the counters.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if "structured_outputs" in sampling:
        sampling = {**sampling, "structured_outputs": StructuredOutputsParams(**sampling["structured_outputs"])}
    params = SamplingParams(**{"temperature": 0, "ignore_eos": True, "detokenize": False, **sampling})
    salted = {} if salt is None else {"cache_salt": salt}
    before, preemptions = engine.counters(), engine.num_preemptions()
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt, **salted} for prompt in prompts], params, use_tqdm=False, priority=priorities
    )
    engine.drain()
    after = engine.counters()
    logprobs = []
    for prompt, output in zip(prompts, outputs, strict=True):
        of_tokens = zip(prompt, output.prompt_logprobs or [], strict=False)
        logprobs.append([None if of_token is None else of_token[token].logprob for token, of_token in of_tokens])
    return {
        "tokens": [[list(one.token_ids) for one in output.outputs] for output in outputs],
        "prompt_logprobs": logprobs,
        "counters": {source: after[source] - before.get(source, 0) for source in after},
        "num_preemptions": engine.num_preemptions() - preemptions,
    }


def follow_up(engine: Engine, prompt: list[int], more: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
    """Complete a prompt, lose the engine's own cache, and go on behind the completion; drafts are counted."""
    first = ask(engine, [prompt], sampling)
    await_figure(engine, "vllm:kvferry_stores_in_flight", 0, most=0)
    engine.reset_prefix_cache()
    text = prompt + first["tokens"][0][0]
    second = ask(engine, [text + more], sampling)
    drafts = {"accepted": 0, "proposed": 0}
    for metric in engine.llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_accepted_tokens":
            drafts["accepted"] += metric.value
        elif metric.name == "vllm:spec_decode_num_draft_tokens":
            drafts["proposed"] += metric.value
    return {"first": first, "second": second, "num_text_tokens": len(text), "drafts": drafts}


def await_figure(engine: Engine, name: str, least: float, most: float = math.inf) -> dict[str, Any]:
    """Give the engine requests too short to be stored until a metric of kvferry's is in a range; 0 without kvferry."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        # At least one: figures are told when a request ends.
        for _ in range(2):
            engine.generate([[1]], 1, "together")
        value = engine.metrics().get(name, 0)
        if least <= value <= most:
            return {"value": value}
        assert time.monotonic() < deadline, f"{name} is {value} after {DEADLINE_S} s"
        time.sleep(0.02)


def pause_while_loading(
    engine: Engine, prompts: list[list[int]], max_tokens: int, mode: str, clear_cache: bool, pause_s: float
) -> dict[str, Any]:
    """Submit prompts whose blocks are in the tier, pause the engine core (in a process of its own), and resume.

    Behind the pause come all prompts once more.
    """
    from vllm import SamplingParams

    front = engine.llm.llm_engine
    core: Any = front.engine_core
    sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)

    def submit(name: str) -> None:
        for index, prompt in enumerate(prompts):
            front.add_request(f"{name}-{index}", {"prompt_token_ids": prompt}, sampling)

    def finish() -> dict[str, Any]:
        ends: dict[str, Any] = {}
        deadline = time.monotonic() + DEADLINE_S
        while front.has_unfinished_requests():
            assert time.monotonic() < deadline, f"not idle after {DEADLINE_S} s: {ends}"
            for output in front.step():
                if output.finished:
                    one = output.outputs[0]
                    ends[output.request_id] = {"tokens": list(one.token_ids), "reason": one.finish_reason}
        return ends

    before = engine.counters()
    submit("paused")
    time.sleep(0.05)  # the loads begin; they take longer
    core.call_utility("pause_scheduler", mode, clear_cache)
    is_paused = bool(core.call_utility("is_scheduler_paused"))
    time.sleep(pause_s)
    core.call_utility("resume_scheduler")
    ends = finish()
    submit("behind")
    ends |= finish()
    after = engine.counters()
    return {
        "is_paused": is_paused,
        "ends": ends,
        "counters": {source: after[source] - before.get(source, 0) for source in after},
    }
