# SPDX-License-Identifier: Apache-2.0
"""Watch the real vLLM engine store its KV cache in kvferry's tier, lose it, and load it back.

The same prompts run on two fresh engines, without and with kvferry, in three phases:

cold
    conversations that share a prefix (a system prompt); the engine computes them,
evict
    other prompts, enough of them to push every conversation out of the engine's own cache,
return
    the conversations again: computed once more, or loaded from the tier.

The exit status is 0 if the tier served tokens and every token is the same on both engines, 1 if not, and 2
if an engine could not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from demo_view import PhaseRow, Progress, make_table
from rich.console import Console
from rich.markup import escape
from tiny_model import DEFAULT_DIR, ensure_tiny_model

ENGINE = Path(__file__).with_name("demo_engine.py")
WITHOUT, WITH = "vLLM alone", "vLLM + kvferry"
WARM_UP = "warm-up"
ENGINE_LIMIT_S = 600.0

BLOCK_TOKENS = 32
PROMPT_TOKENS = 2000
PREFIX_TOKENS = 512
NUM_CONVERSATIONS = 4
NUM_OTHERS = 5
MAX_TOKENS = 16
# The pool holds the conversations (205 blocks), or four of the five other prompts.
NUM_GPU_BLOCKS = 256


class EngineFailed(Exception):  # noqa: N818 - an outcome with a log, not a bug
    """An engine ended before its last phase."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line."""

    tier_size: str
    model_dir: Path
    connector: str
    in_process: bool
    verbose: bool
    json_file: Path | None


def make_phases(seed: int = 0) -> dict[str, list[list[int]]]:
    """Make the prompts of each phase, as token ids, the same for the same seed."""
    source = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [source.randrange(256) for _ in range(count)]

    prefix = tokens(PREFIX_TOKENS)
    conversations = [prefix + tokens(PROMPT_TOKENS - PREFIX_TOKENS) for _ in range(NUM_CONVERSATIONS)]
    others = [tokens(PROMPT_TOKENS) for _ in range(NUM_OTHERS)]
    return {
        WARM_UP: [tokens(PROMPT_TOKENS)],
        "cold": conversations,
        "evict": others,
        "return": conversations,
    }


def engine_spec(options: Options, with_tier: bool) -> dict[str, Any]:
    """Return everything that `demo_engine.py` needs to know."""
    kv_transfer_config = None
    if with_tier:
        name, _, module_path = options.connector.partition(":")
        size = options.tier_size
        tier_size = int(size) if size.isdigit() else size
        kv_transfer_config = {
            "kv_connector": name,
            **({"kv_connector_module_path": module_path} if module_path else {}),
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"cpu_bytes_to_use": tier_size},
        }
    return {
        "kv_transfer_config": kv_transfer_config,
        "phases": make_phases(),
        "max_tokens": MAX_TOKENS,
        "engine": {
            "model": str(options.model_dir),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            "seed": 0,
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks_override": NUM_GPU_BLOCKS,
            "max_model_len": 2304,
            "max_num_batched_tokens": 2304,
            "max_num_seqs": 8,
        },
    }


