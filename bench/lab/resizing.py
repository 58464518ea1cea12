# SPDX-License-Identifier: Apache-2.0
"""Measure what resizing a tier costs the requests that run meanwhile: the 99th percentile of the time to first token.

``make bench-resizing`` runs it. `vllm serve` of vLLM's CPU build, with one computing thread, answers users who chat:
each prompt has everything that was said so far. Two kinds of phases take turns on one server. In one the tier keeps its
size; in the other `kvferry tier resize` sets it to half and to one and a half times its size by turns. Ratios are
between neighbouring phases.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kvferry import engines
from kvferry.sizes import format_size
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from e2e.http_clients import Patience, ask  # noqa: E402
from e2e.vllm_server import VllmServer  # noqa: E402

NUM_USERS = 4
# A first turn, and what each later one adds: ten turns fill vLLM's longest prompt of 2,048 tokens.
FIRST_TOKENS, TURN_TOKENS, MOST_TOKENS = 600, 130, 1900
TIER_BYTES = 128 << 20
TIER = {
    "cpu_bytes_to_use": TIER_BYTES,
    "cpu_bytes_limit": TIER_BYTES * 3 // 2,
    "pinned_piece_bytes": "1MiB",
    "min_load_tokens": 0,
}
SIZES = (TIER_BYTES // 2, TIER_BYTES * 3 // 2)
PHASES = ("steady", "resizing")


class Users:
    """Users who chat, each in a separate thread, until `stop`."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._ends = threading.Event()
        self.times: list[float] = []
        self.num_failed = 0
        self._threads = [threading.Thread(target=self._chat, args=(seed * NUM_USERS + i,)) for i in range(NUM_USERS)]
        for thread in self._threads:
            thread.start()

    def _chat(self, seed: int) -> None:
        rng = random.Random(seed)
        said: list[int] = []
        while not self._ends.is_set():
            if not said or len(said) > MOST_TOKENS:
                said = [rng.randrange(256) for _ in range(FIRST_TOKENS)]
            began = time.perf_counter()
            answer = ask(self._url, [{"prompt": said, "max_tokens": 1}], [(0, Patience())])[0]
            self.times.append(time.perf_counter() - began)
            self.num_failed += answer.error is not None
            said = said + answer.tokens + [rng.randrange(256) for _ in range(TURN_TOKENS)]

    def stop(self) -> None:
        """Let each user end its turn."""
        self._ends.set()
        for thread in self._threads:
            thread.join()


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock, if it is yet to come."""
    time.sleep(max(0.0, moment - time.monotonic()))


def run_phase(
    server: VllmServer, engine: engines.Engine, every: float | None, seconds: float, seed: int
) -> dict[str, Any]:
    """Let users chat for some time. Return their times to first token, and how often the tier changed its size.

    It changes once in `every` seconds, or never.
    """
    users = Users(server.url, seed)
    num_resizes, moved = 0, 0
    began = time.monotonic()
    deadline = began + seconds
    while every is not None and time.monotonic() < deadline:
        before = engine.state.num_bytes
        request = engine.ask(SIZES[num_resizes % len(SIZES)])
        if not engine.wait(request, 60) or engine.state.failure:
            sys.exit(f"the tier did not come to its size: {engine.state}\n{server.log()[-3000:]}")
        moved += abs(engine.state.num_bytes - before)
        num_resizes += 1
        sleep_until(min(began + num_resizes * every, deadline))
    sleep_until(deadline)
    times = list(users.times)
    if num_resizes:  # While users chat: an engine at rest does not see it.
        engine.wait(engine.ask(TIER_BYTES, 0), 60)
    users.stop()
    return {"first_token_s": times, "failed": users.num_failed, "resizes": num_resizes, "moved_bytes": moved}


def percentile(times: list[float], share: float) -> float:
    """Return the time that this share of the requests did not exceed."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def render(results: dict[str, list[dict[str, Any]]], hit_tokens: float) -> Table:
    """Make the table."""
    table = Table(title=f"{NUM_USERS} users who chat; {hit_tokens:.0f} tokens were loaded.", title_justify="left")
    for column in ("tier", "requests", "failed", "resizes", "moved", "p50, ms", "p99, ms", "p99 to steady"):
        table.add_column(column, justify="left" if column == "tier" else "right")
    p99 = {name: [percentile(run["first_token_s"], 0.99) for run in runs] for name, runs in results.items()}
    for name, runs in results.items():
        ratios = [one / steady for one, steady in zip(p99[name], p99["steady"], strict=True)]
        table.add_row(
            name,
            str(sum(len(run["first_token_s"]) for run in runs)),
            str(sum(run["failed"] for run in runs)),
            str(sum(run["resizes"] for run in runs)),
            format_size(sum(run["moved_bytes"] for run in runs)),
            f"{1000 * statistics.median(percentile(run['first_token_s'], 0.5) for run in runs):.0f}",
            f"{1000 * statistics.median(p99[name]):.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
    return table


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of phases (default: 5)")
    parser.add_argument("--seconds", type=float, default=60, help="of a phase (default: 60)")
    parser.add_argument("--every", type=float, default=30, help="seconds from one resize to the next (default: 30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; at least 1")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in PHASES}
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(Path(folder), TIER, "--shutdown-timeout", "30", is_cold=True)
        try:
            warming_up = Users(server.url, seed=1000)
            time.sleep(min(options.seconds, 20))
            warming_up.stop()
            (engine,) = [each for each in engines.living() if os.getsid(each.state.pid) == server.process.pid]
            for repeat in range(options.repeats):
                # The phases take turns at being first.
                for name in PHASES if repeat % 2 == 0 else reversed(PHASES):
                    print(f"{name}, {repeat + 1} of {options.repeats} ...", file=sys.stderr, flush=True)
                    every = options.every if name == "resizing" else None
                    results[name].append(run_phase(server, engine, every, options.seconds, repeat))
            hit_tokens = server.metrics()["vllm:kvferry_hit_tokens_total"][""]
            server.stop()
        finally:
            server.kill()
    Console(width=120).print(render(results, hit_tokens))
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
