# SPDX-License-Identifier: Apache-2.0
"""The output of the demo: progress while the engines run, and the table of their phases."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclasses.dataclass
class PhaseRow:
    """One line of the table: the requests of one phase on one engine."""

    engine: str
    phase: str
    num_prompts: int
    prompt_tokens: int
    engine_hit_tokens: int
    tier_hit_tokens: int
    ttft_s: float  # median
    load_tokens_per_s: float | None  # None: nothing was loaded
    tokens_identical: bool | None  # None: nothing to compare with

    @classmethod
    def of(
        cls,
        engine: str,
        phase: str,
        requests: list[dict[str, Any]],
        reference: list[dict[str, Any]] | None,
    ) -> PhaseRow:
        """Sum up the requests of a phase; `reference` holds those of the other engine."""
        loaded = [request for request in requests if request["tier_hit"]]
        load_s = sum(request["load_s"] for request in loaded)
        num_loaded = sum(request["tier_hit"] for request in loaded)
        identical = None
        if reference is not None:
            identical = [r["tokens"] for r in requests] == [r["tokens"] for r in reference]
        return cls(
            engine=engine,
            phase=phase,
            num_prompts=len(requests),
            prompt_tokens=sum(request["prompt_tokens"] for request in requests),
            engine_hit_tokens=sum(request["engine_hit"] for request in requests),
            tier_hit_tokens=num_loaded,
            ttft_s=statistics.median(request["ttft_s"] for request in requests),
            load_tokens_per_s=num_loaded / load_s if load_s > 0 else None,
            tokens_identical=identical,
        )


class Progress:
    """A progress line that moves on a terminal; elsewhere, plain lines."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._started = time.monotonic()
        self._text = ""
        self._status = console.status("")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._status.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._status.stop()

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:3.0f} s"

    def _tick(self) -> None:
        while not self._ended.wait(0.25):
            self._status.update(f"{self._title}: {self._text} [dim]{self._elapsed()}[/dim]")

    def show(self, text: str) -> None:
        """Show what is going on."""
        self._text = text

    def log(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{self._title}: {text} [dim]({self._elapsed()})[/dim]")


def make_table(rows: list[PhaseRow]) -> Table:
    """Lay out the rows as a table."""
    table = Table(title="The same prompts on two vLLM engines")
    table.add_column("engine")
    table.add_column("phase")
    for header in (
        "prompt\ntokens",
        "hit in the\nengine's cache",
        "hit in\nthe tier",
        "time to\nfirst token",
        "tokens/s\nof the load",
        "tokens\nidentical",
    ):
        table.add_column(header, justify="right")
    for row in rows:
        load = row.load_tokens_per_s
        identical = {None: "", True: "[green]yes[/green]", False: "[bold red]NO[/bold red]"}
        table.add_row(
            row.engine,
            row.phase,
            f"{row.prompt_tokens:,}",
            f"{row.engine_hit_tokens:,}",
            f"[bold]{row.tier_hit_tokens:,}[/bold]" if row.tier_hit_tokens else "0",
            f"{row.ttft_s * 1000:,.0f} ms",
            f"{load:,.0f}" if load else "",
            identical[row.tokens_identical],
            end_section=row.phase == "return",
        )
    return table
