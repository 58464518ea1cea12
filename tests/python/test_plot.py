# SPDX-License-Identifier: Apache-2.0
"""``kvferry plot`` on reports that the real kvferry-bench and kvferry-lab wrote, and on files that are none."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
from kvferry.bench.figures import FIGURES, figure_of
from kvferry.bench.report import read_report
from kvferry.cli.app import main
from kvferry.errors import ConfigError

PROGRAMS = Path(os.environ.get("KVFERRY_BENCH_PROGRAMS") or Path(__file__).resolve().parents[2] / "build/wheel/bench")
LABORATORY = ("meta", "share", "pin", "trace")
TINY = ["--quick", "--rounds", "1", "--warm-up", "0"]
RUNS = {
    "link": ["link", "--link-size", "64KiB"],
    "copy": ["copy", "--link-size", "64KiB", "--fragment", "1KiB,4KiB", "--count", "8,16", "--round-size", "1"],
    "pipeline": ["pipeline", "--link-size", "64KiB", "--shape", "2x1KiB", "--blocks", "4"],
    "meta": ["meta", "--resident", "256", "--batch", "32"],
    "share": ["share"],
    "pin": ["pin", "--size", "4MiB"],
    "trace": ["trace", "--traffic", "loop-1.1", "--policy", "lru,optimum", "--capacity", "1000,2000"],
}


@pytest.fixture(scope="module", params=RUNS)
def report(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / f"{request.param}.json"
    program = PROGRAMS / ("kvferry-lab" if request.param in LABORATORY else "kvferry-bench")
    run = subprocess.run(
        [program, *RUNS[request.param], *TINY, "--json", path], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return path


def kvferry(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process: another one would import matplotlib each time."""
    words = ["kvferry", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def test_every_subcommand_has_a_picture_that_is_tried_here():
    assert RUNS.keys() == FIGURES.keys()


def test_picture_stands_beside_the_report(report):
    run = kvferry("plot", report)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(report.with_suffix(".svg"))]
    assert report.with_suffix(".svg").read_text().startswith("<?xml")


def test_every_measured_value_is_drawn(report):
    content = read_report(report)
    figure = figure_of(content)
    drawn = sum(len(axes.patches) + sum(len(line.get_xdata()) for line in axes.lines) for axes in figure.axes)
    assert drawn >= len(content.rows)


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_suffix_of_the_output_says_the_form(report, tmp_path, name, magic):
    assert kvferry("plot", report, "--output", tmp_path / name).returncode == 0
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_report_with_wrong_bytes_says_so_in_its_picture(report, tmp_path):
    content = json.loads(report.read_text()) | {"mismatch": "block 3 holds round 1"}
    (tmp_path / "bad.json").write_text(json.dumps(content))
    assert "block 3 holds round 1" in figure_of(read_report(tmp_path / "bad.json")).get_suptitle()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is not a report of kvferry-bench or kvferry-lab"),
        ("[]", '"program" is neither'),
        ('{"program": "kvferry-bench", "schema": 99}', "has schema 99, and this kvferry reads 1"),
        ('{"program": "kvferry-bench", "schema": 1, "rows": []}', "nothing was measured"),
    ],
)
def test_what_is_no_report_is_told_in_one_line(tmp_path, text, complaint):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    run = kvferry("plot", path)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert str(path) in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_nothing_is_drawn_when_one_of_the_reports_is_wrong(report, tmp_path):
    copied = tmp_path / report.name
    copied.write_bytes(report.read_bytes())
    assert kvferry("plot", copied, tmp_path / "none.json").returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == [report.name]


def test_one_page_has_the_pictures_of_all_reports(report, tmp_path):
    page = tmp_path / "page.html"
    assert kvferry("plot", report, report, "-o", page).returncode == 0
    text = page.read_text()
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "<?xml" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_labels_do_not_overlap(report):
    """Of any two labels of an axis, legend and bars, none lies on the other."""
    figure = figure_of(read_report(report))
    figure.draw_without_rendering()
    for axes in figure.axes:
        ticks = [label for label in axes.get_xticklabels() if label.get_text() and label.get_visible()]
        boxes = [text.get_window_extent() for text in ticks]
        if axes.get_legend() is not None:
            boxes.append(axes.get_legend().get_window_extent())
        # A rotated label's box is larger than its letters: neighbours of those may touch.
        if not any(label.get_rotation() % 90 for label in ticks):
            assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_bad_usage_names_the_remedy(report, tmp_path):
    assert "leave it out" in kvferry("plot", report, report, "--output", tmp_path / "a.svg").stderr
    assert "svg, png, pdf, html" in kvferry("plot", report, "--output", tmp_path / "a.doc").stderr
    assert "cannot be written" in kvferry("plot", report, "--output", tmp_path / "none" / "a.svg").stderr


def test_subcommand_without_a_picture_is_named(report, tmp_path):
    content = json.loads(report.read_text()) | {"subcommand": "juggle"}
    (tmp_path / "odd.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="no plot of juggle"):
        figure_of(read_report(tmp_path / "odd.json"))
