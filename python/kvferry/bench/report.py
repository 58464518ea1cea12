# SPDX-License-Identifier: Apache-2.0
"""The JSON reports of kvferry-bench and kvferry-lab, checked when they are read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.errors import ConfigError

# kReportSchema of the bench's report/write_report.hpp.
SCHEMA = 1
PROGRAMS = ("kvferry-bench", "kvferry-lab")

Row = dict[str, Any]


@dataclass(frozen=True)
class BenchReport:
    """One run of a subcommand. Keys of ``rows`` and ``peaks`` carry their units; GB is 1e9 bytes."""

    path: Path
    program: str
    subcommand: str
    device: str
    rows: list[Row]
    #: ``h2d_gb_per_s``, ``d2h_gb_per_s``, ``both_gb_per_s``; empty if nothing refers to the link.
    peaks: dict[str, float]
    #: The first wrong byte; empty if all bytes were verified.
    mismatch: str


def read_report(path: Path) -> BenchReport:
    """Read a report; raises `ConfigError` if the file is not a report, or has an unknown schema."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a report of {' or '.join(PROGRAMS)} (--json): {error}") from error
    if not isinstance(content, dict) or content.get("program") not in PROGRAMS:
        raise ConfigError(f'{path} is not a report of {" or ".join(PROGRAMS)}: its "program" is neither')
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} has schema {content.get('schema')}, and this kvferry reads {SCHEMA}: "
            f"use the kvferry version of the {content['program']} that wrote it"
        )
    if not content["rows"]:
        raise ConfigError(f"{path} has no rows: nothing was measured")
    return BenchReport(
        path=path,
        program=content["program"],
        subcommand=content["subcommand"],
        device=content["device"],
        rows=content["rows"],
        peaks=content["peaks"] or {},
        mismatch=content["mismatch"] or "",
    )
