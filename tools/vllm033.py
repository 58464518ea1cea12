# SPDX-License-Identifier: Apache-2.0
"""Lay the Python part of a vLLM wheel beside the compiled parts of the installed CPU build.

``vllm033.py WHEEL DIRECTORY`` fills DIRECTORY, to be put first on Python's path.
"""

import sys
import sysconfig
import zipfile
from pathlib import Path

from vllm_cpu import write_dist_info

WANTED = (".py", ".jinja", "py.typed")


def main(wheel: Path, site: Path) -> None:
    """Unpack the Python part, link the compiled part, name the version a CPU build."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("vllm/") and name.endswith(WANTED):
                archive.extract(name, site)
    installed = Path(sysconfig.get_path("purelib")) / "vllm"
    compiled = list(installed.glob("*.so"))
    if not compiled:
        sys.exit(f"no compiled part of vLLM in {installed}")
    for library in compiled:
        (site / "vllm" / library.name).symlink_to(library)
    write_dist_info(site, f"{wheel.name.split('-')[1]}+cpu")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
