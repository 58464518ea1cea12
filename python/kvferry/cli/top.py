# SPDX-License-Identifier: Apache-2.0
"""``kvferry top``: what this user's engines on this node do now."""

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry import _core, engines, recordings
from kvferry.activity import Activity, ActivityReader
from kvferry.cli.console import console
from kvferry.errors import ResourceError
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclasses.dataclass
class _Followed:
    found: recordings.Found
    reader: ActivityReader
    now: Activity


class _Node:
    """The engines of this user that record."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._readers: dict[str, ActivityReader] = {}

    def read(self) -> list[_Followed]:
        """Read what is new of each engine that lives."""
        followed = []
        for found in recordings.find():
            if not found.is_alive:
                continue
            try:
                path = str(found.path)
                reader = self._readers.setdefault(path, ActivityReader(path, self._span_s))
                followed.append(_Followed(found, reader, reader.read(time.monotonic_ns())))
            except (_core.RecordingError, ResourceError):  # it has just ended
                self._readers.pop(str(found.path), None)
        return followed


def top(
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds that the figures are for.", min=0.1)] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
) -> None:
    """Show what the engines of this user on this node do: requests, loads, stores, and the slowest loads.

    It reads what they record, and costs them nothing. Ends with Ctrl-C.
    """
    node = _Node(seconds)
    if as_json:
        print(json.dumps([_plain(one) for one in node.read()], indent=2))
        return
    from rich.live import Live

    target = console()
    if once:
        target.print(_drawn(node.read()))
        return
    with Live(_drawn(node.read()), console=target, screen=target.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(1.0)
                live.update(_drawn(node.read()), refresh=True)
        except KeyboardInterrupt:
            pass


def _plain(one: _Followed) -> dict[str, object]:
    return {"engine": one.found.pid, "model": one.found.model, **dataclasses.asdict(one.now)}


def _drawn(followed: list[_Followed]) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not followed:
        return Text("no engine of this user records here; an engine does unless its recorder_bytes is 0")
    sizes = {engine.state.pid: format_size(engine.state.num_bytes) for engine in engines.living()}
    table = Table(
        "engine", "model", "tier", "blocks", "requests", "req/s", "loads/s", "loaded tok/s", "loading", "failed",
        "stored blk/s", "evicted blk/s", "skipped blk/s",
    )  # fmt: skip
    slow = Table("engine", "request", "tokens", "load took")
    for one in followed:
        now = one.now

        def rate(number: int, now: Activity = now) -> str:
            return f"{number / now.seconds:,.1f}"

        cells = (
            str(one.found.pid), one.found.model, sizes.get(one.found.pid, "shared"),
            "?" if now.readable_blocks is None else f"{now.readable_blocks:,}", f"{now.num_running:,}",
            rate(now.num_requests), rate(now.num_loads), rate(now.loaded_tokens), f"{now.num_loads_under_way:,}",
            f"{now.failed_loads:,}", rate(now.stored_blocks), rate(now.evicted_blocks), rate(now.skipped_blocks),
        )  # fmt: skip
        table.add_row(*(Text(cell) for cell in cells))
        for load in now.slowest:
            about = (str(one.found.pid), load.request, f"{load.num_tokens:,}", f"{load.seconds * 1e3:,.1f} ms")
            slow.add_row(*(Text(cell) for cell in about))
    return Group(table, Text("slowest loads"), slow) if slow.row_count else table
