# SPDX-License-Identifier: Apache-2.0
"""The console on which commands print for people."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Wider than any line.
_UNLIMITED = 100_000


def console() -> "Console":
    """Return a console as wide as the terminal. Without a terminal and without ``COLUMNS``, no line is wrapped."""
    from rich.console import Console

    of_terminal = Console(highlight=False)
    if of_terminal.is_terminal or "COLUMNS" in os.environ:
        return of_terminal
    return Console(highlight=False, width=_UNLIMITED)
