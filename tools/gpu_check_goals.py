# SPDX-License-Identifier: Apache-2.0
"""Compare the figures of a GPU check with the goals of the page "GPU back ends, How fast, on a GPU"."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Rows = list[Json]
KIB = 1024


@dataclass
class Figure:
    """What was measured for one goal."""

    value: float | None
    met: bool | None
    #: The row that it comes from, or why there is none.
    source: str


@dataclass
class Goal:
    """One line of the table of goals (GPU back ends, "How fast, on a GPU")."""

    what: str
    goal: str
    unit: str
    measure: Callable[["Bench"], Figure]


class Bench:
    """The measured rows and peaks of kvferry-bench: step name without ``bench-`` -> its rows."""

    def __init__(self, steps: list[Json]) -> None:
        self.rows: dict[str, Rows] = {}
        self.peaks: dict[str, Json] = {}
        for step in steps:
            if step["name"].startswith("bench-") and step["data"].get("rows"):
                name = step["name"].removeprefix("bench-")
                self.rows[name] = step["data"]["rows"]
                self.peaks[name] = step["data"].get("peaks") or {}
        # The full rows replace the quick ones, because they are more exact.
        if "copy" not in self.rows and "copy-quick" in self.rows:
            self.rows["copy"] = self.rows["copy-quick"]

    def link_over_device(self) -> float | None:
        """Return the link's d2h rate divided by that of the device's own memory; None if no run measured both."""
        for peaks in self.peaks.values():
            if peaks.get("device_gb_per_s") and peaks.get("d2h_gb_per_s"):
                return float(peaks["d2h_gb_per_s"]) / float(peaks["device_gb_per_s"])
        return None

    def of(self, *names: str) -> Rows:
        """Return the rows of these steps."""
        return [row for name in names for row in self.rows.get(name, [])]


def unmeasured(what: str) -> Figure:
    """Say that nothing was measured."""
    return Figure(None, None, f"unmeasured: no row {what}")


def source_of(row: Json) -> str:
    """Name a row."""
    size = row.get("fragment_bytes")
    parts = [
        row.get("direction"),
        row.get("path"),
        f"{size / KIB:g} KiB fragments" if size else None,
        row.get("co_run"),
    ]
    if limit := row.get("limit_gb_per_s"):
        parts.append(f"limit {limit:g} GB/s")
    return ", ".join(str(part) for part in parts if part)


def share_of_peak(directions: tuple[str, ...], least: int, most: int, goal: float) -> Callable[[Bench], Figure]:
    """Judge the worst fragment size and direction, each by the best way across the link that was measured."""

    def measure(bench: Bench) -> Figure:
        best: dict[tuple[str, int], Json] = {}
        for row in bench.of("copy"):
            size, share = row.get("fragment_bytes"), row.get("percent_of_peak")
            if size is None or share is None or row.get("memory", "pinned") != "pinned" or row.get("co_run"):
                continue
            if row["direction"] not in directions or not least <= size <= most:
                continue
            key = (row["direction"], size)
            if key not in best or share > best[key]["percent_of_peak"]:
                best[key] = row
        if not best or {direction for direction, _ in best} != set(directions):
            return unmeasured(f"for {' and '.join(directions)} of {least / KIB:g} KiB and more")
        worst = min(best.values(), key=lambda row: float(row["percent_of_peak"]))
        return Figure(worst["percent_of_peak"], worst["percent_of_peak"] >= goal, source_of(worst))

    return measure


Limit = Callable[[Bench], float | None]


def percent(most: float) -> Limit:
    """Return a goal that is the same on every device."""
    return lambda bench: most


def times_link_over_device(factor: float) -> Limit:
    """Return a goal in percent that depends on how fast this link is beside this device's own memory."""

    def limit(bench: Bench) -> float | None:
        ratio = bench.link_over_device()
        return None if ratio is None else 100 * factor * ratio

    return limit


def slow_down(co_run: str, key: str, limited: bool, limit: Limit) -> Callable[[Bench], Figure]:
    """Judge the worst slow-down of a stream of one kind by stores: at a prefill's rate, or at the link's own rate."""

    def measure(bench: Bench) -> Figure:
        found = [
            row
            for row in bench.of("pipeline", "copy")
            if row.get("co_run") == co_run
            and row.get(key) is not None
            and row.get("direction") == "d2h"
            and (row.get("limit_gb_per_s") is not None) == limited
        ]
        if not found:
            return unmeasured(f"of d2h beside {co_run}, {'limited' if limited else 'at the full rate'}")
        worst = max(found, key=lambda row: float(row[key]))
        most = limit(bench)
        if most is None:
            return Figure(worst[key], None, f"{source_of(worst)}; the device's own memory is unmeasured (bench-link)")
        return Figure(worst[key], worst[key] <= most, f"{source_of(worst)}; at most {most:.2f} %")

    return measure


def submit_time(goal_us: float) -> Callable[[Bench], Figure]:
    """Judge how much time of the engine's thread a plan of 512 blocks costs."""

    def measure(bench: Bench) -> Figure:
        found = [r for r in bench.of("pipeline") if r.get("count") == 512 and r.get("submit_us_mean") is not None]
        if not found:
            return unmeasured("of pipeline with 512 blocks")
        worst = max(found, key=lambda row: float(row["submit_us_mean"]))
        return Figure(worst["submit_us_mean"], worst["submit_us_mean"] <= goal_us, source_of(worst))

    return measure


ONE_WAY = ("d2h", "h2d")
# A gather reads and writes each stored byte once.
GATHER_BYTES_PER_STORED = 2
GOALS = (
    Goal("store and load, blocks of 512 KiB and more, one direction", "≥ 97 % of peak", "%",
         share_of_peak(ONE_WAY, 512 * KIB, 1 << 62, 97)),
    Goal("both directions at once", "≥ 98 % of the bidirectional peak", "%",
         share_of_peak(("both",), 512 * KIB, 1 << 62, 98)),
    Goal("8 to 32 KiB fragments, load and store", "≥ 95 % of peak", "%",
         share_of_peak(ONE_WAY, 8 * KIB, 32 * KIB, 95)),
    Goal("1 to 4 KiB fragments", "≥ 90 % of peak", "%", share_of_peak(ONE_WAY, KIB, 4 * KIB, 90)),
    Goal("slow-down of a compute-bound stream, stores at 4 GB/s", "≤ 1 %", "%",
         slow_down("gemm", "slow_down_percent", True, percent(1))),
    Goal("the same at the link's full rate", "≤ 1.3 times the gather's own bytes (3 % on an H200)", "%",
         slow_down("gemm", "slow_down_percent", False, times_link_over_device(1.3 * GATHER_BYTES_PER_STORED))),
    Goal("slow-down of a bandwidth-bound stream, p99, full rate", "≤ 4.5 link / device bandwidth (5 % on an H200)", "%",
         slow_down("stream", "slow_down_percent_p99", False, times_link_over_device(4.5))),
    Goal("the same at 4 GB/s", "≤ 0.5 %", "%", slow_down("stream", "slow_down_percent_p99", True, percent(0.5))),
    Goal("CPU time of the engine's thread for a plan of 512 blocks", "≤ 100 µs", "µs", submit_time(100)),
)  # fmt: skip


def judge(steps: list[Json]) -> Rows:
    """Compare what was measured with the goals."""
    bench = Bench(steps)
    judged = []
    for goal in GOALS:
        figure = goal.measure(bench)
        judged.append(
            {
                "what": goal.what,
                "goal": goal.goal,
                "unit": goal.unit,
                "measured": figure.value,
                "met": figure.met,
                "source": figure.source,
            }
        )
    return judged
