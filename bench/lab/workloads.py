# SPDX-License-Identifier: Apache-2.0
"""The workloads of `engine.py`: prompts from a seed, on an engine that the caller made."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BLOCK_TOKENS = 32
# Tokens of the longest conversation; no prompt is longer.
MAX_TOKENS = 1024
NUM_SESSIONS = 12
NUM_ROUNDS = 4
ANSWER_TOKENS = 16
# Blocks of all conversations at their end; a pool of a quarter of that is four times too small.
ALL_BLOCKS = NUM_SESSIONS * MAX_TOKENS // BLOCK_TOKENS
SMALL_POOL_BLOCKS = ALL_BLOCKS // 4
# Nothing is ever evicted from it.
LARGE_POOL_BLOCKS = 4 * ALL_BLOCKS


@dataclass
class Outcome:
    """The results of a workload.

    Attributes
    ----------
    tokens
        Output tokens of each request, in the order of the requests.
    first_token_s
        Seconds from a request's arrival to its first token.

    """

    tokens: list[list[int]] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


def serve(llm: Any, prompts: list[list[int]], max_tokens: int, window: int, outcome: Outcome) -> list[list[int]]:
    """Run prompts to their ends, `window` of them at a time; return their output tokens, also added to `outcome`."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)
    engine = llm.llm_engine
    begun: dict[str, float] = {}
    first: dict[str, float] = {}
    tokens: dict[str, list[int]] = {}
    while len(tokens) < len(prompts):
        while len(begun) < len(prompts) and len(begun) - len(tokens) < window:
            request_id = f"{len(outcome.tokens)}-{len(begun)}"
            engine.add_request(request_id, {"prompt_token_ids": prompts[len(begun)]}, sampling)
            begun[request_id] = time.perf_counter()
        for output in engine.step():
            if output.outputs[0].token_ids:
                first.setdefault(output.request_id, time.perf_counter())
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    while engine.has_unfinished_requests():
        engine.step()
    answers = [tokens[request_id] for request_id in begun]
    outcome.tokens += answers
    outcome.first_token_s += [first[request_id] - begin for request_id, begin in begun.items()]
    return answers


def _prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(256) for _ in range(num_tokens)]


def chats(llm: Any) -> Outcome:
    """Run twelve conversations of four rounds, each a quarter longer than the last. All take turns in each round."""
    rng = random.Random(1)
    outcome = Outcome()
    histories: list[list[int]] = [[] for _ in range(NUM_SESSIONS)]
    for _ in range(NUM_ROUNDS):
        prompts = [history + _prompt(rng, MAX_TOKENS // NUM_ROUNDS - ANSWER_TOKENS) for history in histories]
        answers = serve(llm, prompts, ANSWER_TOKENS, 2, outcome)
        histories = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    return outcome


def unique(llm: Any) -> Outcome:
    """Run prompts that share nothing and never return."""
    rng = random.Random(2)
    outcome = Outcome()
    serve(llm, [_prompt(rng, 600) for _ in range(24)], ANSWER_TOKENS, 2, outcome)
    return outcome


def preempted(llm: Any) -> Outcome:
    """Run six prompts at a time, whose answers grow until the small pool cannot hold all of them."""
    rng = random.Random(3)
    outcome = Outcome()
    serve(llm, [_prompt(rng, 400) for _ in range(18)], 240, 6, outcome)
    return outcome


WORKLOADS: dict[str, Callable[[Any], Outcome]] = {"A": chats, "B": unique, "C": preempted}
