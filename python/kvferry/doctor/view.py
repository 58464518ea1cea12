# SPDX-License-Identifier: Apache-2.0
"""How ``kvferry doctor`` prints its findings."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvferry.doctor.fact import Fact
from kvferry.doctor.findings import Findings
from kvferry.doctor.verdict import Verdict
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from kvferry.vllm.model_report import ModelReport

_GOOD, _BAD, _FAINT = "green", "bold red", "dim"


def show(
    console: Console,
    findings: Findings,
    pinned: Sequence[Fact],
    verdict: Verdict | None,
    model: "ModelReport | None" = None,
) -> None:
    """Print everything, the verdicts first."""
    if verdict is None and model is None:
        console.print(_machine(findings))
    if verdict is not None:
        console.print(_verdict(verdict))
    if model is not None:
        console.print(_model(model))
    console.print(_table("Versions", _versions(findings)))
    console.print(_table("Back ends", _backends(findings)))
    console.print(_table("Host memory", [*_facts(pinned), *_memory(findings)]))
    console.print(_table("NUMA nodes", _nodes(findings)))
    console.print(_table("GPUs", _facts(findings.gpus)))


def _table(title: str, rows: Iterable[tuple[str, RenderableType]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, expand=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, told in rows:
        # Plain text: rich would read brackets as markup.
        table.add_row(Text(name), Text(told) if isinstance(told, str) else told)
    return table


def _versions(findings: Findings) -> Iterable[tuple[str, RenderableType]]:
    for name, version in findings.versions.items():
        yield name, version or Text("not installed", _FAINT)
    yield from _facts([findings.plugin])


def _backends(findings: Findings) -> Iterable[tuple[str, RenderableType]]:
    for name, why_not in findings.backends.items():
        yield name, Text(why_not, _FAINT) if why_not else Text("available", _GOOD)


def _memory(findings: Findings) -> Iterable[tuple[str, RenderableType]]:
    shared = findings.shared_memory
    if shared is None:
        yield "/dev/shm", Text("none: engines that start together cannot see how much the others were granted", _BAD)
    else:
        text = f"{format_size(shared.free_bytes)} of {format_size(shared.size_bytes)} free"
        yield "/dev/shm", text if shared.is_writable else Text(f"{text}, and not writable", _BAD)
    pool = findings.huge_pages
    yield (
        "pool of huge pages",
        f"{pool.num_free} of {pool.num_total} pages of {format_size(pool.page_bytes)} free"
        + (f", {pool.num_more} more on demand" if pool.num_more else ""),
    )


def _nodes(findings: Findings) -> Iterable[tuple[str, RenderableType]]:
    if findings.numa_nodes is None:
        yield "unknown", Text("the machine does not report them", _FAINT)
        return
    for node in findings.numa_nodes:
        yield str(node.number), f"{format_size(node.memory_bytes)}, {node.num_cpus} processors"


def _facts(facts: Iterable[Fact]) -> Iterable[tuple[str, RenderableType]]:
    styles = {"ok": _GOOD, "problem": _BAD, "unknown": _FAINT}
    for fact in facts:
        yield fact.name, Text.assemble((fact.verdict, styles.get(fact.verdict, "")), f": {fact.detail}")


def _machine(findings: Findings) -> RenderableType:
    if devices := findings.usable_devices:
        said = Text.assemble(("OK ", _GOOD), f"kvferry can use {' and '.join(devices)} here")
    else:
        said = Text.assemble(("NO GPU ", _BAD), "is usable here; kvferry can serve vLLM's CPU build")
    return Group(said, Text("--config checks a configuration too, and --model a model", _FAINT))


def _model(model: "ModelReport") -> RenderableType:
    name = Text.assemble(("Model ", "bold"), f"{model.model}, {model.num_ranks} ranks of {model.engine}")
    if model.costs is None:
        return Group(name, Text.assemble(("REFUSED ", _BAD), model.refusal))
    from kvferry.vllm.block_costs import lines_of

    first, *others = (*lines_of(model.costs), *(f"note: {note}" for note in model.notes))
    return Group(name, Text.assemble(("OK ", _GOOD), first), *map(Text, others))


def _verdict(verdict: Verdict) -> RenderableType:
    if verdict.refusal:
        return Text.assemble(("REFUSED ", _BAD), verdict.refusal)
    said = Text.assemble(
        ("OK ", _GOOD),
        f"{format_size(verdict.bytes_per_rank)} {verdict.whose} in {verdict.pages} pages; "
        + (f"the machine has room for {format_size(verdict.room_bytes)}" if verdict.room_bytes else "all exist now"),
    )
    return Group(said, *(Text(f"note: {note}") for note in verdict.notes))
