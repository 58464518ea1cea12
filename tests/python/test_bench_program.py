# SPDX-License-Identifier: Apache-2.0
"""``kvferry-bench`` as a reader meets it: on terminals of several widths, in pipes, and as the wheel's script."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import kvferry
import pytest
from kvferry.bench.program import PROGRAM

FOLDER = Path(__file__).resolve().parent / "golden"
BUILT = Path(os.environ.get("KVFERRY_BENCH_PROGRAMS") or FOLDER.parents[2] / "build/wheel/bench") / "kvferry-bench"
WIDTHS = (80, 100, 200)
# Commands whose output is the same on every machine, but for the line that names it.
SHOWN = (
    ("--help",),
    ("expect", "--help"),
    ("expect", "--gpu", "h100-sxm", "copy", "--fragment", "4KiB,64KiB", "--count", "512", "--direction", "h2d,both"),
    ("expect", "--gpu", "h100-sxm", "pipeline", "--shape", "1x2MiB", "--blocks", "64", "--wide"),
    ("lnik", "--quick"),
)
THIS_MACHINE = re.compile(r"^host:0: .*$", re.MULTILINE)


def environment(columns: int | None) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return variables if columns is None else variables | {"COLUMNS": str(columns)}


def in_pipe(arguments: tuple[str, ...], columns: int | None) -> str:
    return subprocess.run(
        [BUILT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment(columns),
    ).stdout


def on_terminal(arguments: tuple[str, ...], columns: int) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    running = subprocess.Popen([BUILT, *arguments], stdout=theirs, stderr=theirs, env=environment(None))
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        pass  # The terminal's other side is closed: the program has ended.
    running.wait()
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def transcript(run) -> str:
    said = "".join(f"$ kvferry-bench {' '.join(arguments)}\n{run(arguments)}\n" for arguments in SHOWN)
    return THIS_MACHINE.sub("host:0: (this machine)", said)


@pytest.mark.parametrize("columns", WIDTHS)
def test_output_fits_the_terminal_and_a_pipe_of_that_width(columns):
    golden = FOLDER / f"kvferry-bench-{columns}.txt"
    on_a_terminal = transcript(lambda arguments: on_terminal(arguments, columns))
    if os.environ.get("KVFERRY_WRITE_GOLDEN"):
        golden.write_text(on_a_terminal)
    assert on_a_terminal == golden.read_text()
    assert transcript(lambda arguments: in_pipe(arguments, columns)) == on_a_terminal


def test_pipe_has_100_columns():
    assert transcript(lambda arguments: in_pipe(arguments, None)) == (FOLDER / "kvferry-bench-100.txt").read_text()


@pytest.mark.parametrize("columns", WIDTHS)
def test_measured_rows_fit_and_have_what_readers_look_for(columns):
    arguments = ("copy", "--device", "host", "--quick", "--link-size", "64KiB", "--fragment", "4KiB", "--count", "64")
    said = subprocess.run(
        [BUILT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        env=environment(columns),
    ).stdout  # fmt: skip
    table = said[said.index("direction") :].split("\n\n")[0].splitlines()
    assert {len(line) for line in table[2:]} == {len(table[0])}, "columns are aligned"
    assert len(table[0]) <= columns
    for title in ("direction", "path", "threads", "fragment", "rate", "of peak", "p50", "p99"):
        assert title in table[0]
    assert ("count" in table[0]) == (columns > 80)
    assert "--wide shows all" in said


def test_host_is_measured_without_a_gpu(tmp_path):
    """The first GPU is the default; a driver that cannot be opened is none."""
    report = tmp_path / "report.json"
    run = subprocess.run(
        [BUILT, "link", "--quick", "--link-size", "64KiB", "--rounds", "1", "--json", report],
        capture_output=True, text=True, check=True,
        env=environment(100) | {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert "no GPU is available" in run.stderr
    assert '"backend": "host"' in report.read_text()


def test_wheel_has_the_program():
    script = Path(sys.executable).with_name("kvferry-bench")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.strip() == kvferry.__version__
    assert PROGRAM.is_file()
