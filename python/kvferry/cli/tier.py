# SPDX-License-Identifier: Apache-2.0
"""``kvferry tier``: the tiers that engines of this node share, what is in them, and how to be rid of one."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry import tiers
from kvferry.errors import ConfigError, Error
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console

tier = typer.Typer(help="Look at the tiers that engines of this node share.", no_args_is_help=True)

_Path = Annotated[str, typer.Argument(help="The tier's shared_path.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@tier.command("ls")
def list_tiers(
    directory: Annotated[
        str | None, typer.Argument(help=f"Where to look. Without: {' and '.join(tiers.USUAL_PLACES)}.")
    ] = None,
) -> None:
    """List the tiers of this user."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if directory is not None and not Path(directory).is_dir():
        raise ConfigError(f"{tiers.shown(directory)} is no directory; name one that has tiers in it, such as /dev/shm")
    table = Table("path", "capacity", "taken", "ranks", "instances", "readable slots")
    for path in tiers.find(tiers.USUAL_PLACES if directory is None else [directory]):
        # Not as markup, of which brackets in a path would be taken for a part.
        table.add_row(*(Text(cell) for cell in (tiers.shown(path), *_row(path))))
    Console(highlight=False).print(table if table.rows else "no shared tier")


@tier.command("inspect")
def inspect_tier(path: _Path, as_json: _Json = False) -> None:
    """Show what is in a tier."""
    found = tiers.inspect(path)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return
    from rich.console import Console

    _show(Console(highlight=False), found)


@tier.command("rm")
def remove_tier(path: _Path) -> None:
    """Remove a tier that no engine uses."""
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
        "none: of an earlier run of the machine" if found.is_stale else str(found.num_living),
        str(figures["slots/readable"]),
    )


def _show(console: "Console", found: tiers.Tier) -> None:
    from rich.table import Table
    from rich.text import Text

    figures = found.figures
    table = Table(title=Text(tiers.shown(found.path)), title_justify="left", title_style="bold", show_header=False)

    def add_row(name: str, told: str) -> None:
        table.add_row(Text(name), Text(told))

    add_row("made by", found.made_by + (", in an earlier run of the machine" if found.is_stale else ""))
    add_row("capacity", f"{format_size(figures['capacity_bytes'])} on {figures['num_ranks']} ranks")
    add_row("taken of the machine", format_size(figures["reserved_bytes"]))
    add_row(
        "chunks",
        f"{figures['num_chunks']} of {format_size(figures['chunk_bytes'])} on each rank; nobody's: "
        f"{figures['num_empty_chunks']} empty, {figures['num_orphan_chunks']} with what engines left",
    )
    states = {name.removeprefix("slots/"): count for name, count in figures.items() if name.startswith("slots/")}
    add_row("slots", ", ".join(f"{count} {name}" for name, count in states.items()))
    for instance in found.instances:
        add_row(
            f"instance {instance.name}",
            f"{'lives' if instance.is_alive else 'is gone'}, {instance.num_chunks} chunks, weight {instance.weight}, "
            f"name space {instance.name_space:016x}",
        )
    console.print(table)
