# SPDX-License-Identifier: Apache-2.0
"""Build the programs of a GPU check, either to be carried to another machine or where they run."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_check_machine import nvcc
from gpu_check_process import ROOT
from gpu_check_steps import PROGRAMS

#: Where a machine without carried programs builds them.
BUILD_DIR = ROOT / "build/gpu-check"
#: The stand-in drivers, which a dry run needs.
STAND_INS = {"fake_cuda": "tests/fakes/libfake_cuda.so", "fake_hip": "tests/fakes/libfake_hip.so"}
#: A program that needs most of the libraries, and one that consists of tests.
PROBES = (("kvferry-bench", "--version"), ("kvferry-integrity", "--help"))
#: With these the programs run where the C++ library is older. The libraries that are still shared lie beside them.
CARRIED_LINK_FLAGS = "-static-libstdc++ -static-libgcc -Wl,-rpath,'$ORIGIN/lib'"


def configure_command(folder: Path, prefix: Path | None, backend: str, architecture: str = "") -> list[str]:
    """Return the call of CMake.

    Parameters
    ----------
    folder
        The build tree.
    prefix
        Folder of carried libraries; None for those of the system.
    backend, architecture
        ``cuda`` requires nvcc. A single architecture saves the time of the others. ``""`` takes what there is.

    """
    command = ["cmake", "--preset", "gpu-check", "-B", str(folder)]
    command += ["-G", "Ninja" if shutil.which("ninja") else "Unix Makefiles"]
    if prefix is not None:
        command.append(f"-DCMAKE_PREFIX_PATH={prefix}")
    if backend == "cuda":
        command.append("-DKVFERRY_CUDA=ON")
        if architecture:
            command.append(f"-DKVFERRY_CUDA_ARCHITECTURES={architecture}")
    if backend == "hip":
        command.append("-DKVFERRY_HIP=ON")
    return command


def build_command(folder: Path) -> list[str]:
    """Return the call that builds all programs; a program that fails to build does not stop the others."""
    keep_going = ["-k", "0"] if shutil.which("ninja") else ["-k"]
    jobs = str(os.cpu_count() or 2)
    return ["cmake", "--build", str(folder), "-j", jobs, "--target", *PROGRAMS, *STAND_INS, "--", *keep_going]


def missing_tools(backend: str) -> list[str]:
    """Return one line for each missing tool that the build needs."""
    wanted = {
        "cmake": "configures the build (Python package cmake)",
        "c++": "compiles it (package g++)",
    }
    missing = [f"{tool} is missing: it {what}" for tool, what in wanted.items() if not shutil.which(tool)]
    if not shutil.which("ninja") and not shutil.which("make"):
        missing.append("ninja and make are missing: one of them runs the build (Python package ninja)")
    if backend == "cuda" and not nvcc():
        missing.append("nvcc is missing: without it there are no kernels (CUDA toolkit, or CUDA_HOME)")
    return missing


def carry_programs(target: Path, prefix: Path, say: Callable[[str], None]) -> None:
    """Build the programs for machines like this one or newer, and put them, stripped, into `target`.

    Parameters
    ----------
    target
        Receives the programs, ``lib`` with the libraries that they load, and ``commit``.
    prefix
        The carried libraries (`carry`) to build with. The path must be absolute, or CMake takes the system's libraries.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        If something cannot be built or copied.

    """
    folder = ROOT / "build/gpu-check-carried"
    configure = configure_command(folder, prefix, "")
    configure.append(f"-DCMAKE_EXE_LINKER_FLAGS={CARRIED_LINK_FLAGS}")
    for what, command in (("configure", configure), ("build", build_command(folder))):
        log = ROOT / f"build/logs/carry-{what}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        say(f"{what} the programs (build/logs/carry-{what}.log) ...")
        with log.open("wb") as out:
            subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=True)
    shutil.rmtree(target, ignore_errors=True)
    (target / "lib").mkdir(parents=True)
    for name, path in PROGRAMS.items():
        strip(folder / path, target / name)
    for path in STAND_INS.values():
        strip(folder / path, target / "lib" / Path(path).name)
    for library in prefix.glob("share/*/lib/*.so*"):
        shutil.copy(library, target / "lib" / library.name)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                            check=False)  # fmt: skip
    (target / "commit").write_text(commit.stdout.strip() or "unknown")


def strip(source: Path, target: Path) -> None:
    """Copy a program without its debug information."""
    subprocess.run(["strip", "-o", str(target), str(source)], check=True)


def why_unusable(programs: Path, run: Callable[[Sequence[str]], tuple[int, str]]) -> str:
    """Return one line that says why the programs in a folder cannot be used on this machine; empty if they can.

    Parameters
    ----------
    programs
        The folder.
    run
        Runs a short command; returns its exit status and the last line that it printed.

    """
    missing = [name for name in PROGRAMS if not (programs / name).exists()]
    if missing:
        return f"{programs} lacks {', '.join(missing)}"
    for name, option in PROBES:
        status, last = run([str(programs / name), option])
        if status != 0:
            return f"{name} does not start here (exit {status}): {last}"
    return ""
