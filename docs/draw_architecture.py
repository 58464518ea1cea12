# SPDX-License-Identifier: Apache-2.0
"""Draws docs/architecture.svg: ``python docs/draw_architecture.py`` writes it anew.

The picture has a background of its own, and its colours follow the reader's scheme, so that it can be read on a
light page and on a dark one. ``tests/python/test_docs.py`` compares the committed file with what this makes.
"""

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("architecture.svg")
WIDTH, HEIGHT = 1080, 690

STYLE = """
    .page { fill: #ffffff; stroke: #d0d7de; }
    .process { fill: #f6f8fa; stroke: #8c959f; }
    .engine { fill: #eaeef2; stroke: #8c959f; }
    .ours { fill: #ddf4ff; stroke: #0969da; }
    .bytes { fill: #fff8c5; stroke: #9a6700; }
    .shared { fill: #fbefff; stroke: #8250df; stroke-dasharray: 6 4; }
    text { fill: #1f2328; font: 14px sans-serif; }
    .title { font-weight: bold; }
    .small { font-size: 12px; }
    .store { stroke: #0969da; fill: none; } .load { stroke: #bc4c00; fill: none; }
    .store-dot { fill: #0969da; } .load-dot { fill: #bc4c00; }
    .on-dot { fill: #ffffff; font-size: 12px; font-weight: bold; }
    .store-tip { fill: #0969da; } .load-tip { fill: #bc4c00; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; stroke: #3d444d; }
      .process { fill: #151b23; stroke: #656c76; }
      .engine { fill: #212830; stroke: #656c76; }
      .ours { fill: #0c2d6b; stroke: #58a6ff; }
      .bytes { fill: #3b2300; stroke: #d29922; }
      .shared { fill: #271052; stroke: #a371f7; }
      text { fill: #f0f6fc; }
      .store { stroke: #58a6ff; } .load { stroke: #f0883e; }
      .store-dot, .store-tip { fill: #58a6ff; } .load-dot, .load-tip { fill: #f0883e; }
      .on-dot { fill: #0d1117; }
    }"""


