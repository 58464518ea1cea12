# SPDX-License-Identifier: Apache-2.0
"""``kvferry plot``: draws the JSON reports of kvferry-bench and kvferry-lab."""

import enum
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.bench.report import BenchReport, read_report
from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PictureFormat(enum.StrEnum):
    """File format of a picture."""

    SVG = "svg"
    PNG = "png"
    PDF = "pdf"
    HTML = "html"


def plot(
    results: Annotated[list[Path], typer.Argument(help="Reports that kvferry-bench or kvferry-lab wrote with --json.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File of the picture, for one report; or page.html, for any number. Default: next to each report.",
        ),
    ] = None,
    picture_format: Annotated[
        PictureFormat | None, typer.Option("--format", help="File format. Default: by --output's suffix, or svg.")
    ] = None,
) -> None:
    """Draw the JSON reports of kvferry-bench and kvferry-lab: a picture for each, or one page with all of them.

    It needs matplotlib: pip install '.[plot]'.
    """
    is_page = output is not None and target_of(results[0], output, picture_format)[1] is PictureFormat.HTML
    if output is not None and len(results) != 1 and not is_page:
        raise ConfigError(
            f"--output names one picture, but there are {len(results)} reports: leave it out, or write one page "
            "for all of them (--output page.html)"
        )
    # All reports are read before the first is drawn, so that nothing is half done if one of them is wrong.
    reports = [read_report(path) for path in results]
    if output is not None and is_page:
        draw_page(reports, output)
        return
    for report in reports:
        draw(report, *target_of(report.path, output, picture_format))


def target_of(report: Path, output: Path | None, picture_format: PictureFormat | None) -> tuple[Path, PictureFormat]:
    """Return the file of a report's picture, and its format."""
    if output is None:
        picture_format = picture_format or PictureFormat.SVG
        return report.with_suffix(f".{picture_format}"), picture_format
    if picture_format is None:
        suffix = output.suffix.removeprefix(".").lower()
        if suffix not in set(PictureFormat):
            raise ConfigError(
                f"{output}: the suffix is none of {', '.join(PictureFormat)}; use one of them, or add --format"
            )
        picture_format = PictureFormat(suffix)
    return output, picture_format


def draw(report: BenchReport, picture: Path, picture_format: PictureFormat) -> None:
    """Write one picture."""
    if picture_format is PictureFormat.HTML:
        draw_page([report], picture)
        return
    content = io.BytesIO()
    _figure(report).savefig(content, format=picture_format.value, bbox_inches="tight")
    _write(picture, content.getvalue())


def draw_page(reports: list[BenchReport], page: Path) -> None:
    """Write one HTML file with the pictures of all reports; it needs no other file."""
    parts = ["<!doctype html>\n<meta charset='utf-8'>\n<title>kvferry: reports</title>\n"]
    for report in reports:
        content = io.StringIO()
        _figure(report).savefig(content, format="svg", bbox_inches="tight")
        # Without what only a file of its own has: the XML declaration and the document type.
        svg = content.getvalue()
        parts.append(f"<h2>{html.escape(report.path.name)}</h2>\n{svg[svg.index('<svg') :]}\n")
    _write(page, "".join(parts).encode())


def _figure(report: BenchReport) -> "Figure":
    try:
        from kvferry.bench.figures import figure_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(
            "kvferry plot needs matplotlib: pip install '.[plot]' in kvferry's folder, or pip install matplotlib"
        ) from None
    return figure_of(report)


def _write(target: Path, content: bytes) -> None:
    try:
        target.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    print(target)
