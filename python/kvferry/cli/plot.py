# SPDX-License-Identifier: Apache-2.0
"""``kvferry plot``: draws the JSON reports of kvferry-bench and kvferry-lab."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from kvferry.bench.report import BenchReport, read_report
from kvferry.errors import ConfigError


class PictureFormat(enum.StrEnum):
    """File format of a picture."""

    SVG = "svg"
    PNG = "png"
    PDF = "pdf"


def plot(
    results: Annotated[list[Path], typer.Argument(help="Reports that kvferry-bench or kvferry-lab wrote with --json.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the picture, for one report. Default: next to the report."),
    ] = None,
    picture_format: Annotated[
        PictureFormat | None, typer.Option("--format", help="File format. Default: by --output's suffix, or svg.")
    ] = None,
) -> None:
    """Draw the JSON reports of kvferry-bench and kvferry-lab, one picture for each report.

    It needs matplotlib: pip install '.[plot]'.
    """
    if output is not None and len(results) != 1:
        raise ConfigError(f"--output names one picture, but there are {len(results)} reports: leave it out")
    # All reports are read before the first is drawn, so that nothing is half done if one of them is wrong.
    reports = [read_report(path) for path in results]
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
    try:
        from kvferry.bench.figures import figure_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(
            "kvferry plot needs matplotlib: pip install '.[plot]' in kvferry's folder, or pip install matplotlib"
        ) from None
    try:
        figure_of(report).savefig(picture, format=picture_format.value, bbox_inches="tight")
    except OSError as error:
        raise ConfigError(f"{picture} cannot be written: {error.strerror}") from error
    print(picture)
