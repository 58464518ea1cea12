# SPDX-License-Identifier: Apache-2.0
"""Check the models of the ownership protocol with Spin, and that each property can fail.

``check_models.py [--jobs N] [--junit FILE] [NAME...]``
    runs all checks, or those whose names begin with one of the names, and prints one line for each. Needs ``spin`` and
    ``gcc``.
``check_models.py --trail NAME``
    prints the counterexample of one mutant, step by step.

A model without mutant passes if the search was complete and found no error, and if every ``EVENT`` of the model
happened in at least one state: a model in which an event never happens proves nothing. A mutant passes if the first
violation that the search meets is of exactly the property that the mutant is to break. Every property and every mutant
of the sources has its check, or nothing is run.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from model_checks import CHECKS, Check

MODELS = Path(__file__).resolve().parent
MEMORY_LIMIT_MB = 1400  # of one search; the largest takes half of it
MAX_DEPTH = 200_000
TIMEOUT_S = 600

# What pan says when it has not seen everything, whatever else it says.
INCOMPLETE = (
    "Search not completed",
    "max search depth too small",
    "reached -DMEMLIM",
    "truncated",
    "out of memory",
    "Bit statespace",
)
VIOLATION = re.compile(r"^pan:\s*\d+:\s*(.+?) \(at depth -?\d+\)", re.MULTILINE)
ERRORS = re.compile(r"\berrors: (\d+)")
STORED = re.compile(r"^\s*(\d[\d.e+]*) states, stored", re.MULTILINE)
UNREACHED = re.compile(r"^unreached in [^\n]*\n(?:\t[^\n]*\n)*", re.MULTILINE)
EVENT = re.compile(r"printf\('(.*?)(?:\\+n)?'\)")
INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
PROPERTY = re.compile(r"(?<!#define )REQUIRE\((\w+),")
CLAIM = re.compile(r"^ltl (\w+) ", re.MULTILINE)
MUTANT = re.compile(r"\bMUTANT_(\w+)")


@dataclass(frozen=True)
class Result:
    """How a check ended: by property what is wrong with it, or nothing."""

    check: Check
    complaints: dict[str, str]
    states: str
    seconds: float

    @property
    def complaint(self) -> str:
        """The first complaint, if there is any."""
        return next((text for text in self.complaints.values() if text), "")


class SearchError(Exception):
    """Spin, the compiler or the search itself failed."""


def source(model: str) -> str:
    """Return a model's text with what it includes."""
    text = (MODELS / f"{model}.pml").read_text()
    return INCLUDE.sub(lambda found: source(found.group(1).removesuffix(".pml")), text)


def properties(model: str, claim: bool) -> list[str]:
    """Return the names of a model's assertions, or of its LTL formula."""
    return sorted(set((CLAIM if claim else PROPERTY).findall(source(model))))


def uncovered() -> list[str]:
    """Return what stands in the sources and not in CHECKS: properties that no mutant breaks, mutants not run."""
    missing = []
    for model in sorted({check.model for check in CHECKS}):
        checks = [check for check in CHECKS if check.model == model]
        for claim in (False, True):
            broken = {check.breaks for check in checks if check.claim == claim}
            searched = any(check.claim == claim and not check.breaks for check in checks)
            for name in properties(model, claim):
                if name not in broken:
                    missing.append(f"{model}: no mutant breaks {name}")
                if not searched:
                    missing.append(f"{model}: {name} is not checked")
        run_here = {check.what for check in checks if check.breaks}
        written = set(MUTANT.findall(source(model)))
        missing += [f"{model}: mutant {name} is not run" for name in sorted(written - run_here)]
        missing += [f"{model}: there is no mutant {name}" for name in sorted(run_here - written)]
    return missing


def run(*command: str, cwd: Path) -> str:
    """Run one program and return what it printed; raise SearchError if it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SearchError(str(error)) from error
    printed = done.stdout + done.stderr
    if done.returncode != 0:
        raise SearchError(f"{Path(command[0]).name} exits with {done.returncode}: {printed[-400:].strip()}")
    return printed


def macros(check: Check) -> tuple[str, ...]:
    """Return the definitions with which the preprocessor makes the check's variant of the model."""
    return (*check.defines, f"-DMUTANT_{check.what}") if check.breaks else check.defines


def build(check: Check, folder: Path) -> None:
    """Make the verifier ``pan`` in the folder; the models are copied there, so that no path is in its output."""
    for path in MODELS.glob("*.pml"):
        shutil.copy(path, folder)
    # Merged statements count as reached whether they are or not: -o3 keeps them apart where events are judged.
    merging = () if check.breaks else ("-o3",)
    said = run("spin", "-a", *merging, *macros(check), f"{check.model}.pml", cwd=folder)
    if "Error" in said or not (folder / "pan.c").exists():
        raise SearchError(f"spin: {said.strip()}")
    kind = [f"-DMEMLIM={MEMORY_LIMIT_MB}", *([] if check.claim else ["-DSAFETY", "-DNOCLAIM"])]
    if check.breadth_first:
        kind.append("-DBFS")
    # Most searches are shorter than the optimiser's work.
    run("gcc", "-O0" if check.breaks else "-O1", "-w", *kind, "-o", "pan", "pan.c", cwd=folder)


def search(check: Check, folder: Path) -> str:
    """Run the verifier."""
    options = ["-a"] if check.claim else []
    if check.claim and check.breaks:
        options.append("-A")  # what breaks the claim breaks assertions, too
    return run("./pan", f"-m{MAX_DEPTH}", *options, cwd=folder)


