# SPDX-License-Identifier: Apache-2.0
"""One fact about a machine, and how its small files are read."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fact:
    """One line of the report.

    Attributes
    ----------
    name
        Its subject.
    verdict
        ``"ok"``, ``"note"``, ``"problem"`` or ``"unknown"``.
    detail
        What was found, and what to do about it.

    """

    name: str
    verdict: str
    detail: str


def read(path: Path) -> str:
    """Return the text of one of the kernel's files; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
