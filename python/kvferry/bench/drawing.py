# SPDX-License-Identifier: Apache-2.0
"""Bars, lines and axes over the rows of a report. Needs matplotlib."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvferry.bench.report import Row

PANEL_INCHES = (6.4, 4.8)
# How counts are written whose number alone would not explain them.
UNITS = {"threads": "{} threads", "numa_node": "node {}", "device_ordinal": "device {}", "batch": "batches of {}"}


def panels_of(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels side by side."""
    figure = Figure(figsize=(PANEL_INCHES[0] * count, PANEL_INCHES[1]), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


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


def bars(axes: Axes, rows: Sequence[Row], group: str, keys: Sequence[str], value: str) -> dict[int, float]:
    """Draw a bar for each row: one cluster for each value of ``group``, one colour for each value of ``keys``.

    Returns the position of each row's bar, by the row's index in ``rows``.
    """
    groups = distinct(rows, group)
    series = series_of(rows, keys)
    width = 0.8 / len(series)
    places: dict[int, float] = {}
    index = {id(row): i for i, row in enumerate(rows)}
    for i, (name, members) in enumerate(series.items()):
        middles = [groups.index(row[group]) + (i - (len(series) - 1) / 2) * width for row in members]
        drawn = axes.bar(middles, [row[value] or 0 for row in members], width, label=name)
        axes.bar_label(drawn, fmt="%.3g", fontsize="x-small")
        places |= {index[id(row)]: middle for row, middle in zip(members, middles, strict=True)}
    axes.set_xticks(range(len(groups)), [value_text(group, name) for name in groups])
    if len(series) > 1:
        add_legend(axes)
    return places


def lines(axes: Axes, rows: Sequence[Row], x: str, keys: Sequence[str], y: str) -> None:
    """Draw a line for each value of ``keys``."""
    for name, members in series_of(rows, keys).items():
        ordered = sorted((row for row in members if row[x] is not None), key=lambda row: row[x])
        axes.plot([row[x] for row in ordered], [row[y] for row in ordered], "o-", label=name, alpha=0.8)
    axes.set_ylim(bottom=0)


def add_legend(axes: Axes) -> None:
    """Put the legend below the panel, so that it hides nothing."""
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)


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
