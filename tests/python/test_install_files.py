# SPDX-License-Identifier: Apache-2.0
"""The files of examples/install name what tools/setup_system.sh and pyproject.toml name."""

import re
import tomllib

import yaml
from documents import ROOT

INSTALL = ROOT / "examples/install"
# Debian's package, and conda-forge's with the same contents. Debian's python3-venv brings pip; conda's pip does.
SAME = {
    "cmake": "cmake",
    "g++": "cxx-compiler",
    "git": "git",
    "libcli11-dev": "cli11",
    "libfmt-dev": "fmt",
    "libhwloc-dev": "libhwloc",
    "libtbb-dev": "tbb-devel",
    "ninja-build": "ninja",
    "nlohmann-json3-dev": "nlohmann_json",
    "python3": "python",
    "python3-venv": "pip",
}
# conda's Python has its headers, and pip's build needs no make.
NOT_OF_CONDA = {"python3-dev", "make"}


def wanted_by_setup() -> set[str]:
    """Return what the scopes build and bench install."""
    text = (ROOT / "tools/setup_system.sh").read_text()
    of_build = text[text.index("  want g++ has g++") : text.index('  if [ "$scope" = wheels ]')]
    return {*re.findall(r"^ +want (\S+)", of_build, re.MULTILINE), "python3"}


def stages() -> list[str]:
    """Return the stages of the Dockerfile, each with its continued lines joined."""
    text = (INSTALL / "Dockerfile").read_text().replace("\\\n", " ")
    return re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]


def test_dockerfile_installs_what_the_build_needs() -> None:
    installed = re.search(r"apt-get install -y --no-install-recommends ([^&]+)&&", stages()[0])
    assert installed
    assert set(installed[1].split()) == wanted_by_setup()


def test_dockerfile_takes_a_vllm_that_kvferry_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (supported,) = project["optional-dependencies"]["vllm"]
    lowest, highest = re.findall(r"0\.(\d+)", supported)
    taken = re.search(r"vllm==0\.(\d+)\.", stages()[1])
    assert taken
    assert int(lowest) <= int(taken[1]) < int(highest)


def test_conda_environment_has_what_the_build_needs() -> None:
    named = {name.split()[0] for name in yaml.safe_load((INSTALL / "environment.yml").read_text())["dependencies"]}
    assert named == {SAME[package] for package in wanted_by_setup() - NOT_OF_CONDA}
