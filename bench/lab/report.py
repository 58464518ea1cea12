# SPDX-License-Identifier: Apache-2.0
"""Writes the table, and the samples as JSON."""

from math import expm1, log, sqrt
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from scenarios import NUM_IDLE

if TYPE_CHECKING:
    from family_lives import FamilyLives
    from lives import Results, Samples

OURS = "kvferry"
DENSE = "kvferry, dense"
STOCK = ("SimpleCPUOffload", "Offloading")
UNRECORDED = "unrecorded"
# With a model family, a life should cost at most the stock connector's cost divided by this number.
FAMILY_GOAL = 10


class Row(NamedTuple):
    """A line of the table.

    Attributes
    ----------
    scenario
        Key of the results.
    title
        Title for people.
    goal_us
        Most microseconds; None: no goal.
    reference_us
        The costs of the stock connectors, in the order of `STOCK`, on the quiet machine for which the goals were set.

    """

    scenario: str
    title: str
    goal_us: float | None
    reference_us: tuple[float, float] | None = None


ROWS = (
    Row("miss", "128k request, miss: its life", 1000, (12_900, 34_100)),
    Row("hit", "128k request, full hit: its life", 800, (13_000, 32_000)),
    Row("miss_evicting", "the same miss, tier full", 1500, (14_100, 44_600)),
    Row("decode", "decode step, 64 running", 30, (95, 366)),
    Row("empty", "empty step, a load under way", 10),
    Row("wait", "step, a 128k hit waits", 20, (5900, 3300)),
    Row("wait_evicting", "  the same, evictions between", 200, (5900, 3300)),
    Row("decode_idle", f"decode step, and {NUM_IDLE} idle", None),
)
_LIVES = ("miss", "hit", "miss_evicting")


def unit(ns: float) -> tuple[float, str]:
    """Return the unit in which to show a duration: its nanoseconds and its name."""
    return (1e6, "ms") if ns >= 1e6 else (1e3, "µs")


def number(value: float) -> str:
    """Write a number with three digits."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def duration(ns: float) -> str:
    """Write nanoseconds for people."""
    scale, name = unit(ns)
    return f"{number(ns / scale)} {name}"


def cell(samples: "Samples") -> str:
    """Write the median, and in brackets the least and the most."""
    scale, name = unit(samples.median_ns)
    middle, least, most = (number(ns / scale) for ns in (samples.median_ns, min(samples.ns), max(samples.ns)))
    return f"{middle} ({least}..{most}) {name}"


def ratio(stock_ns: float, ours_ns: float) -> str:
    """Write how many times our cost the stock connector's cost is."""
    return f"{stock_ns / ours_ns:.1f}x" if ours_ns > 0 else "-"


def share(recorded: "Samples", unrecorded: "Samples") -> str:
    """Write which share of the cost is the recorder's."""
    return f"{1 - unrecorded.median_ns / recorded.median_ns:+.1%}"


def render(results: "Results", request_ns: list[int]) -> Table:
    """Make the table."""
    table = Table(
        title="Scheduler-side cost of the connector's hooks, Python included: median (min..max) of one thread's time",
        caption="unrecorded: kvferry without its recorder; recorder: the recorder's share of kvferry's cost. "
        "ratio: stock / kvferry. scaled: kvferry's cost, divided by how much slower the stock connectors are "
        "here and now than on the quiet machine for which the goals were set (of the two, the smaller factor).",
    )
    table.add_column("what")
    table.add_column(OURS, justify="right", style="bold")
    for name in (UNRECORDED, "recorder"):
        table.add_column(name, justify="right")
    for name in STOCK:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
    for name in ("goal", "scaled", "met"):
        table.add_column(name, justify="right")
    for row in ROWS:
        found = results[row.scenario]
        cells = [row.title, cell(found[OURS]), cell(found[UNRECORDED]), share(found[OURS], found[UNRECORDED])]
        for name in STOCK:
            cells += [cell(found[name]), ratio(found[name].median_ns, found[OURS].median_ns)]
        table.add_row(*cells, *verdict(row, found))
    idle = [f"{idle_ns(results, name):+.0f} ns" for name in (OURS, *STOCK)]
    table.add_row("  of which for each idle request", idle[0], "", "", idle[1], "", idle[2])
    worst = [worst_call(results, name) for name in (OURS, *STOCK)]
    cells = [f"{duration(ns)}\n{hook}" for ns, hook in worst]
    ratios = [ratio(ns, worst[0][0]) for ns, _ in worst]
    table.add_row("worst single hook of a life", cells[0], "", "", cells[1], ratios[1], cells[2], ratios[2])
    table.add_section()
    table.add_row("for scale: vLLM's Request, hashed", duration(median(request_ns)))
    return table


