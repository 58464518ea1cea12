# SPDX-License-Identifier: Apache-2.0
"""``kvferry tier``: lists this node's tiers, shows what shared tiers hold, resizes the tiers of single engines."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry import engines, tiers
from kvferry.errors import ConfigError, Error
from kvferry.sizes import ALLOWED, format_size, parse_size

if TYPE_CHECKING:
    from rich.console import Console

tier = typer.Typer(help="Look at the tiers of this node, and resize one.", no_args_is_help=True)

_Path = Annotated[str, typer.Argument(help="The tier's shared_path.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@tier.command("ls")
def list_tiers(
    directory: Annotated[
        str | None, typer.Argument(help=f"Directory to search. Default: {' and '.join(tiers.USUAL_PLACES)}.")
    ] = None,
) -> None:
    """List the tiers of this user: tiers that engines share, and tiers of single engines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if directory is not None and not Path(directory).is_dir():
        raise ConfigError(f"{tiers.shown(directory)} is not a directory; name one that has tiers, such as /dev/shm")
    table = Table("path", "capacity", "taken", "ranks", "instances", "readable slots")
    for path in tiers.find(tiers.USUAL_PLACES if directory is None else [directory]):
        # Plain text: rich would read brackets in a path as markup.
        table.add_row(*(Text(cell) for cell in (tiers.shown(path), *_row(path))))
    console = Console(highlight=False)
    console.print(table if table.rows else "no shared tier")
    if directory is not None:
        return
    own = Table("engine", "model", "size", "target", "limit", "notes")
    for engine in engines.living():
        own.add_row(*(Text(cell) for cell in _row_of_engine(engine.state)))
    console.print(own if own.rows else "no engine with a tier of its own")


def _row_of_engine(state: engines.TierState) -> tuple[str, ...]:
    each = " per rank" if state.is_per_rank else ""
    sizes = (state.num_bytes, state.target_bytes, state.limit_bytes)
    rest = state.why_fixed or "; ".join(engines.texts_of(state))
    return (str(state.pid), state.model, *(format_size(size) + each for size in sizes), rest)


@tier.command("resize")
def resize_tier(
    size: Annotated[str, typer.Argument(help="The new value of cpu_bytes_to_use, such as '48GiB'.")],
    engine: Annotated[int | None, typer.Option("--engine", help="The engine's number in `kvferry tier ls`.")] = None,
    wait: Annotated[float, typer.Option("--wait", help="Most seconds to wait until it is done.", min=0)] = 60.0,
) -> None:
    """Make the tier of a single engine smaller or larger while it serves.

    Exits with 0 when the tier has that size, and with 1 when work is left to do; the engine continues with it.
    """
    num_bytes = parse_size(size)
    if not num_bytes:
        raise ConfigError(f"{size!r} is not a size; allowed is {ALLOWED}, more than zero; write for example 48GiB")
    found = _engine_of(engine)
    request = found.ask(num_bytes)
    is_done = found.wait(request, wait)
    state = found.state
    each = " per rank" if state.is_per_rank else ""
    print(f"engine {state.pid}: the tier has {format_size(state.num_bytes)}{each}")
    for line in engines.texts_of(state):
        print(f"  {line}")
    if state.request != request:
        print(
            "  the engine has not seen this yet: it checks in its steps, and makes none while it rests. It will resize "
            "its tier with its next request"
        )
    if not is_done or state.is_blocked or state.failure:
        raise typer.Exit(1)


def _engine_of(pid: int | None) -> engines.Engine:
    living = engines.living()
    named = [each for each in living if pid in {None, each.state.pid}]
    if len(named) == 1:
        return named[0]
    shown = ", ".join(f"{each.state.pid} ({each.state.model})" for each in living)
    if pid is not None:
        raise ConfigError(
            f"--engine is {pid}; engines of this user with a tier of their own: {shown or 'none'}; "
            "kvferry tier ls shows them"
        )
    if living:
        raise ConfigError(f"several engines of this user have a tier of their own: {shown}; name one by --engine")
    raise ConfigError(
        "no engine of this user has a tier of its own here; an engine is visible after its first step, to its own user "
        "and in its own container; a shared tier cannot be resized: stop its engines and start them with another "
        "cpu_bytes_to_use"
    )


@tier.command("inspect")
def inspect_tier(path: _Path, as_json: _Json = False) -> None:
    """Show the contents of a shared tier."""
    found = tiers.inspect(path)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return
    from rich.console import Console

    _show(Console(highlight=False), found)


@tier.command("rm")
def remove_tier(path: _Path) -> None:
    """Remove a shared tier that no engine uses."""
    tiers.remove(path)


def _row(path: str) -> tuple[str, ...]:
    try:
        found = tiers.inspect(path)
    except Error as error:
        return ("", "", "", "", str(error))
    figures = found.figures
    return (
        format_size(figures["capacity_bytes"]),
        format_size(figures["reserved_bytes"]),
        str(figures["num_ranks"]),
        "none: from before the last boot" if found.is_stale else str(found.num_living),
        str(figures["slots/readable"]),
    )


def _show(console: "Console", found: tiers.Tier) -> None:
    from rich.table import Table
    from rich.text import Text

    figures = found.figures
    table = Table(title=Text(tiers.shown(found.path)), title_justify="left", title_style="bold", show_header=False)

    def add_row(name: str, told: str) -> None:
        table.add_row(Text(name), Text(told))

    add_row("made by", found.made_by + (", before the last boot" if found.is_stale else ""))
    add_row("capacity", f"{format_size(figures['capacity_bytes'])} on {figures['num_ranks']} ranks")
    add_row("allocated memory", format_size(figures["reserved_bytes"]))
    add_row(
        "chunks",
        f"{figures['num_chunks']} of {format_size(figures['chunk_bytes'])} on each rank; without an owner: "
        f"{figures['num_empty_chunks']} empty, {figures['num_orphan_chunks']} with blocks of ended engines",
    )
    states = {name.removeprefix("slots/"): count for name, count in figures.items() if name.startswith("slots/")}
    add_row("slots", ", ".join(f"{count} {name}" for name, count in states.items()))
    for instance in found.instances:
        add_row(
            f"instance {instance.name}",
            f"{'alive' if instance.is_alive else 'ended'}, {instance.num_chunks} chunks, weight {instance.weight}, "
            f"name space {instance.name_space:016x}",
        )
    console.print(table)