class Box(NamedTuple):
    """A rectangle with a title and lines below it."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()


class Way(NamedTuple):
    """An arrow along points; of a store (numbers) or of a load (letters)."""

    kind: str
    points: tuple[tuple[int, int], ...]
    mark: str = ""
    label: str = ""
    label_at: tuple[int, int] = (0, 0)


BOXES = (
    Box("process", 20, 20, 470, 480, "scheduler process, one for each engine"),
    Box("process", 590, 20, 470, 480, "worker process, one for each rank"),
    Box("engine", 40, 52, 430, 40, "vLLM's scheduler", ()),
    Box("ours", 40, 112, 430, 54, "python/kvferry/vllm", ("scheduler_side.py: each hook is one call",)),
    Box("ours", 40, 186, 430, 150, "connector/scheduler: SchedulerEngine"),
    Box("ours", 56, 216, 124, 46, "RequestTable", ("who is who",)),
    Box("ours", 192, 216, 124, 46, "PrefixSearch", ("how long a hit",)),
    Box("ours", 328, 216, 126, 46, "StorePlanner", ("what to store",)),
    Box("ours", 124, 276, 124, 46, "LoadBook", ("loads under way",)),
    Box("ours", 260, 276, 124, 46, "StoreBook", ("stores under way",)),
    Box("ours", 40, 356, 430, 124, "cpu_tier: Tier (metadata, no bytes)"),
    Box("ours", 56, 386, 124, 78, "slots", ("SlotClass: index,", "states, leases")),
    Box("ours", 192, 386, 124, 78, "policy", ("what to keep,", "what to evict")),
    Box("ours", 328, 386, 126, 78, "peers", ("the slots of", "other engines")),
    Box("engine", 610, 52, 430, 40, "vLLM's model runner and compute stream", ()),
    Box("ours", 610, 112, 430, 54, "python/kvferry/vllm", ("worker_side.py: each hook is one call",)),
    Box("ours", 610, 186, 430, 54, "connector/worker: WorkerEngine", ("executes plans in order, reports ends",)),
    Box("ours", 610, 260, 430, 76, "transfer: TransferEngine", ("one thread, a queue, a lane for each direction",)),
    Box("bytes", 610, 386, 112, 78, "GPU KV pool", ("the engine's", "blocks")),
    Box("bytes", 762, 386, 112, 78, "StagingRing", ("device memory,", "packed blocks")),
    Box("bytes", 914, 386, 126, 78, "Arena", ("pinned memory,", "slots")),
    Box("shared", 20, 530, 1040, 88, "shared tier, if shared_path is set: one file for several engines"),
    Box("bytes", 40, 560, 430, 46, "metadata", ("slot words, hints and members: used by schedulers",)),
    Box("bytes", 610, 560, 430, 46, "an arena for each rank", ("slots: used by workers",)),
)  # fmt: skip

WAYS = (
    Way("store", ((490, 206), (590, 206)), "1", "StepPlan", (504, 194)),
    Way("store", ((722, 425), (762, 425)), "2"),
    Way("store", ((874, 425), (914, 425)), "3"),
    Way("store", ((590, 290), (490, 290)), "4", "StepReport", (500, 278)),
    Way("load", ((490, 232), (590, 232)), "b"),
    Way("load", ((977, 464), (977, 484), (673, 484), (673, 464)), "c"),
    Way("load", ((590, 316), (490, 316)), "d"),
    Way("load", ((255, 92), (255, 112)), "a"),
    Way("shared-tie", ((391, 464), (391, 530))),
    Way("shared-tie", ((1010, 464), (1010, 530))),
)

LEGEND = (
    ("store", "Store: (1) plan, (2) gather on the compute stream, (3) copy, (4) report, then commit"),
    ("load", "Load: (a) lookup, (b) plan, (c) copy after the fence, (d) report, then the engine is told"),
)


def _box(box: Box) -> str:
    parts = [
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>',
        f'<text class="title" x="{box.x + 12}" y="{box.y + 20}">{escape(box.title)}</text>',
    ]
    for number, line in enumerate(box.lines):
        parts.append(f'<text class="small" x="{box.x + 12}" y="{box.y + 38 + 16 * number}">{escape(line)}</text>')
    return "\n  ".join(parts)


def _way(way: Way) -> str:
    points = " ".join(f"{x},{y}" for x, y in way.points)
    if way.kind == "shared-tie":
        return f'<polyline class="shared" points="{points}"/>'
    parts = [
        f'<polyline class="{way.kind}" stroke-width="2" points="{points}" marker-end="url(#{way.kind}-end)"/>',
        _mark(way.kind, way.mark, *_middle(way.points)),
    ]
    if way.label:
        parts.append(f'<text class="small" x="{way.label_at[0]}" y="{way.label_at[1]}">{way.label}</text>')
    return "\n  ".join(parts)


def _middle(points: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Where the mark is: on the way, or beside it if it is short."""
    at = (len(points) - 1) // 2
    (x, y), (to_x, to_y) = points[at : at + 2]
    beside = 15 if abs(to_x - x) + abs(to_y - y) < 50 else 0
    return (x + to_x) // 2 + (beside if x == to_x else 0), (y + to_y) // 2 - (beside if y == to_y else 0)


def _mark(kind: str, mark: str, x: int, y: int) -> str:
    return (
        f'<circle class="{kind}-dot" cx="{x}" cy="{y}" r="9"/>'
        f'<text class="on-dot" x="{x}" y="{y + 4}" text-anchor="middle">{mark}</text>'
    )


def _tip(kind: str) -> str:
    return (
        f'<marker id="{kind}-end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="{kind}-tip" d="M0,0 L8,4 L0,8 Z"/></marker>'
    )


def draw() -> str:
    """Return the picture as SVG."""
    legend = [
        f'<circle class="{kind}-dot" cx="34" cy="{644 + 24 * number}" r="7"/>'
        f'<text x="50" y="{649 + 24 * number}">{escape(text)}</text>'
        for number, (kind, text) in enumerate(LEGEND)
    ]
    body = [*map(_box, BOXES), *map(_way, WAYS), *legend]
    return "\n".join(
        [
            "<!-- SPDX-License-Identifier: Apache-2.0. Made by docs/draw_architecture.py. -->",
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "  <title>The two sides of kvferry, and the ways of a store and of a load</title>",
            f"  <style>{STYLE}\n  </style>",
            f"  <defs>{_tip('store')}{_tip('load')}</defs>",
            f'  <rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="8"/>',
            *(f"  {part}" for part in body),
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
