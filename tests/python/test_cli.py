# SPDX-License-Identifier: Apache-2.0
"""What all commands share: their help, and how wide their output is."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import typer
from kvferry.cli.app import app, command
from kvferry.config import KvFerryConfig
from kvferry.settings import known_keys

PROGRAM = [sys.executable, "-c", "from kvferry.cli import main; main()"]


def run(*arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=True, env=variables).stdout


def texts(of: Any) -> Iterator[str]:
    for each in (of, *of.params):
        yield getattr(each, "help", None) or ""
    for below in getattr(of, "commands", {}).values():
        yield from texts(below)


def test_brackets_of_help_texts_are_shown() -> None:
    assert "pip install '.[plot]'" in run("plot", "--help")


def test_no_help_text_is_taken_for_markup() -> None:
    from rich.text import Text

    written = [*texts(typer.main.get_command(app))]
    assert any("[" in text for text in written)
    assert [Text.from_markup(text).plain for text in texts(command())] == written


def test_no_line_is_wrapped_without_a_terminal() -> None:
    refused = subprocess.run(
        [*PROGRAM, "doctor", "--config", '{"cpu_byte_to_use": 1}'], capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )  # fmt: skip
    first = refused.stdout.splitlines()[0]
    assert first.startswith("REFUSED kv_connector_extra_config: unknown key")
    last = known_keys(KvFerryConfig)[-1]
    assert first.endswith(f", {last}"), "the list is longer than any terminal is wide"


def test_a_terminal_has_lines_of_its_own_width() -> None:
    ours, theirs = pty.openpty()
    variables = os.environ | {"COLUMNS": "60", "TERM": "xterm"}
    running = subprocess.Popen([*PROGRAM, "doctor", "--config", '{"cpu_byte_to_use": 1}'], stdout=theirs, env=variables)
    os.close(theirs)
    printed = b""
    # The kernel ends the reading with an error once no process has the other end.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            printed += piece
    os.close(ours)
    assert running.wait() == 1
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 60
