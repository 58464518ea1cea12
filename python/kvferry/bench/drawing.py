# SPDX-License-Identifier: Apache-2.0
"""Bars, lines and axes over the rows of a report. Needs matplotlib."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvferry.bench.report import Row

PANEL_INCHES = (6.4, 4.8)
# The room that a bar with its label needs, and how many bars have room for labels that lie.
BAR_INCHES = 0.2
MOST_LYING_LABELS = 12
# How counts are written whose number alone would not explain them.
UNITS = {"threads": "{} threads", "numa_node": "node {}", "device_ordinal": "device {}", "batch": "batches of {}"}


def panels_of(count: int, num_bars: int = 0, *, same_scale: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels side by side, with room for `num_bars` in each, on one scale if wanted."""
    width = max(PANEL_INCHES[0], BAR_INCHES * num_bars)
    figure = Figure(figsize=(width * count, PANEL_INCHES[1]), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=same_scale)[0])


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """Return the distinct values of a key, in the order of the rows."""
    return list(dict.fromkeys(row[key] for row in rows))


def series_names(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Name each row by the keys in which the rows differ; by the first key if they do not."""
    telling = [key for key in keys if len(distinct(rows, key)) > 1] or [keys[0]]
    return [", ".join(value_text(key, row[key]) for key in telling if row[key] is not None) or "-" for row in rows]


def series_of(rows: Sequence[Row], keys: Sequence[str]) -> dict[str, list[Row]]:
    """Return the rows by their names."""
    series: dict[str, list[Row]] = {}
    for name, row in zip(series_names(rows, keys), rows, strict=True):
        series.setdefault(name, []).append(row)
    return series


#: A row's least and largest value; None if it does not have both.
Span = Callable[[Row], tuple[float, float] | None]


def bars(
    axes: Axes, rows: Sequence[Row], group: str, keys: Sequence[str], value: str, span: Span | None = None
) -> dict[int, float]:
    """Draw a bar for each row: one cluster for each value of ``group``, one colour for each value of ``keys``.

    A thin line on a bar goes from the least to the largest value, if ``span`` knows them. Returns the position of each
    row's bar, by the row's index in ``rows``.
    """
    stands = len(rows) > MOST_LYING_LABELS
    groups = distinct(rows, group)
    series = series_of(rows, keys)
    width = 0.8 / len(series)
    places: dict[int, float] = {}
    index = {id(row): i for i, row in enumerate(rows)}
    for i, (name, members) in enumerate(series.items()):
        middles = [groups.index(row[group]) + (i - (len(series) - 1) / 2) * width for row in members]
        drawn = axes.bar(middles, [row[value] or 0 for row in members], width, label=name)
        axes.bar_label(drawn, fmt="%.3g", fontsize="x-small", rotation=90 if stands else 0, padding=2)
        for row, middle in zip(members, middles, strict=True):
            if span and (ends := span(row)):
                axes.vlines(middle, *ends, color="black", linewidth=0.8)
        places |= {index[id(row)]: middle for row, middle in zip(members, middles, strict=True)}
    texts = [value_text(group, name) for name in groups]
    axes.set_xticks(range(len(groups)), texts)
    if sum(map(len, texts)) > 60:
        axes.tick_params("x", rotation=90 if len(groups) > MOST_LYING_LABELS else 30)
    axes.margins(y=0.18 if stands else 0.08)
    if len(series) > 1:
        add_legend(axes)
    return places


def span_of_rate(row: Row) -> tuple[float, float] | None:
    """Return the rates of a row's slowest transfers (the 99th percentile of their times) and of its fastest one."""
    least, middle, most = (row.get(f"transfer_us_{name}") for name in ("min", "p50", "p99"))
    if not (least and middle and most):
        return None
    return row["gb_per_s"] * middle / most, row["gb_per_s"] * middle / least


def lines(axes: Axes, rows: Sequence[Row], x: str, keys: Sequence[str], y: str) -> None:
    """Draw a line for each value of ``keys``."""
    for name, members in series_of(rows, keys).items():
        ordered = sorted((row for row in members if row[x] is not None), key=lambda row: row[x])
        axes.plot([row[x] for row in ordered], [row[y] for row in ordered], "o-", label=name, alpha=0.8)
    axes.set_ylim(bottom=0)


def add_legend(axes: Axes) -> None:
    """Put the legend above the panel, where it hides neither bars nor the labels of the axis."""
    names = axes.get_legend_handles_labels()[1]
    columns = 3 if max(map(len, names), default=0) < 24 else 2
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=columns)


def byte_axis(axes: Axes, label: str) -> None:
    """Label the x axis with sizes in bytes."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.set_xlabel(label)


def value_text(key: str, value: Any) -> str:
    """Return a value as text for people; the key names its unit."""
    if key == "limit_gb_per_s":
        return f"limit {value:g} GB/s"
    if key.endswith("_bytes"):
        return bytes_text(value)
    if key in UNITS:
        return UNITS[key].format(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def bytes_text(value: float) -> str:
    """Return a size in the largest binary unit that it fills."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:g} {unit}"
        value /= 1024
    return f"{value:g} GiB"
