# SPDX-License-Identifier: Apache-2.0
"""The files of the repository."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def files(root: Path = ROOT) -> list[str]:
    """Return the files of a repository, including new ones and without ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in sorted(set(listed.split("\0"))) if name and (root / name).is_file()]
