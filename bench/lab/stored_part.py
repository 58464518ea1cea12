# SPDX-License-Identifier: Apache-2.0
"""Measures the cost and the hits of the connector's key `store_prompt_only`: a trace and chats under vLLM's scheduler.

    PYTHONPATH=build/vllm033/site .venv/bin/python bench/lab/stored_part.py conversation.jsonl [--help]

The trace is one of Mooncake's, as in `retention.py`: all tokens are divided by 16, and a request's answer is what the
next turn of its conversation contains. The chats are synthetic. Each has several turns, and the clients of many chats
take turns. A prompt is the system prompt that all chats share, everything that was said so far, and a new message.
`chat` answers without thinking. `thinking kept` thinks before it answers, and its next prompt has the thoughts.
`thinking stripped` thinks too, but its next prompt has only the answer, as in the chat templates of reasoning models.
Their tokens are divided by 4. The model has only full attention.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from retention import read_requests, serve_on_new
from rigs import BLOCK_TOKENS

SCALE = 4
SYSTEM_TOKENS, MESSAGE_TOKENS, ANSWER_TOKENS, THINKING_TOKENS = (n // SCALE for n in (1024, 128, 320, 1600))
NUM_TURNS = 6

Requests = list[tuple[list[int], list[int]]]


def tokens_of(rng: random.Random, mean: int) -> list[int]:
    """Draw a text with half to one and a half times the given number of tokens."""
    return rng.choices(range(1000), k=rng.randint(max(1, mean // 2), mean + mean // 2))


def chat(rng: random.Random, system: list[int], thinking: int, keeps: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the turns of one chat: prompt and output."""
    said = list(system)
    for _ in range(NUM_TURNS):
        said += tokens_of(rng, MESSAGE_TOKENS)
        thoughts = tokens_of(rng, thinking) if thinking else []
        answer = tokens_of(rng, ANSWER_TOKENS)
        yield list(said), thoughts + answer
        said += (thoughts if keeps else []) + answer


def chats(num_chats: int, num_open: int, thinking: int, *, keeps: bool) -> Requests:
    """Make chats, of which some are open at a time. The next turn is drawn from the half that has rested longest."""
    rng = random.Random(1)
    system = rng.choices(range(1000), k=SYSTEM_TOKENS)
    waiting = [chat(random.Random(2 + number), system, thinking, keeps) for number in range(num_chats)]
    resting = [waiting.pop() for _ in range(num_open)]
    requests: Requests = []
    while resting:
        one = resting.pop(rng.randrange((len(resting) + 1) // 2))
        turn = next(one, None)
        if turn is not None:
            requests.append(turn)
            resting.append(one)
        elif waiting:
            resting.append(waiting.pop())
    return requests


def play(name: str, requests: Requests, num_slots: int, *, prompt_only: bool) -> str:
    """Play requests; return a line with stores and hits. The GPU pool holds 1.5 times the longest request."""
    most_tokens = max(len(prompt) + len(output) for prompt, output in requests) + 1
    num_blocks = max(300, 3 * most_tokens // BLOCK_TOKENS // 2)
    model = {"layer_pattern": "f", "num_layers": 1, "max_model_len": most_tokens}
    cells = serve_on_new(requests, {"store_prompt_only": prompt_only}, num_blocks, num_slots, **model)
    return f"| {name} | {num_slots} | {'prompts' if prompt_only else 'all'} | {cells} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=1500, help="of the trace")
    parser.add_argument("--chats", type=int, default=60)
    parser.add_argument("--open", type=int, default=30, help="chats at a time")
    parser.add_argument("--trace-slots", type=int, nargs="+", default=[10_000, 100_000], help="of the tier")
    parser.add_argument("--chat-slots", type=int, nargs="+", default=[500, 2000, 50_000], help="of the tier")
    arguments = parser.parse_args()
    of_chats = (arguments.chats, arguments.open)
    workloads = {
        "trace": (read_requests(arguments.trace, arguments.requests), arguments.trace_slots),
        "chat": (chats(*of_chats, 0, keeps=True), arguments.chat_slots),
        "thinking kept": (chats(*of_chats, THINKING_TOKENS, keeps=True), arguments.chat_slots),
        "thinking stripped": (chats(*of_chats, THINKING_TOKENS, keeps=False), arguments.chat_slots),
    }
    print("| workload | slots | stored | blocks stored | from the engine's cache | from the tier |")
    print("|---|---|---|---|---|---|")
    for name, (requests, slots) in workloads.items():
        for num_slots in slots:
            for prompt_only in (False, True):
                print(play(name, requests, num_slots, prompt_only=prompt_only), flush=True)


if __name__ == "__main__":
    main()
