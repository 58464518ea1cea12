# SPDX-License-Identifier: Apache-2.0
"""Make the type stubs of ``kvferry._core`` from the extension that is installed in this environment.

``stubs.py`` writes ``python/kvferry/_core.pyi``; ``stubs.py --check`` prints how the file differs.
"""

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COMMITTED = Path(__file__).resolve().parent.parent / "python/kvferry/_core.pyi"
BIN = Path(sys.executable).parent
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `make stubs` from the built extension; `make lint` compares.
"""


class StubError(Exception):
    """The generator failed; the message is its output."""


def generate() -> str:
    """Return the stubs of the installed extension."""
    with tempfile.TemporaryDirectory() as folder:
        # This runs in a folder of its own: the extension must come from the environment, not from the tree.
        done = subprocess.run(
            [str(BIN / "pybind11-stubgen"), "kvferry._core", "-o", folder, "--exit-code"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        made = Path(folder) / "kvferry/_core.pyi"
        if done.returncode != 0 or not made.exists():
            raise StubError(done.stdout + done.stderr)
        text = made.read_text()
    # The version is kept in one place only, and it is not this one.
    text = re.sub(r"^__version__: str = .*$", "__version__: str", text, flags=re.MULTILINE)
    formatted = subprocess.run(
        [str(BIN / "ruff"), "format", "--isolated", "--line-length=120", "--stdin-filename=_core.pyi"],
        input=HEADER + text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if formatted.returncode != 0:
        raise StubError(formatted.stderr)
    return formatted.stdout


def write() -> list[str]:
    """Write the committed stubs; return complaints."""
    try:
        COMMITTED.write_text(generate())
    except StubError as error:
        return str(error).splitlines()
    return []


def compare() -> list[str]:
    """Return how the committed stubs differ from the extension's."""
    try:
        made = generate()
    except StubError as error:
        return str(error).splitlines()
    committed = COMMITTED.read_text() if COMMITTED.exists() else ""
    return list(
        difflib.unified_diff(
            committed.splitlines(), made.splitlines(), "committed", "made by `make stubs`", lineterm=""
        )
    )


def main(arguments: list[str]) -> int:
    """Write or compare."""
    complaints = compare() if arguments == ["--check"] else write()
    print("\n".join(complaints) if complaints else f"{COMMITTED.name}: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