def render_recorder(results: "Results") -> Table:
    """Make the table of what the recorder costs."""
    table = Table(
        title="The scheduler side with and without its recorder",
        caption="more: what the recorder adds, the geometric mean of the rounds' ratios with its 95 % interval. "
        "In a round both do the same, one after the other.",
    )
    table.add_column("what")
    for name in ("recorded", "unrecorded", "more", "by medians"):
        table.add_column(name, justify="right")
    added = []
    for row in ROWS:
        recorded, unrecorded = (results[row.scenario][name] for name in (OURS, UNRECORDED))
        # Of logarithms, because the mean of noisy ratios is above 1 even if both sides take the same time.
        ratios = [log(ours / others) for ours, others in zip(recorded.ns, unrecorded.ns, strict=True)]
        margin = 1.96 * stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
        added.append(expm1(mean(ratios)))
        by_medians = recorded.median_ns / unrecorded.median_ns - 1
        table.add_row(
            row.title, cell(recorded), cell(unrecorded), f"{added[-1]:+.1%} ± {margin:.1%}", f"{by_medians:+.1%}"
        )
    table.add_section()
    table.add_row("mean of the rows", "", "", f"{mean(added):+.1%}")
    return table


def render_families(families: "dict[str, FamilyLives]") -> Table:
    """Make the table of model families."""
    table = Table(
        title="The same lives with the KV cache groups of model families",
        caption=f"goal: at most 1/{FAMILY_GOAL} of each stock connector's cost.",
    )
    table.add_column("family")
    table.add_column("what")
    table.add_column(OURS, justify="right", style="bold")
    table.add_column(DENSE, justify="right")
    for name in STOCK:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
    table.add_column("met", justify="right")
    for family, lives in families.items():
        for scenario, title in (("miss", "miss"), ("hit", "full hit")):
            found = lives.results[scenario]
            cells = [family, title, cell(found[OURS]), cell(found[DENSE])]
            for name in STOCK:
                if name in found:
                    cells += [cell(found[name]), ratio(found[name].median_ns, found[OURS].median_ns)]
                else:
                    cells += ["refused", ""]
            stock_ns = [found[name].median_ns for name in STOCK if name in found]
            is_met = all(found[OURS].median_ns * FAMILY_GOAL <= ns for ns in stock_ns)
            table.add_row(*cells, "[green]yes[/]" if is_met else "[red]no[/]")
    return table


def verdict(row: Row, found: "dict[str, Samples]") -> tuple[str, str, str]:
    """Return the goal, our cost scaled to the speed of the goals' machine, and whether the goal is met."""
    if row.goal_us is None:
        return "", "", ""
    goal_ns, ours_ns = row.goal_us * 1e3, found[OURS].median_ns
    scaled_ns = None
    if row.reference_us is not None:
        speeds = [us * 1e3 / found[name].median_ns for us, name in zip(row.reference_us, STOCK, strict=True)]
        scaled_ns = ours_ns * min(1.0, max(speeds))
    met = "[red]no[/]"
    if ours_ns <= goal_ns:
        met = "[green]yes[/]"
    elif scaled_ns is not None and scaled_ns <= goal_ns:
        met = "[yellow]scaled[/]"
    return f"≤ {duration(goal_ns)}", "" if scaled_ns is None else duration(scaled_ns), met


def idle_ns(results: "Results", name: str) -> float:
    """Return the cost of one more idle request in a step."""
    return (results["decode_idle"][name].median_ns - results["decode"][name].median_ns) / NUM_IDLE


def worst_call(results: "Results", name: str) -> tuple[float, str]:
    """Return nanoseconds and name of the most expensive hook call of a request's life."""
    return max(results[scenario][name].worst for scenario in _LIVES)


def as_json(
    results: "Results", request_ns: list[int], families: "dict[str, FamilyLives]", hardware: str
) -> dict[str, Any]:
    """Return everything that was measured, in nanoseconds."""
    return {
        "hardware": hardware,
        "request_ns": request_ns,
        "scenarios": _scenarios(results),
        "families": {
            name: {"scenarios": _scenarios(lives.results), "refused": lives.refused} for name, lives in families.items()
        },
    }


def _scenarios(results: "Results") -> dict[str, Any]:
    return {
        scenario: {
            name: {
                "median_ns": samples.median_ns,
                "ns": samples.ns,
                "wall_ns": [cost.wall_ns for cost in samples.costs],
                "num_calls": [cost.num_calls for cost in samples.costs],
                "worst_ns": [cost.worst_ns for cost in samples.costs],
                "by_hook_ns": samples.by_hook(),
            }
            for name, samples in by_name.items()
        }
        for scenario, by_name in results.items()
    }
