# SPDX-License-Identifier: Apache-2.0
"""Measure what an engine gains from a tier that it shares with another engine: time to first token, and hits.

``make bench-shared`` runs it. It starts `vllm serve --data-parallel-size 2` of vLLM's CPU build, with one computing
thread per engine, with one tier for both engines and with a tier each, by turns. Engine A gets every prompt, then
engine B gets them twice. The prompts come one after the other, and the pools of both engines are too small for them.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from e2e.http_clients import Patience, ask  # noqa: E402
from e2e.parallel_engines import NUM_ENGINES, has_no_transfer  # noqa: E402
from e2e.vllm_server import VllmServer  # noqa: E402

NUM_PROMPTS = 12
# 31 blocks of 32 tokens: three prompts fill the pool of 100 blocks.
PROMPT_TOKENS = 31 * 32 + 1
TIER_BYTES = 1 << 30
TIERS = ("a tier each", "one tier")
# The engine that gets every prompt, for each round.
ROUNDS = (("A, first", 0), ("B, behind A", 1), ("B, again", 1))


def run_server(tier: dict[str, Any], prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Send all prompts to a new server. Return for each of `ROUNDS` the times to first token, and the loaded tokens."""
    requests = [{"prompt": prompt, "max_tokens": 1} for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(
            Path(folder), tier, "--data-parallel-size", str(NUM_ENGINES), "--api-server-count", "1",
            "--shutdown-timeout", "30", num_ranks=NUM_ENGINES, is_cold=True,
        )  # fmt: skip
        try:
            rounds = []
            for _, engine in ROUNDS:
                before = server.metrics(engine)["vllm:kvferry_hit_tokens_total"][""]
                times = []
                for index in range(NUM_PROMPTS):
                    began = time.perf_counter()
                    answer = ask(server.url, requests, [(index, Patience())], engine)[0]
                    times.append(time.perf_counter() - began)
                    if answer.error:
                        sys.exit(f"engine {engine} failed: {answer.error}\n{server.log()[-3000:]}")
                server.await_metrics("the engine has no transfer left", has_no_transfer, engine=engine)
                hit_tokens = server.metrics(engine)["vllm:kvferry_hit_tokens_total"][""] - before
                rounds.append({"first_token_s": times, "hit_tokens": hit_tokens})
            server.stop()
            return rounds
        finally:
            server.kill()


def render(results: dict[str, list[list[dict[str, Any]]]]) -> Table:
    """Make the table: medians over all prompts and repetitions."""
    table = Table(title="Two engines of data parallel, beside engine A's first round.", title_justify="left")
    for column in ("tiers", "asked", "first token, ms", "of A's first", "tokens loaded"):
        table.add_column(column, justify="left" if column in ("tiers", "asked") else "right")
    for name, runs in results.items():
        for number, (asked, _) in enumerate(ROUNDS):
            medians = [statistics.median(run[number]["first_token_s"]) for run in runs]
            firsts = [statistics.median(run[0]["first_token_s"]) for run in runs]
            ratio = statistics.median(one / first for one, first in zip(medians, firsts, strict=True))
            loaded = statistics.mean(run[number]["hit_tokens"] for run in runs) / (NUM_PROMPTS * PROMPT_TOKENS)
            milliseconds = 1000 * statistics.median(medians)
            table.add_row(name, asked, f"{milliseconds:.1f}", f"{ratio:.2f}", f"{loaded:.0%}")
    return table


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="starts of each kind (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; at least 1")
    results: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in TIERS}
    for repeat in range(options.repeats):
        rng = random.Random(repeat)
        prompts = [[rng.randrange(256) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]
        for name in TIERS:
            print(f"{name}, {repeat + 1} of {options.repeats} ...", file=sys.stderr, flush=True)
            shared = {"shared_path": f"/dev/shm/kvferry-lab-{os.getpid()}"} if name == "one tier" else {}
            results[name].append(run_server({"cpu_bytes_to_use": TIER_BYTES, **shared}, prompts))
    Console(width=120).print(render(results))
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
