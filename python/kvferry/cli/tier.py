# SPDX-License-Identifier: Apache-2.0
"""``kvferry tier``: lists this node's tiers, shows what shared tiers hold, resizes the tiers of single engines."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry import engines, tiers
from kvferry.cli.console import console
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
    as_json: _Json = False,
) -> None:
    """List the tiers of this user: tiers that engines share, and tiers of single engines."""
    if directory is not None and not Path(directory).is_dir():
        raise ConfigError(f"{tiers.shown(directory)} is not a directory; name one that has tiers, such as /dev/shm")
    shared = [_looked_at(path) for path in tiers.find(tiers.USUAL_PLACES if directory is None else [directory])]
    own = [engine.state for engine in engines.living()] if directory is None else []
    if as_json:
        told = {
            "shared": [
                {"path": path, "error": str(found)} if isinstance(found, Error) else dataclasses.asdict(found)
                for path, found in shared
            ],
            "engines": [*map(dataclasses.asdict, own)],
        }
        print(json.dumps(told, indent=2))
        return
    # Plain lines, because a table of the terminal's width would cut paths or break them.
    for path, found in shared:
        print(tiers.shown(path))
        print(f"    {found if isinstance(found, Error) else _summary(found)}")
    if not shared:
        print("no shared tier")
    for state in own:
        print(f"engine {state.pid}: {state.model}")
        for line in _summary_of_engine(state):
            print(f"    {line}")
    if directory is None and not own:
        print("no engine with a tier of its own")


def _looked_at(path: str) -> tuple[str, tiers.Tier | Error]:
    try:
        return path, tiers.inspect(path)
    except Error as error:
        return path, error


def _summary(found: tiers.Tier) -> str:
    figures = found.figures
    instances = (
        "from before the last boot" if found.is_stale else _number(found.num_living, "living engine", "living engines")
    )
    return "; ".join(
        (
            f"{format_size(figures['capacity_bytes'])}, {format_size(figures['reserved_bytes'])} of it allocated",
            _number(figures["num_ranks"], "rank", "ranks"),
            instances,
            _number(figures["slots/readable"], "readable slot", "readable slots"),
        )
    )


def _number(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _summary_of_engine(state: engines.TierState) -> Iterator[str]:
    each = " per rank" if state.is_per_rank else ""
    size, target, limit = map(format_size, (state.num_bytes, state.target_bytes, state.limit_bytes))
    yield f"size {size}{each}, target {target}{each}, limit {limit}{each}"
    if state.why_fixed:
        yield f"cannot be resized: {state.why_fixed}"
    else:
        yield from engines.texts_of(state)


@tier.command("resize")
def resize_tier(
    size: Annotated[str, typer.Argument(help="The new value of cpu_bytes_to_use, such as '48GiB'.")],
    engine: Annotated[int | None, typer.Option("--engine", help="The engine's process id (`kvferry tier ls`).")] = None,
    over: Annotated[
        float, typer.Option("--over", help="Seconds over which a tier shrinks evenly; 0: at once.", min=0, max=3600)
    ] = engines.SHRINK_S,
    wait: Annotated[float, typer.Option("--wait", help="Most seconds to wait after that.", min=0)] = 60.0,
) -> None:
    """Make the tier of a single engine smaller or larger while it serves.

    Exits with 0 when the tier has that size, and with 1 when work is left to do; the engine continues with it.
    """
    num_bytes = parse_size(size)
    if not num_bytes:
        raise ConfigError(f"{size!r} is not a size; allowed is {ALLOWED}, more than zero; write for example 48GiB")
    found = _engine_of(engine)
    request = found.ask(num_bytes, over)
    is_done = found.wait(request, wait + over)
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
    _show(console(), found)


@tier.command("rm")
def remove_tier(path: _Path) -> None:
    """Remove a shared tier that no engine uses."""
    tiers.remove(path)


def _show(target: "Console", found: tiers.Tier) -> None:
    from rich.table import Table
    from rich.text import Text

    figures = found.figures
    # Not as the table's title, which would be wrapped at the table's width.
    target.print(Text(tiers.shown(found.path), "bold"), soft_wrap=True)
    table = Table(show_header=False)

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
    target.print(table)
