# SPDX-License-Identifier: Apache-2.0
"""The page of configuration keys is what its program writes from the code that reads the keys."""

import re
import subprocess
import sys
from dataclasses import Field, fields
from typing import Any

import pytest
from documents import ROOT
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError

KEYS = ROOT / "python/kvferry/vllm/keys.md"
# Values at the ends of a range: those inside, and those outside.
ENDS: dict[str, tuple[tuple[object, ...], tuple[object, ...]]] = {
    "true or false": ((True, False), (1, "true")),
    "4096 bytes or more": ((4096, "8GiB"), (4095, "1")),
    "more than zero": ((1, "1KiB"), (0, -1)),
    "0 or more": ((0, 1), (-1,)),
    "a number of tokens, 0 or more": ((0, 1), (-1, 1.5)),
    "a number from 0 to 1": ((0, 1), (-0.001, 1.001)),
    "more than zero and 1000000000 at most": ((0.001, 1_000_000_000), (0, 1_000_000_001)),
    "a whole number from 1 to 1000": ((1, 1000), (0, 1001)),
    '"engine", "dense" or a number of tokens, 1 or more': (("engine", "dense", 1), ("other", 0)),
    "text of 1 to 256 printable characters": (("a", "a" * 256), ("", "a" * 257)),
    "the absolute path of a file in shared memory": (("/dev/shm/a",), ("a",)),
    "the number of a NUMA node": ((0,), (-1,)),
}


def ranges() -> dict[str, str]:
    lines = [line for line in KEYS.read_text().splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): cells[4].strip().replace("`", "") for cells in (line.split("|") for line in lines)}


def test_page_is_what_its_program_writes() -> None:
    command = [sys.executable, str(ROOT / "tools/write_keys.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run: make keys\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("key", [key for key in fields(KvFerryConfig) if key.name != "host_link"], ids=lambda k: k.name)
def test_reader_of_a_key_accepts_the_range_of_its_row_and_nothing_else(key: Field[Any]) -> None:
    read = key.metadata["read"]
    range_ = ranges()[key.name]
    inside, outside = ENDS.get(range_) or (re.findall(r'"(\w+)"', range_), ("another", 1))
    assert inside
    for value in inside:
        read(key.name, value)
    for value in outside:
        with pytest.raises(ConfigError):
            read(key.name, value)
