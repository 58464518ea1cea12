# SPDX-License-Identifier: Apache-2.0
"""The report of checks that pass or complain, for people and as a JUnit file."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

MOST_SHOWN = 200


class ComplaintsReport:
    """Prints each check as it ends; each counts as one test.

    Attributes
    ----------
    num_failed
        How many checks have complained.

    """

    def __init__(self, suite: str) -> None:
        self._suite = ElementTree.Element("testsuite", name=suite)
        self._name = suite
        self.num_failed = 0

    def add(self, check: str, complaints: list[str], took: float) -> None:
        """Report a check that took so many seconds."""
        case = ElementTree.SubElement(self._suite, "testcase", name=check, classname=self._name, time=f"{took:.1f}")
        print(f"{'FAIL' if complaints else 'ok':<5}{check} ({took:.1f} s)", flush=True)
        if complaints:
            self.num_failed += 1
            shown = complaints[:MOST_SHOWN]
            print("\n".join(f"    {line}" for line in shown), flush=True)
            ElementTree.SubElement(case, "failure", message=complaints[0]).text = "\n".join(shown)

    def write(self, junit: Path) -> None:
        """Write the JUnit file."""
        junit.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(self._suite).write(junit, encoding="unicode")
