# SPDX-License-Identifier: Apache-2.0
"""A figure for the report of each subcommand of kvferry-bench and kvferry-lab. Needs matplotlib."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvferry.bench.drawing import (
    Span,
    add_legend,
    bars,
    byte_axis,
    distinct,
    lines,
    panels_of,
    series_names,
    span_of_rate,
)
from kvferry.bench.report import BenchReport, Row
from kvferry.errors import ConfigError

# Keys that distinguish rows of one direction.
TRANSFER = ("path", "threads", "memory", "device_ordinal", "numa_node", "placement", "fragment_bytes", "count")
LIMITED = (*TRANSFER, "limit_gb_per_s")


def figure_of(report: BenchReport) -> Figure:
    """Return the figure of a report; raises `ConfigError` for a subcommand that has none."""
    if report.subcommand not in FIGURES:
        raise ConfigError(f"{report.path}: there is no plot of {report.subcommand}, only of {', '.join(FIGURES)}")
    figure = FIGURES[report.subcommand](report)
    title = f"{report.program} {report.subcommand}\n{report.device}"
    if report.mismatch:
        title += f"\nDATA MISMATCH: {report.mismatch}"
    figure.suptitle(title, color="red" if report.mismatch else "black")
    return figure


def link(report: BenchReport) -> Figure:
    """Draw peak rates: bars by direction, a colour for each kind of memory and path."""
    figure, (axes,) = panels_of(1, len(report.rows))
    bars(axes, report.rows, "direction", TRANSFER, "gb_per_s", span_of_rate)
    axes.set_ylabel("GB/s")
    return figure


def copy(report: BenchReport) -> Figure:
    """Draw rates over fragment size: a panel for each direction, a line for each path, count and placement."""
    directions = distinct(report.rows, "direction")
    figure, panels = panels_of(len(directions), same_scale=True)
    for axes, direction in zip(panels, directions, strict=True):
        rows = [row for row in report.rows if row["direction"] == direction]
        names = ("path", "threads", "fragments", "placement")
        lines(axes, with_wanted_counts(rows), "fragment_bytes", names, "gb_per_s")
        add_peak(axes, report, direction)
        byte_axis(axes, "bytes of a fragment")
        axes.set(title=direction, ylabel="GB/s")
        add_legend(axes)
    return figure


def with_wanted_counts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the key ``fragments``, which has one value for each requested count.

    Large fragments have smaller counts (--max-set): their first count belongs to the line of the first requested
    count, and so on.
    """
    counts: dict[int | None, list[int]] = {}
    for row in rows:
        known = counts.setdefault(row["fragment_bytes"], [])
        if row["count"] not in known:
            known.append(row["count"])
    most = max(counts.values(), key=len)
    return [row | {"fragments": f"x {most[counts[row['fragment_bytes']].index(row['count'])]}"} for row in rows]


def pipeline(report: BenchReport) -> Figure:
    """Draw rates by direction; if other work ran at the same time, also how much it slowed down."""
    alone = [row for row in report.rows if row["slow_down_percent"] is None]
    beside = [row for row in report.rows if row["slow_down_percent"] is not None]
    figure, panels = panels_of(bool(alone) + bool(beside), max(len(alone), len(beside)))
    if alone:
        bars(panels[0], alone, "direction", LIMITED, "gb_per_s")
        panels[0].set_ylabel("GB/s")
    if beside:
        bars(panels[-1], beside, "direction", ("co_run", "limit_gb_per_s"), "slow_down_percent")
        panels[-1].set_ylabel("slow-down of the work at the same time, %")
    return figure


def meta(report: BenchReport) -> Figure:
    """Draw the cost per block by operation; a line marks the cost of a bare table, a triangle the goal.

    The thin lines go from the median to the 99th percentile.
    """
    figure, (axes,) = panels_of(1, len(report.rows))
    keys = ("temperature", "resident", "batch", "policy")
    places = bars(axes, report.rows, "operation", keys, "ns_per_block_p50", _from_median_to_p99("ns_per_block"))
    for value, mark, label in (("bare_ns_per_block", "_", "bare table"), ("goal_ns_per_block", "v", "goal")):
        known = [(place, report.rows[i][value]) for i, place in places.items() if report.rows[i][value] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), mark, color="black", label=label)
    axes.set_ylabel("ns per block")
    add_legend(axes)
    return figure


def share(report: BenchReport) -> Figure:
    """Draw what engines that share a tier do together, and how long their steps take."""
    figure, panels = panels_of(2, len(report.rows))
    for axes, value, span, label in (
        (panels[0], "steps_per_ms", None, "steps per ms, all engines together"),
        (panels[1], "ms_p50", _from_median_to_p99("ms"), "ms per step: median, and p99"),
    ):
        bars(axes, report.rows, "what", ("block_bytes",), value, span)
        axes.tick_params("x", rotation=90)
        axes.set_ylabel(label)
    return figure


def _from_median_to_p99(key: str) -> Span:
    """Return the function that finds these two figures of a row."""

    def span(row: Row) -> tuple[float, float] | None:
        median, p99 = row[f"{key}_p50"], row[f"{key}_p99"]
        return None if median is None or p99 is None else (median, p99)

    return span


def pin(report: BenchReport) -> Figure:
    """Draw how long pinned memory takes: a bar for each way to get it, divided into stages if they are known."""
    figure, (axes,) = panels_of(1)
    names = list(series_names(report.rows, ("memory", "pages", "threads", "piece_bytes")))
    left = [0.0] * len(names)
    for stage in ("populate_s", "register_s", "unregister_s"):
        seconds = [row[stage] or 0.0 for row in report.rows]
        axes.barh(range(len(names)), seconds, left=left, label=stage.removesuffix("_s"))
        left = [sum(pair) for pair in zip(left, seconds, strict=True)]
    rest = [max((row["total_s"] or 0.0) - known, 0.0) for row, known in zip(report.rows, left, strict=True)]
    axes.barh(range(len(names)), rest, left=left, label="the rest", color="lightgrey")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    add_legend(axes)
    return figure


def trace(report: BenchReport) -> Figure:
    """Draw loadable tokens and stored blocks over the tier's size, a line for each policy.

    Blocks have the same number of tokens, so a share of the blocks is one of the tokens. For synthetic traffic of one
    size: bars for each kind of traffic.
    """
    figure, panels = panels_of(2)
    for axes, value, label in zip(
        panels, ("loadable_hit_percent", "stored_blocks"), ("loadable tokens, %", "stored blocks"), strict=True
    ):
        if len(distinct(report.rows, "capacity_gb")) > 1:
            lines(axes, report.rows, "capacity_gb", ("policy", "traffic"), value)
            axes.set_xscale("log")
            axes.set_xlabel("tier, GB")
            add_legend(axes)
        else:
            bars(axes, report.rows, "traffic", ("policy",), value)
            axes.tick_params("x", rotation=45)
        axes.set_ylabel(label)
    return figure


def add_peak(axes: Axes, report: BenchReport, direction: str) -> None:
    """Draw the peak to which the percentages of a direction refer."""
    if peak := report.peaks.get(f"{direction}_gb_per_s"):
        axes.axhline(peak, linestyle="--", color="grey", label="link peak")


FIGURES: dict[str, Callable[[BenchReport], Figure]] = {
    "link": link,
    "copy": copy,
    "pipeline": pipeline,
    "meta": meta,
    "share": share,
    "pin": pin,
    "trace": trace,
}
