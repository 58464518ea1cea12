# SPDX-License-Identifier: Apache-2.0
"""The script ``kvferry-bench``: becomes the C++ program of this name that the wheel holds."""

import os
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parents[1] / "bin" / "kvferry-bench"


def main() -> NoReturn:
    """Run the program with this process's arguments; ends with 2 if this build has none."""
    if not PROGRAM.is_file():
        print(
            "kvferry-bench: this build of kvferry does not have it, because CLI11, fmt or nlohmann-json was missing; "
            "install libcli11-dev, libfmt-dev and nlohmann-json3-dev (Debian's names), and build kvferry again",
            file=sys.stderr,
        )
        sys.exit(2)
    os.execv(PROGRAM, ["kvferry-bench", *sys.argv[1:]])
