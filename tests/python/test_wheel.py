# SPDX-License-Identifier: Apache-2.0
"""The extension as others' machines and processes meet it: what it exports, and what it asks of them."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import kvferry._core
import pytest
from kvferry.vllm.plugin import register_connector

EXTENSION = kvferry._core.__file__
WHEELS = Path(__file__).resolve().parents[2] / "dist"
# No driver library and no runtime of a vendor's: they are looked for when the program runs.
SYSTEM_LIBRARIES = {"libstdc++", "libgcc_s", "libm", "libc", "libpthread", "libdl", "librt", "ld"}
# Copies of its own, in the wheel.
BUNDLED_LIBRARIES = {"libtbb", "libhwloc", "libudev"}


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_extension_exports_only_its_entry_point():
    symbols = [line.split()[-1] for line in output("nm", "-D", "--defined-only", EXTENSION).splitlines()]
    assert symbols == ["PyInit__core"]


def test_extension_links_no_vendor_library():
    needed = re.findall(r"\(NEEDED\).*\[(\S+)\]", output("readelf", "-d", EXTENSION))
    assert needed
    assert {name.partition(".so")[0].partition("-")[0] for name in needed} <= SYSTEM_LIBRARIES | BUNDLED_LIBRARIES


def test_extension_brings_what_it_links_and_shares_it_with_nobody():
    found = dict(re.findall(r"(\S+) => (\S+) \(", output("ldd", EXTENSION)))
    bundled = {name: path for name, path in found.items() if name.partition("-")[0] in BUNDLED_LIBRARIES}
    assert {name.partition("-")[0] for name in bundled} >= {"libtbb", "libhwloc"}
    for name, path in bundled.items():
        # A name with a hash: another library of this name in the process is not taken for ours.
        assert re.fullmatch(r"lib\w+-[0-9a-f]{8}\.so\.[0-9.]+", name), name
        assert Path(path).parent.name == "kvferry.libs", path


def test_extension_holds_the_kernels_of_both_vendors():
    content = Path(EXTENSION).read_bytes()
    assert b".nv.info.kvferry_gather_bulk" in content, "no CUDA kernels: was nvcc found when the wheel was built?"
    if shutil.which("hipcc"):
        assert b"amdgcn-amd-amdhsa--gfx90a" in content


def test_wheel_tells_vllm_of_the_connector():
    entries = metadata.distribution("kvferry").entry_points.select(group="vllm.general_plugins")
    assert [(entry.name, entry.load()) for entry in entries] == [("kvferry", register_connector)]


def test_auditwheel_finds_the_wheel_portable():
    wheels = sorted(WHEELS.glob("kvferry-*.whl"))
    if not wheels:
        pytest.skip("no wheel in dist/")
    for wheel in wheels:
        verdict = " ".join(output(sys.executable, "-m", "auditwheel", "show", str(wheel)).split())
        assert re.search(r'platform tag: "manylinux_2_\d+_', verdict), verdict
