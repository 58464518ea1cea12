# SPDX-License-Identifier: Apache-2.0
"""Collects what a machine without a network can be given: the programs of a GPU check, and what building them needs.

The libraries are as Debian packages them: sources and headers of googletest, CLI11, nlohmann-json and fmt (used as
headers); headers and shared libraries of oneTBB, hwloc and simdjson. For each the folder holds a package configuration,
so that ``-DCMAKE_PREFIX_PATH=DIR`` is all that CMake is told. The programs run on machines whose C library is not older
than the one here (glibc 2.36 on Debian 12).
"""

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_check_build import carry_programs

#: The folder must not be larger than 64 MiB.
MOST_BYTES = 56 << 20


@dataclass
class Library:
    """One library: its packages, the files taken from them, and how CMake finds it."""

    packages: tuple[str, ...]
    #: Folders and files, below the packages' root -> below the folder.
    copies: dict[str, str]
    config_name: str
    config: str


def headers_only(target: str, definitions: str = "") -> str:
    """Return the configuration of a header-only library."""
    return (
        f"if(NOT TARGET {target})\n"
        f"  add_library({target} INTERFACE IMPORTED)\n"
        f"  target_include_directories({target} INTERFACE ${{CMAKE_CURRENT_LIST_DIR}}/include)\n"
        + (f"  target_compile_definitions({target} INTERFACE {definitions})\n" if definitions else "")
        + "endif()\n"
    )


GTEST_CONFIG = """\
if(NOT TARGET GTest::gtest)
  find_package(Threads REQUIRED)
  add_library(carried_gtest STATIC ${CMAKE_CURRENT_LIST_DIR}/src/gtest-all.cc)
  target_include_directories(carried_gtest SYSTEM PUBLIC ${CMAKE_CURRENT_LIST_DIR}/include)
  target_include_directories(carried_gtest SYSTEM PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_link_libraries(carried_gtest PUBLIC Threads::Threads)
  add_library(carried_gtest_main STATIC ${CMAKE_CURRENT_LIST_DIR}/src/gtest_main.cc)
  target_link_libraries(carried_gtest_main PUBLIC carried_gtest)
  add_library(GTest::gtest ALIAS carried_gtest)
  add_library(GTest::gtest_main ALIAS carried_gtest_main)
endif()
"""


def shared_library(target: str, name: str) -> str:
    """Return the configuration of a shared library with this name."""
    return (
        f"if(NOT TARGET {target})\n"
        f"  add_library({target} SHARED IMPORTED)\n"
        f"  set_target_properties({target} PROPERTIES\n"
        f"    IMPORTED_LOCATION ${{CMAKE_CURRENT_LIST_DIR}}/lib/{name} IMPORTED_SONAME {name}\n"
        f"    INTERFACE_INCLUDE_DIRECTORIES ${{CMAKE_CURRENT_LIST_DIR}}/include)\n"
        "endif()\n"
    )


#: Where Debian puts shared libraries.
SHARED = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}"

LIBRARIES = (
    Library(
        ("libtbb-dev", "libtbb12"),
        {
            "usr/include/oneapi": "include/oneapi",
            "usr/include/tbb": "include/tbb",
            f"{SHARED}/libtbb.so.12": "lib/libtbb.so.12",
        },
        "TBB",
        shared_library("TBB::tbb", "libtbb.so.12"),
    ),
    # hwloc is found by its header and its library: Debian has no CMake configuration for it.
    Library(
        ("libhwloc-dev", "libhwloc15", "libudev1"),
        {
            "usr/include/hwloc": "include/hwloc",
            "usr/include/hwloc.h": "include/hwloc.h",
            f"{SHARED}/libhwloc.so.15": "lib/libhwloc.so.15",
            f"{SHARED}/libudev.so.1": "lib/libudev.so.1",
        },
        "hwloc",
        "",
    ),
    Library(
        ("googletest",),
        {"usr/src/googletest/googletest/src": "src", "usr/src/googletest/googletest/include": "include"},
        "GTest",
        GTEST_CONFIG,
    ),
    Library(("libcli11-dev",), {"usr/include/CLI": "include/CLI"}, "CLI11", headers_only("CLI11::CLI11")),
    Library(
        ("nlohmann-json3-dev",),
        {"usr/include/nlohmann": "include/nlohmann"},
        "nlohmann_json",
        headers_only("nlohmann_json::nlohmann_json"),
    ),
    Library(
        ("libsimdjson-dev", "libsimdjson14"),
        {
            "usr/include/simdjson.h": "include/simdjson.h",
            f"{SHARED}/libsimdjson.so.14": "lib/libsimdjson.so.14",
        },
        "simdjson",
        shared_library("simdjson::simdjson", "libsimdjson.so.14"),
    ),
    Library(("libfmt-dev",), {"usr/include/fmt": "include/fmt"}, "fmt", headers_only("fmt::fmt", "FMT_HEADER_ONLY=1")),
)


def unpacked(library: Library, folder: Path) -> Path:
    """Return a folder with the packages' files: the system's own, or those of the packages that apt fetches.

    Raises
    ------
    OSError
        If the files cannot be fetched.
    """
    root = Path("/")
    if all((root / source).exists() for source in library.copies):
        return root
    if not shutil.which("apt-get"):
        raise OSError(f"{' and '.join(library.packages)} are not installed, and there is no apt-get to fetch them")
    for name in library.packages:
        done = subprocess.run(["apt-get", "download", name], cwd=folder, capture_output=True, text=True, check=False)
        packages = list(folder.glob(f"{name}_*.deb"))
        if done.returncode != 0 or not packages:
            raise OSError(f"apt-get cannot download {name}: {done.stderr.strip()}")
        subprocess.run(["dpkg", "-x", str(packages[0]), str(folder / "root")], check=True)
    return folder / "root"


def collect(library: Library, target: Path) -> None:
    """Put one library into the folder, where find_package looks below a prefix; keep what is already there."""
    place = target / "share" / library.config_name
    config = place / f"{library.config_name}Config.cmake"
    if config.exists() and config.read_text() == library.config:
        return
    shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = unpacked(library, Path(scratch))
        for source, destination in library.copies.items():
            if (root / source).is_dir():
                shutil.copytree(root / source, place / destination)
            else:
                (place / destination).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / source, place / destination)
    config.write_text(library.config)


def main(target: Path, say: Callable[[str], None]) -> int:
    """Collect what is missing or has changed, and print the size of everything; return the exit status."""
    try:
        for library in LIBRARIES:
            collect(library, target)
        carry_programs(target / "programs", target, say)
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"carry: {error}")
        return 1
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    say(f"carry: {target} holds the programs and {', '.join(library.config_name for library in LIBRARIES)}: "
        f"{size / 2**20:.1f} MiB")  # fmt: skip
    if size > MOST_BYTES:
        say(f"carry: that is more than {MOST_BYTES >> 20} MiB")
        return 1
    return 0
