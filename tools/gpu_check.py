# SPDX-License-Identifier: Apache-2.0
"""All checks that want a GPU, on a machine with one and without a network: standard library only.

``gpu_check.py`` builds, tests, checks data integrity, runs the kernels under compute-sanitizer and measures, and
writes ``<date>-<gpu>.json`` and ``.md``. A step that fails stops no other one.
``gpu_check.py --carry DIR`` collects, on a machine with a network, what the build needs and a bare one lacks.

Ends with 0: every step passed; 1: one did not; 2: wrong usage; 3: there is no GPU. tests/gpu/README.md says more.
"""

import argparse
import sys
import time
from pathlib import Path

import carry
import gpu_check_report
from gpu_check_machine import ROOT, Gpu, MissingDeviceError, environment, find_gpu, missing_tools
from gpu_check_steps import STEPS, Outcome, Setting, perform

BACKENDS = ("cuda", "hip", "cuda_stand_in", "hip_stand_in", "host")
STATE = "gpu-check/report.json"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, default="cuda", help="default: cuda")
    parser.add_argument("--steps", metavar="A,B", help=f"only these, in this order, of: {' '.join(STEPS)}")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the integrity run (default 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/gpu/reports", help="where the report goes")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build/gpu-check")
    parser.add_argument(
        "--append", nargs="?", type=Path, const=Path(), metavar="JSON",
        help="add to a report: the one of the last run in this build folder, or this file",
    )  # fmt: skip
    parser.add_argument("--carry", type=Path, metavar="DIR", help="collect what the build needs into DIR, and end")
    parser.add_argument(
        "--deps", type=Path, default=ROOT / "build/carried", metavar="DIR", help="what was carried (build/carried)"
    )
    parser.add_argument("--most-seconds", type=float, default=570.0, help="no step outlasts this (default 570)")
    parser.add_argument("--tiny", action="store_true", help="as little as shows that the script runs")
    parser.add_argument("--programs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set((options.steps or "").split(",")) - {"", *STEPS}
    if unknown:
        parser.error(f"unknown steps: {' '.join(sorted(unknown))}; there are: {' '.join(STEPS)}")
    return options


def say(outcome: Outcome) -> None:
    """Print how a step ended, and the end of its log if it did not pass."""
    print(f"{outcome.result:<15}{outcome.name} ({outcome.seconds:.0f} s) {outcome.detail}", flush=True)
    for line in outcome.tail:
        print(f"    {line}", flush=True)


def run_steps(options: argparse.Namespace, gpu: Gpu) -> int:
    """Run the chosen steps; the report is written after each, so that nothing is lost when time runs out."""
    build_dir = options.build_dir.resolve()
    setting = Setting(
        options.backend, build_dir, build_dir / "gpu-check/logs", options.minutes, options.most_seconds, options.tiny,
        gpu.architecture, options.deps.resolve() if options.deps.is_dir() else None, options.programs,
    )  # fmt: skip
    state = build_dir / STATE
    earlier = None
    if options.append is not None:
        path = state if options.append == Path() else options.append
        if not path.exists():
            print(f"nothing to append to: {path} does not exist; a report is begun", flush=True)
        else:
            earlier = gpu_check_report.load(path)
    machine = environment(options.backend, gpu)
    steps = []
    failed = False
    written: list[Path] = []
    for name in options.steps.split(",") if options.steps else STEPS:
        print(f"{'':<15}{name} ...", flush=True)
        outcome = perform(name, setting)
        say(outcome)
        failed = failed or outcome.result not in gpu_check_report.CLEAN
        steps.append(outcome.to_json())
        report = gpu_check_report.make(earlier, options.backend, time.strftime("%Y-%m-%d"), machine, steps)
        written = gpu_check_report.save(report, options.out)
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(written[0].read_text())
    print("report: " + " and ".join(str(path) for path in written))
    return 1 if failed else 0


def main() -> int:
    """Check what is here, then run the steps."""
    options = arguments()
    if options.carry is not None:
        return carry.main(options.carry)
    try:
        gpu = find_gpu(options.backend)
    except MissingDeviceError as reason:
        print(f"gpu-check: {reason}; --backend cuda_stand_in runs the same script without one", file=sys.stderr)
        return 3
    print(f"gpu-check: {gpu.name}" + (f", sm_{gpu.architecture}" if gpu.architecture else ""), flush=True)
    for line in missing_tools(options.backend):
        print(f"gpu-check: {line}", flush=True)
    return run_steps(options, gpu)


if __name__ == "__main__":
    sys.exit(main())