def events(listing: str) -> Counter[str]:
    """Count the events in a listing of states, by name."""
    return Counter(found.group(1) for found in EVENT.finditer(listing))


def violations(printed: str) -> list[str]:
    """Return the properties that a search found violated."""
    return [text.removeprefix("assertion violated ") for text in VIOLATION.findall(printed)]


def judge_mutant(check: Check, printed: str) -> dict[str, str]:
    """Return what is wrong with the output of a mutant's search."""
    expected = "acceptance cycle" if check.claim else check.breaks
    found = violations(printed)
    if not found:
        return {check.breaks: "the mutant was not caught"}
    return {check.breaks: "" if found == [expected] else f"violates {found}, expected {expected}"}


def judge_model(check: Check, printed: str, states: str) -> dict[str, str]:
    """Return what is wrong with the output of a model's search, by property.

    Parameters
    ----------
    check
        What was searched.
    printed
        Output of ``pan``.
    states
        Output of ``pan -d``: every state of the model.

    """
    names = properties(check.model, check.claim)
    found = violations(printed)
    errors = ERRORS.search(printed)
    missed = [sign for sign in INCOMPLETE if sign in printed]
    if check.claim and not re.search(r"never claim\s+\+", printed):
        missed.append("the claim was not in it")
    general = ""
    if errors is None:
        general = f"no verdict: {printed[-400:].strip()}"
    elif int(errors.group(1)) != 0 and not set(found) & set(names):
        general = f"violates {found or 'something'}"
    elif missed and not found:
        general = f"the search was not complete: {', '.join(missed)}"
    complaints = {name: f"violated: {found}" if name in found else general for name in names}
    if not check.claim:
        unreached = events("".join(UNREACHED.findall(printed)))
        never = [name for name, count in events(states).items() if unreached[name] >= count]
        lost = f"never happens: {', '.join(sorted(never))}" if never else ""
        complaints["every event happens"] = lost or general
    return complaints


def perform(check: Check) -> Result:
    """Build, search and judge."""
    began = time.monotonic()
    stored = "-"
    with tempfile.TemporaryDirectory(prefix="kvferry-model-") as name:
        folder = Path(name)
        try:
            build(check, folder)
            printed = search(check, folder)
            if found := STORED.search(printed):
                stored = found.group(1)
            if check.breaks:
                complaints = judge_mutant(check, printed)
            else:
                complaints = judge_model(check, printed, run("./pan", "-d", cwd=folder))
        except SearchError as error:
            names = [check.breaks] if check.breaks else properties(check.model, check.claim)
            complaints = dict.fromkeys(names, str(error))
    return Result(check, complaints, stored, time.monotonic() - began)


def say(result: Result) -> None:
    """Print how a check ended."""
    check = result.check
    expected = f"violates {check.breaks}" if check.breaks else f"holds: {len(result.complaints)} properties"
    print(
        f"{'FAIL' if result.complaint else 'ok':<5}{check.name:<36}{expected:<52}"
        f"{result.states:>9} states{result.seconds:>6.1f} s",
        flush=True,
    )
    for name, complaint in result.complaints.items():
        if complaint:
            print(f"     {name}: {complaint}", flush=True)


def write_junit(results: Iterable[Result], path: Path) -> None:
    """Write a JUnit file: a test case per mutant, and per property of each search of a model itself."""
    suite = ElementTree.Element("testsuite", name="protocol")
    for result in results:
        share = result.seconds / len(result.complaints)
        for name, complaint in result.complaints.items():
            title = f"{result.check.name} breaks {name}" if result.check.breaks else f"{result.check.name}: {name}"
            case = ElementTree.SubElement(suite, "testcase", name=title, classname="protocol", time=f"{share:.1f}")
            if complaint:
                ElementTree.SubElement(case, "failure", message=complaint)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="unicode")


def print_trail(check: Check) -> int:
    """Print the counterexample of a mutant, or of a model that does not hold."""
    with tempfile.TemporaryDirectory(prefix="kvferry-model-") as name:
        folder = Path(name)
        try:
            build(check, folder)
            found = violations(search(check, folder))
            if not found:
                print(f"{check.name} holds: there is no counterexample", file=sys.stderr)
                return 1
            merging = () if check.breaks else ("-o3",)
            print(run("spin", "-t", "-p", "-g", *merging, *macros(check), f"{check.model}.pml", cwd=folder))
            print(f"violated: {', '.join(found)}")
        except SearchError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def chosen(names: Sequence[str]) -> list[Check]:
    """Return the checks whose names begin with one of those, or all."""
    return [check for check in CHECKS if not names or check.name.startswith(tuple(names))]


def main() -> int:
    """Run the chosen checks and report them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="searches at a time")
    parser.add_argument("--junit", type=Path)
    parser.add_argument("--trail", action="store_true", help="print the counterexample of the first check named")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if missing := [tool for tool in ("spin", "gcc") if not shutil.which(tool)]:
        print(f"{' and '.join(missing)} not found: run tools/setup_system.sh test", file=sys.stderr)
        return 2
    if gaps := uncovered():
        print("\n".join(gaps), file=sys.stderr)
        return 2
    checks = chosen(options.names)
    if not checks:
        print(f"no check is called {' or '.join(options.names)}", file=sys.stderr)
        return 2
    if options.trail:
        return print_trail(checks[0])
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(perform, check) for check in checks]):
            results.append(done.result())
            say(results[-1])
    if options.junit:
        write_junit(results, options.junit)
    verdicts = [complaint for result in results for complaint in result.complaints.values()]
    num_failed = sum(1 for complaint in verdicts if complaint)
    print(f"{len(verdicts) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
