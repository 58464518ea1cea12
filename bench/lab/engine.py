# SPDX-License-Identifier: Apache-2.0
"""Measure whole engines: vLLM's CPU build alone, with kvferry, with its stock connectors, with a pool for everything.

``make bench-engine`` runs it. Each run is a process with one computing thread, and the engines take turns. Costs are
processor time of the engine's thread, and of all threads (including copies in the background). Ratios are between runs
of one repetition, with the 95 % interval of their mean. Greedy tokens are compared. Workload D is a server over HTTP,
which is measured only by the clock.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from served import serve_twice
from workloads import LARGE_POOL_BLOCKS, SMALL_POOL_BLOCKS, WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
STOCK_SHIMS = ROOT.parent / "shared/tools/stock_on_cpu"
ALONE, LARGE, OURS = "alone", "large pool", "kvferry"
SERVED = "D"
TITLES = {name: (run.__doc__ or "").strip() for name, run in {**WORKLOADS, SERVED: serve_twice}.items()}
# The compared values, by the column's name. Throughput is the inverse of a time.
THROUGHPUTS = {
    "throughput by engine thread": "engine_thread_s",
    "throughput by all threads": "all_threads_s",
    "throughput by the clock": "wall_s",
}
# Room for several times all blocks of a workload.
TIER_BYTES = 1 << 30
# Student's t for 95 %, by degrees of freedom.
T_95 = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def kv_transfer_configs() -> dict[str, dict[str, Any] | None]:
    """Return ``kv_transfer_config`` by engine. The stock connectors are included if their shims exist."""

    def config(name: str, module: str) -> dict[str, Any]:
        return {
            "kv_connector": name,
            "kv_connector_module_path": module,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": TIER_BYTES},
        }

    configs: dict[str, dict[str, Any] | None] = {
        ALONE: None,
        LARGE: None,
        OURS: config("KvFerryConnector", "kvferry.vllm"),
    }
    if STOCK_SHIMS.exists():
        configs["SimpleCPUOffload"] = config("SimpleCpuOffloadOnCpu", "simple_cpu_offload")
        configs["Offloading"] = config("OffloadingOnCpu", "offloading")
    return configs


def run_engine(model: Path, name: str, config: dict[str, Any] | None, workload: str) -> dict[str, Any]:
    """Run one engine.

    Raises
    ------
    SystemExit
        The engine failed; the message has the end of its output.

    """
    environment = {
        # After the path of another vLLM than the one of .venv.
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(STOCK_SHIMS)])),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    if workload == SERVED:
        with tempfile.TemporaryDirectory() as folder:
            return serve_twice(model, config, name == LARGE, environment, Path(folder))
    spec = {
        "model": str(model),
        "workload": workload,
        "num_blocks": LARGE_POOL_BLOCKS if name == LARGE else SMALL_POOL_BLOCKS,
        "kv_transfer_config": config,
    }
    with tempfile.TemporaryDirectory() as folder:
        spec_file, report_file = Path(folder) / "spec.json", Path(folder) / "report.json"
        spec_file.write_text(json.dumps(spec))
        command = [sys.executable, str(ROOT / "bench/lab/engine_run.py"), str(spec_file), str(report_file)]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env=os.environ | environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        )  # fmt: skip
        if ended.returncode != 0:
            sys.exit(f"the engine '{name}' failed with {ended.returncode}:\n{ended.stderr[-3000:]}")
        return dict(json.loads(report_file.read_text()))


def interval(values: list[float]) -> str:
    """Return the mean, and half the width of its 95 % interval."""
    mean = statistics.mean(values)
    if not 2 <= len(values) <= len(T_95):
        return f"{mean:.3f}"
    half = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def ratios(runs: dict[str, list[dict[str, Any]]], name: str, key: str, inverse: bool) -> list[float]:
    """Return the ratio of `name` to the engine alone, for each repetition."""
    pairs = [(value(one, key), value(alone, key)) for one, alone in zip(runs[name], runs[ALONE], strict=True)]
    return [alone / one if inverse else one / alone for one, alone in pairs]


def value(run: dict[str, Any], key: str) -> float:
    """Return the seconds of a run; for times to first token their mean."""
    found = run[key]
    return statistics.mean(found) if isinstance(found, list) else float(found)


def render(workload: str, runs: dict[str, list[dict[str, Any]]]) -> Table:
    """Make the table of one workload."""
    table = Table(title=f"{workload}: {TITLES[workload]} Ratios to the engine alone.", title_justify="left")
    measured = {column: key for column, key in THROUGHPUTS.items() if key in runs[ALONE][0]}
    for column in (
        "engine", *measured, "time to first token", "from the tier", "preemptions", "tokens equal",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "engine" else "right")
    expected = runs[ALONE][0]["tokens"]
    for name, found in runs.items():
        external = found[-1]["prompt_tokens_by_source"].get("external_kv_transfer", 0)
        num_equal = sum(one == other for run in found for one, other in zip(run["tokens"], expected, strict=True))
        table.add_row(
            name,
            *(interval(ratios(runs, name, key, True)) for key in measured.values()),
            interval(ratios(runs, name, "first_token_s", False)),
            f"{external:.0f}",
            f"{found[-1]['num_preemptions']:.0f}",
            f"{num_equal} of {len(found) * len(expected)}",
        )
    return table


def main() -> None:
    """Measure, and print a table for each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each engine (default: 5)")
    parser.add_argument("--workloads", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to FILE")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; at least 1")
    configs = kv_transfer_configs()
    console = Console(width=160)
    if not STOCK_SHIMS.exists():
        console.print(f"without the stock connectors: there is no {STOCK_SHIMS}")
    sys.path.append(str(ROOT / "examples"))
    from tiny_model import TinyModel, ensure_tiny_model

    # A Llama of 21 million weights.
    shape = TinyModel(hidden_size=512, intermediate_size=1792, num_attention_heads=8, num_key_value_heads=4)
    model = ensure_tiny_model(ROOT / ".cache/bench-llama", shape)
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for workload in options.workloads:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
        for repeat in range(options.repeats):
            for name, config in configs.items():
                print(f"{workload}: {name}, {repeat + 1} of {options.repeats} ...", file=sys.stderr, flush=True)
                runs[name].append(run_engine(model, name, config, workload))
        results[workload] = runs
        console.print(render(workload, runs))
        if options.json:
            options.json.write_text(json.dumps({"machine": platform.processor(), "results": results}))


if __name__ == "__main__":
    main()
