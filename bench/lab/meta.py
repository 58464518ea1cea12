# SPDX-License-Identifier: Apache-2.0
"""Compare the scheduler side of kvferry with vLLM's stock offloading connectors: ``make bench-meta``."""

import argparse
import json
import logging
import os
import platform
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from family_lives import FamilyLives
    from lives import Progress

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

DEFAULT_ROUNDS = 15
NUM_RESIDENTS = 13  # 106,496 blocks
QUICK_ROUNDS = 3
QUICK_RESIDENTS = 3
FAMILY_RESIDENTS = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="samples of each scenario (default: 15)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds: does it run, not what it costs")
    parser.add_argument("--recorder", action="store_true", help="measure only what the recorder costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    options = parser.parse_args()
    if options.quick:
        options.rounds = QUICK_ROUNDS
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; at least 1")
    return options


def hardware() -> str:
    """Describe the machine in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{model}, {cores} cores, load {load:.1f}, Python {platform.python_version()}"


def measure_families(options: argparse.Namespace, progress: "Progress") -> "dict[str, FamilyLives]":
    """Measure each known model family, with half the rounds, because a life is long."""
    import pytest
    from family_lives import FAMILY_NAMES, FamilyLives
    from model_families import FAMILIES

    found: dict[str, FamilyLives] = {}
    if not FAMILIES.exists():
        progress(f"no model families: {FAMILIES.name} is not beside the repository")
        return found
    for name in FAMILY_NAMES:
        num_residents = 1 if options.quick else FAMILY_RESIDENTS
        try:
            lives = FamilyLives(name, (options.rounds + 1) // 2, num_residents, progress)
        except pytest.skip.Exception as unknown:
            progress(f"not measured: {unknown}")
            continue
        lives.run()
        found[name] = lives
    return found


def main() -> int:
    options = parse_arguments()
    for module, remedy in (
        ("vllm", "run `make bench-meta`, which installs vLLM's CPU build"),
        ("kvferry", "run `make build`"),
        ("rich", "pip install rich"),
    ):
        if find_spec(module) is None:
            print(f"bench/lab/meta.py: {module} is not installed for {sys.executable}; {remedy}", file=sys.stderr)
            return 2

    from rich.console import Console
    from rich.markup import escape

    console = Console(width=None if sys.stdout.isatty() else 180)
    began = time.monotonic()
    console.print(f"{escape(hardware())}; {options.rounds} rounds; importing vLLM", highlight=False)
    with console.status("importing vLLM") as status:
        logging.getLogger("vllm").setLevel(logging.ERROR)
        from report import as_json, render, render_families, render_recorder
        from rigs import KINDS, UNRECORDED
        from scenarios import Bench

        last_stage = ""

        def progress(message: str) -> None:
            nonlocal last_stage
            status.update(f"{message} ({time.monotonic() - began:.0f} s)")
            stage = message.partition(",")[0]
            if stage != last_stage:
                console.print(f"{time.monotonic() - began:6.1f} s  {escape(stage)}", highlight=False)
                last_stage = stage

        kinds = (KINDS[0], UNRECORDED) if options.recorder else (*KINDS, UNRECORDED)
        bench = Bench(options.rounds, QUICK_RESIDENTS if options.quick else NUM_RESIDENTS, progress, kinds)
        bench.run()
        families = {} if options.recorder else measure_families(options, progress)
    console.print(render_recorder(bench.results) if options.recorder else render(bench.results, bench.request_ns))
    if families:
        console.print(render_families(families))
    for name, lives in families.items():
        for connector, reason in lives.refused.items():
            console.print(escape(f"{connector} refuses {name}: {reason}"), highlight=False)
    console.print(f"{escape(hardware())}; {time.monotonic() - began:.0f} s", highlight=False)
    if options.json:
        options.json.write_text(json.dumps(as_json(bench.results, bench.request_ns, families, hardware()), indent=1))
        console.print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
