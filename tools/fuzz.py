# SPDX-License-Identifier: Apache-2.0
"""Build the fuzzers of ``tests/fuzz`` and run them, each for a while.

``fuzz.py [--seconds N] [--junit FILE] [--merge] [FUZZER...]`` replays the corpus of each fuzzer and then tries new
inputs for N seconds. A fuzzer is one test: it fails if an input stops it, and prints the command that replays the
input. ``--merge`` adds the inputs that are worth keeping to the corpus in the repository. The preset host-asan builds
the fuzzers together with the tests.
"""

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"
BUILD = ROOT / "build/host-asan"
FOUND = ROOT / "build/fuzz"
# The longest inputs: longer ones are slower and find nothing else.
MOST_BYTES = {"plan": 1024, "report": 1024, "tier": 512, "record": 512, "recording": 512, "replay": 97}
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
# The time that one input may take before it counts as hung.
MOST_SECONDS_OF_ONE = 120


@dataclass
class Outcome:
    """How a fuzzer ended: ``reason`` is empty if it passed."""

    name: str
    reason: str = ""


def build() -> bool:
    """Build the fuzzers and return whether that worked; a configured preset is kept, as make soak adds to it."""
    is_configured = (BUILD / "build.ninja").exists()
    targets = [f"{name}_fuzzer" for name in MOST_BYTES]
    commands = (
        *(() if is_configured else (["cmake", "--preset", "host-asan"],)),
        ["cmake", "--build", str(BUILD), "--target", *targets, "-j", str(os.cpu_count() or 2)],
    )
    return all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands)


def run(name: str, seconds: int, merge: bool) -> Outcome:
    """Replay the corpus of one fuzzer, and try new inputs."""
    program = BUILD / f"tests/fuzz/{name}_fuzzer"
    found = FOUND / "found" / name
    fresh = FOUND / "corpus" / name
    for directory in (found, fresh):
        directory.mkdir(parents=True, exist_ok=True)
    kept = CORPUS / name
    common = [
        str(program), f"-max_len={MOST_BYTES[name]}", f"-timeout={MOST_SECONDS_OF_ONE}", "-rss_limit_mb=4096",
        f"-artifact_prefix={found}/",
    ]  # fmt: skip
    searches = ((*common, "-runs=0", str(kept)), (*common, f"-max_total_time={seconds}", str(fresh), str(kept)))
    for search in searches:
        ended = subprocess.run(
            search, cwd=ROOT, env=SANITIZERS | os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        # Print everything at once: other fuzzers run at the same time.
        print(ended.stdout.decode(errors="replace"), end="", flush=True)
        if ended.returncode != 0:
            inputs = sorted(found.glob("*"), key=lambda path: path.stat().st_mtime)
            replay = f"; replay it: {program.relative_to(ROOT)} {inputs[-1].relative_to(ROOT)}" if inputs else ""
            return Outcome(name, f"{name}_fuzzer stopped with {ended.returncode}{replay}")
    if merge:
        subprocess.run([*common, "-merge=1", str(kept), str(fresh)], cwd=ROOT, check=True)
    return Outcome(name)


def write_junit(path: Path, outcomes: list[Outcome]) -> None:
    """Write one test case for each fuzzer."""
    suite = ElementTree.Element("testsuite", name="fuzz")
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="fuzz", name=outcome.name)
        if outcome.reason:
            ElementTree.SubElement(case, "failure").text = outcome.reason
    ElementTree.ElementTree(suite).write(path)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=15, help="of new inputs, for each fuzzer (default: 15)")
    parser.add_argument("--junit", type=Path, help="write the outcomes to this file")
    parser.add_argument("--merge", action="store_true", help="keep new inputs that reach more in the corpus")
    parser.add_argument("fuzzers", nargs="*", help=f"of {', '.join(MOST_BYTES)} (default: all)")
    options = parser.parse_args()
    names = options.fuzzers or list(MOST_BYTES)
    if unknown := set(names) - set(MOST_BYTES):
        parser.error(f"no fuzzer is called {', '.join(sorted(unknown))}; there are {', '.join(MOST_BYTES)}")
    if not build():
        outcomes = [Outcome(name, "the fuzzers cannot be built") for name in names]
    else:
        # One fuzzer per core: each has one thread.
        with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            outcomes = list(pool.map(lambda name: run(name, options.seconds, options.merge), names))
    for outcome in outcomes:
        print(f"{outcome.name}: {outcome.reason or 'nothing found'}", flush=True)
    if options.junit:
        write_junit(options.junit, outcomes)
    return 1 if any(outcome.reason for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
