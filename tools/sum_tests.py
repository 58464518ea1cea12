# SPDX-License-Identifier: Apache-2.0
"""Sum up the JUnit files of CTest and of pytest.

``sum_tests.py FILE...`` prints ``N passed, N failed`` and fails unless all passed.
"""

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """How many tests passed and were skipped, and the names of those that failed."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        self.passed += other.passed
        self.skipped += other.skipped
        self.failed += other.failed

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed"


def name_of(case: ElementTree.Element) -> str:
    """Return the name of a test case; CTest gives the same name twice."""
    return ".".join(dict.fromkeys(filter(None, (case.get("classname"), case.get("name")))))


def tally_of(case: ElementTree.Element) -> Tally:
    """Judge one test case.

    CTest says ``notrun`` both of a test that it could not start and of one that skipped itself; only the latter
    carries a message that says so.
    """
    name = name_of(case)
    skip = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        return Tally(failed=[name])
    if case.get("status") == "notrun":
        reason = skip.get("message", "") if skip is not None else ""
        return Tally(skipped=1) if reason.startswith("SKIP_") else Tally(failed=[name])
    if skip is not None or case.get("status") == "disabled":
        return Tally(skipped=1)
    return Tally(failed=[name]) if case.get("status") == "fail" else Tally(passed=1)


def tally_file(path: Path) -> Tally:
    """Sum up one JUnit file; an absent, broken or empty one is a failure."""
    total = Tally()
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        return Tally(failed=[f"{path.name}: {error}"])
    for case in cases:
        total.add(tally_of(case))
    return total if cases else Tally(failed=[f"{path.name}: no tests"])


def outputs_of_failed(path: Path) -> dict[str, str]:
    """Return the output of the failed tests of a JUnit file, by their names."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return {}
    said = ("failure", "error", "system-out")
    return {
        name_of(case): "\n".join(filter(None, (case.findtext(tag) for tag in said)))
        for case in cases
        if tally_of(case).failed
    }


def main(paths: list[str]) -> int:
    """Print the sum of all files."""
    total = Tally()
    for path in paths:
        total.add(tally_file(Path(path)))
    for name in total.failed:
        print(f"failed: {name}")
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
