# SPDX-License-Identifier: Apache-2.0
"""Measures the cost and the hits of the connector's key `retention`: a trace of conversations under vLLM's scheduler.

    PYTHONPATH=build/vllm033/site .venv/bin/python bench/lab/retention.py conversation.jsonl [--help]

The trace is one of Mooncake's: lengths, and an id for every 512 tokens of a prompt. All tokens, and the window of
1,024, are divided by 16, so that a fast machine plays thousands of requests. Like Gemma 3, the model has five layers of
windows to one of full attention, and a group for each. A request's answer is what the next turn of its conversation
contains.
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rigs import Kind, Rig

SCALE = 16
ID_TOKENS = 512 // SCALE
WINDOW_TOKENS = 1024 // SCALE
NUM_RUNNING = 8


class TraceRig(Rig):
    """One engine, whose requests give predefined answers."""

    answers: dict[str, list[int]]

    @staticmethod
    def _spec(kind: Kind, num_blocks: int, tier_bytes: int) -> Any:
        return replace(
            Rig._spec(kind, num_blocks, tier_bytes),
            num_layers=6,
            layer_pattern="wwwwwf",
            sliding_window=WINDOW_TOKENS,
            max_num_batched_tokens=8192 // SCALE,
            max_num_seqs=NUM_RUNNING,
            max_model_len=160_000 // SCALE,
        )

    def serve(self, requests: list[tuple[list[int], list[int]]]) -> None:
        """Serve prompts, each with its predefined answer, `NUM_RUNNING` at a time."""
        self.answers = {}
        for prompt, answer in requests:
            while len(self.scheduler.requests) >= NUM_RUNNING:
                self.step()
            self.answers[self.add(prompt, len(answer))] = list(answer)
        while self.scheduler.has_requests():
            self.step()

    def _sample(self, request_id: str) -> int:
        return self.answers[request_id].pop(0)


@cache
def tokens_of(block_id: int) -> list[int]:
    """Return the tokens for an id of the trace."""
    return random.Random(block_id).choices(range(1000), k=ID_TOKENS)


def read_requests(trace: Path, num_requests: int) -> list[tuple[list[int], list[int]]]:
    """Read prompts and answers."""
    with trace.open() as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line, _ in zip(file, range(num_requests), strict=False)]
    at_prefix: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        at_prefix[tuple(row["hash_ids"][:2])].append(number)
    found = []
    for number, row in enumerate(rows):
        num_whole = row["input_length"] // 512
        whole = row["hash_ids"][:num_whole]
        later = at_prefix[tuple(whole[:2])] if num_whole > 1 else []
        # If a prompt ends inside 512 tokens, its last id differs from the id in the turn that continues it.
        next_turn = next((n for n in later if n > number and rows[n]["hash_ids"][:num_whole] == whole), number)
        ids = [*whole, *rows[next_turn]["hash_ids"][num_whole:]]
        text = [token for block_id in ids for token in tokens_of(block_id)]
        length, num_more = max(1, row["input_length"] // SCALE), max(1, row["output_length"] // SCALE)
        answer = text[length : length + num_more]
        rng = random.Random(-1 - number)
        answer += rng.choices(range(1000), k=num_more - len(answer))
        found.append((text[:length], answer))
    return found


def serve_on_new(
    requests: list[tuple[list[int], list[int]]], extra: dict[str, Any], num_blocks: int, num_slots: int, **model: Any
) -> str:
    """Serve requests on a new engine; return cells of a table.

    The cells are the stored blocks, and the shares of the prompts' tokens from the engine's cache and from the tier.
    `extra` has keys of the connector; `model` is passed to the rig.
    """
    extra = {"min_load_tokens": 0, "staging_bytes": "8MiB", **extra}
    rig = TraceRig(Kind("kvferry", "KvFerryConnector", "kvferry.vllm", extra), num_blocks, num_slots, model)
    rig.serve(requests)
    stored = int(rig.scheduler.connector.scheduler_side.engine.snapshot()["stored"])
    rig.close()
    num_tokens = sum(len(prompt) for prompt, _ in requests)
    return f"{stored} | {rig.local_tokens / num_tokens:.1%} | {rig.hit_tokens / num_tokens:.1%}"


def play(requests: list[tuple[list[int], list[int]]], retention: str | int, num_slots: int, num_blocks: int) -> str:
    """Play the trace; return a line with the hits."""
    return f"| {retention} | {num_slots} | {serve_on_new(requests, {'retention': retention}, num_blocks, num_slots)} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--blocks", type=int, default=2000, help="of the GPU pool")
    parser.add_argument("--slots", type=int, nargs="+", default=[20_000, 80_000, 500_000], help="of the tier, 4 KiB")
    parser.add_argument("--retention", nargs="+", default=["engine", "dense"], help="engine, dense or tokens")
    arguments = parser.parse_args()
    requests = read_requests(arguments.trace, arguments.requests)
    print(
        "| retention | slots | blocks stored | tokens from the engine's cache | from the tier |\n|---|---|---|---|---|"
    )
    for num_slots in arguments.slots:
        for retention in arguments.retention:
            value = int(retention) if retention.isdigit() else retention
            print(play(requests, value, num_slots, arguments.blocks), flush=True)


if __name__ == "__main__":
    main()
