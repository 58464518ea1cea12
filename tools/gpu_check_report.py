# SPDX-License-Identifier: Apache-2.0
"""The report of a GPU check: JSON and Markdown files that are complete at every moment, and one archive of the logs."""

import contextlib
import dataclasses
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_check_goals import judge
from gpu_check_machine import Facts
from gpu_check_steps import Outcome

Json = dict[str, Any]
SCHEMA = 2
CLEAN = ("passed", "not applicable")
#: Bytes that the archive takes from the end of each log.
MOST_LOG_BYTES = 1 << 20
#: Columns of the rows that the table of figures off the model shows.
ROW_COLUMNS = (
    "direction", "path", "fragment_bytes", "piece_bytes", "co_run", "limit_gb_per_s", "gb_per_s", "expected_gb_per_s",
    "bound_by", "slow_down_percent", "expected_slow_down_percent", "off_model",
)  # fmt: skip


class Report:
    """What is known so far; `save` writes it, and a reader never sees half a file.

    Parameters
    ----------
    folder
        Where the files go: ``<date>-<gpu>.json``, ``.md`` and ``-logs.tar.gz``. The name of the back end stands for
        the GPU until the GPU is known.
    backend, call
        The back end that this call checks, and which of the calls it is.
    planned
        Steps of this call, in order.
    earlier
        A report to add to. A step that is planned again replaces the earlier one.

    """

    def __init__(self, folder: Path, backend: str, call: Json, planned: list[str], earlier: Json | None = None) -> None:
        self._folder = folder
        self._backend = backend
        self._date = earlier["date"] if earlier else time.strftime("%Y-%m-%d")
        self._calls: list[Json] = [*(earlier["calls"] if earlier else []), call]
        self.machine: Facts = {name: (fact["value"], fact["source"]) for name, fact in
                               (earlier["machine"] if earlier else {}).items()}  # fmt: skip
        self.steps: dict[str, Outcome] = {
            step["name"]: Outcome(**step) for step in (earlier["steps"] if earlier else [])
        }
        self.steps |= {name: Outcome(name) for name in planned}
        self._written: list[Path] = []

    @property
    def name(self) -> str:
        """Return ``<date>-<gpu>``, the beginning of all file names."""
        gpu = self.machine.get("gpu", (self._backend, ""))[0]
        return f"{self._date}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}"

    def to_json(self) -> Json:
        """Return the report as it is written."""
        steps = [dataclasses.asdict(step) for step in self.steps.values()]
        return {
            "schema": SCHEMA,
            "backend": self._backend,
            "date": self._date,
            "calls": self._calls,
            "clean": all(step["result"] in CLEAN for step in steps),
            "machine": {name: {"value": value, "source": source} for name, (value, source) in self.machine.items()},
            "steps": steps,
            "goals": judge(steps),
        }

    def save(self) -> list[Path]:
        """Write JSON and Markdown; return their paths."""
        report = self.to_json()
        texts = {
            self._folder / f"{self.name}.json": json.dumps(report, indent=1, ensure_ascii=False) + "\n",
            self._folder / f"{self.name}.md": markdown(report),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            replace(path, text.encode())
        for path in self._written:
            if path not in texts:
                path.unlink(missing_ok=True)
        self._written = list(texts)
        return self._written

    def archive(self, logs: Path) -> Path:
        """Put the ends of all logs into one file beside the report; return its path."""
        text = io.BytesIO()
        with tarfile.open(fileobj=text, mode="w:gz") as tar:
            for log in sorted(path for path in logs.glob("*") if path.is_file()):
                content = log.read_bytes()[-MOST_LOG_BYTES:]
                entry = tarfile.TarInfo(f"logs/{log.name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        path = self._folder / f"{self.name}-logs.tar.gz"
        replace(path, text.getvalue())
        return path


def replace(path: Path, content: bytes) -> None:
    """Replace a file so that its name always leads to a complete one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def load(path: Path) -> Json:
    """Read a report.

    Raises
    ------
    ValueError
        If it is none, or of another schema.

    """
    report: Json = json.loads(path.read_text())
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no report of schema {SCHEMA}")
    return report


# ---- for people ----


def markdown(report: Json) -> str:
    """Write the report as text; failures and results come before the details of the steps."""
    gpu = report["machine"].get("gpu", {"value": report["backend"]})["value"]
    steps = report["steps"]
    blocks = [
        [f"# GPU check: {gpu}, {report['date']}", "", verdict(steps)],
        table("Steps", ("step", "result", "seconds", ""), [
            (step["name"], step["result"], f"{step['seconds']:.0f}", step["detail"]) for step in steps
        ]),
        facts_table(steps),
        goals_table(report["goals"], report["backend"]),
        off_model_table(steps),
        pieces_table(steps),
        table("Machine", ("", "", "read from"), [
            (name, fact["value"], fact["source"]) for name, fact in report["machine"].items()
        ]),
        table("Calls", ("call", "began", "deadline", "ended"), [
            (call["call"], call["began"], f"{call['deadline_s']:.0f} s", call.get("ended", "NOT ENDED"))
            for call in report["calls"]
        ]),
        ["## Commands", "", *(f"- {step['name']}: `{step['command']}`" for step in steps if step["command"])],
        *(
            [f"### The end of {step['name']}", "", "```", *step["tail"], "```"]
            for step in steps if step["tail"]
        ),
    ]  # fmt: skip
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(steps: list[Json]) -> str:
    """Say in one paragraph whether all is well."""
    by_result: dict[str, list[str]] = {}
    for step in steps:
        if step["result"] not in CLEAN:
            by_result.setdefault(step["result"], []).append(step["name"])
    if not by_result:
        return "Clean: every step passed."
    parts = (f"{result.capitalize()}: {', '.join(names)}." for result, names in by_result.items())
    return " ".join(("NOT clean.", *parts))


def table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table; none if it has no row."""
    if not rows:
        return []
    lines = [f"## {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]


def cell(text: str) -> str:
    """Return text that fits into a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def number(value: Any) -> str:
    """Return a figure of a row as text."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def figure(value: Any, unit: str) -> str:
    """Return a figure with its unit; empty if there is none."""
    return f"{number(value)} {unit}".strip() if value is not None else ""


def facts_table(steps: list[Json]) -> list[str]:
    """Return what the smoke test found."""
    facts: list[Json] = next((step["data"].get("facts", []) for step in steps if step["name"] == "smoke"), [])
    rows = [
        (fact["result"], fact["fact"], " ".join(filter(None, (fact["detail"], figure(fact["value"], fact["unit"])))))
        for fact in facts
    ]
    return table("What the GPU answered", ("", "fact", ""), rows)


def goals_table(goals: list[Json], backend: str) -> list[str]:
    """Return the figures next to the goals."""
    met = {True: "yes", False: "NO", None: ""}
    rows = [
        (goal["what"], goal["goal"], figure(goal["measured"], goal["unit"]), met[goal["met"]], goal["source"])
        for goal in goals
    ]
    lines = table("Figures against the goals", ("what", "goal", "measured", "met", "of"), rows)
    lines += ["", "A share of the peak is that of the best way across the link at the worst size and direction."]
    return lines if backend in ("cuda", "hip") else [*lines, f"No figure of {backend} means anything."]


def bench_rows(steps: list[Json], prefix: str = "bench-") -> list[tuple[str, Json]]:
    """Return the rows of all benches with the names of their steps."""
    return [(s["name"], row) for s in steps if s["name"].startswith(prefix) for row in s["data"].get("rows", [])]


def off_model_table(steps: list[Json]) -> list[str]:
    """Return the rows that differ from what the performance model expects (docs/bench/model.md)."""
    rows = [(name, row) for name, row in bench_rows(steps) if row.get("off_model")]
    return table("Rows off the model", ("step", *ROW_COLUMNS), [
        (name, *(number(row.get(column)) for column in ROW_COLUMNS)) for name, row in rows
    ])  # fmt: skip


def pieces_table(steps: list[Json]) -> list[str]:
    """Return the rates by size of piece, from which a default is chosen."""
    rows = [row for _, row in bench_rows(steps, "bench-pieces")]
    return table("Rate by piece", ("direction", "piece MiB", "GB/s", "% of peak"), [
        (str(row.get("direction")), number(row["piece_bytes"] / 2**20), number(row.get("gb_per_s")),
         number(row.get("percent_of_peak")))
        for row in rows if row.get("piece_bytes")
    ])  # fmt: skip