@contextmanager
def engine_process(
    spec_file: Path, log: IO[bytes], options: Options
) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Start `demo_engine.py`; whatever is left of its processes at the end is killed."""
    environment = dict(
        os.environ,
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        # OpenMP's barriers spin. On a machine with few cores they would take processor time from the engine itself.
        OMP_WAIT_POLICY="passive",
        VLLM_LOGGING_LEVEL="INFO" if options.verbose else "WARNING",
        VLLM_ENABLE_V1_MULTIPROCESSING=str(int(not options.in_process)),
    )
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd) as events:
        process = subprocess.Popen(
            [sys.executable, str(ENGINE), str(spec_file), str(write_fd)],
            stdin=subprocess.DEVNULL,
            stdout=None if options.verbose else log,
            stderr=None if options.verbose else log,
            env=environment,
            pass_fds=[write_fd],
            start_new_session=True,
        )
        os.close(write_fd)
        try:
            yield process, events
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_engine(console: Console, engine: str, options: Options) -> dict[str, list[dict[str, Any]]]:
    """Run every phase on a fresh engine.

    Raises
    ------
    EngineFailed
        If the engine ended early, or was ended after `ENGINE_LIMIT_S`. The message has the end of its log.
    """
    spec = engine_spec(options, with_tier=engine == WITH)
    requests: dict[str, list[dict[str, Any]]] = {phase: [] for phase in spec["phases"]}
    done = False
    with (
        tempfile.TemporaryDirectory(prefix="kvferry-demo-") as scratch,
        Progress(console, engine) as progress,
    ):
        spec_file = Path(scratch) / "spec.json"
        spec_file.write_text(json.dumps(spec))
        log_file = Path(scratch) / "log.txt"
        progress.show("starting")
        if not console.is_terminal:
            progress.log("starting")
        with (
            log_file.open("wb") as log,
            engine_process(spec_file, log, options) as (
                process,
                events,
            ),
        ):
            watchdog = threading.Timer(ENGINE_LIMIT_S, process.kill)
            watchdog.daemon = True
            watchdog.start()
            for line in events:
                event = json.loads(line)
                done = event["event"] == "done"
                if event["event"] == "ready":
                    progress.log("up")
                if event["event"] == "request":
                    phase = event["phase"]
                    requests[phase].append(event)
                    progress.show(f"phase {phase}, prompt {len(requests[phase])} of {len(spec['phases'][phase])}")
                    if phase != WARM_UP and len(requests[phase]) == len(spec["phases"][phase]):
                        progress.log(f"phase {phase} done")
                if done:
                    break
            watchdog.cancel()
        if not done:
            hint = "see its output above"
            if not options.verbose:
                hint = why_it_failed(log_file.read_text(errors="replace"))
            raise EngineFailed(f"{engine} stopped before its last phase:\n{hint}")
    requests.pop(WARM_UP)
    return requests


def why_it_failed(log: str) -> str:
    """Return the errors in the output of an engine, the root cause first, or its last lines if there are none."""
    errors = dict.fromkeys(re.findall(r"(?:[\w.]+\.)?\w+Error: .*", log))
    lines = list(errors)[:3] or log.strip().splitlines()[-20:]
    return "\n".join([*lines, "(--verbose shows everything that vLLM prints)"])


def verdict(rows: list[PhaseRow]) -> tuple[bool, str]:
    """Say whether the demo succeeded, and why."""
    different = [row.phase for row in rows if row.tokens_identical is False]
    if different:
        return False, (
            f"tokens differ from those of vLLM alone in phase {', '.join(different)}: "
            "the tier gave back something else than it was given"
        )
    by_key = {(row.engine, row.phase): row for row in rows}
    back, again = by_key[WITH, "return"], by_key[WITHOUT, "return"]
    if back.tier_hit_tokens == 0:
        return False, (
            "the tier served nothing in phase return: is --tier-size large enough for the prompts "
            f"of all phases ({sum(row.prompt_tokens for row in rows) // 2:,} tokens)?"
        )
    return True, (
        f"{back.tier_hit_tokens:,} of {back.prompt_tokens:,} returning prompt tokens came from the "
        f"tier, every token is the same; time to first token {back.ttft_s * 1000:.0f} ms "
        f"instead of {again.ttft_s * 1000:.0f} ms ({again.ttft_s / back.ttft_s:.1f} times faster)"
    )


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tier-size",
        default="256MiB",
        metavar="SIZE",
        help="host memory of the tier, e.g. 256MiB or a number of bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--model-dir",
        type=Path,
        default=DEFAULT_DIR,
        metavar="DIR",
        help="where the tiny model is, or will be written (default: %(default)s)",
    )
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="scheduler and worker in one process: starts faster, not how vLLM serves",
    )
    parser.add_argument(
        "--connector",
        default="KvFerryConnector",
        metavar="NAME[:MODULE]",
        help="the KV connector to show (default: %(default)s)",
    )
    parser.add_argument("--verbose", action="store_true", help="show what vLLM prints")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table's figures there, too")
    given = parser.parse_args()
    return Options(
        tier_size=given.tier_size,
        model_dir=given.model_dir.resolve(),
        connector=given.connector,
        in_process=given.in_process,
        verbose=given.verbose,
        json_file=given.json,
    )


def main() -> int:
    """Run both engines and print the table."""
    options = parse_options()
    console = Console()
    started = time.monotonic()
    try:
        with console.status("tiny model with random weights"):
            ensure_tiny_model(options.model_dir)
        console.print(f"tiny Llama with random weights: {options.model_dir}")
        runs = {engine: run_engine(console, engine, options) for engine in (WITHOUT, WITH)}
    except (EngineFailed, OSError) as error:
        console.print(f"[bold red]demo failed:[/bold red] {escape(str(error))}", highlight=False)
        return 2
    rows = [
        PhaseRow.of(engine, phase, runs[engine][phase], runs[WITHOUT][phase] if engine == WITH else None)
        for engine in runs
        for phase in runs[engine]
    ]
    console.print(make_table(rows))
    succeeded, text = verdict(rows)
    console.print(("[green]ok:[/green] " if succeeded else "[bold red]FAILED:[/bold red] ") + text)
    if options.json_file is not None:
        report = {
            "succeeded": succeeded,
            "verdict": text,
            "wall_s": time.monotonic() - started,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        options.json_file.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
