# SPDX-License-Identifier: Apache-2.0
"""Check format, types and house rules; each check passes or fails.

``lint.py [--fix] [--tidy] [--tidy-changed] [--junit FILE] [CHECK...]``
    runs all checks, or those named. ``--fix`` reformats instead of checking the format; ``--tidy``
    adds clang-tidy on every file, which takes many minutes, ``--tidy-changed`` on those that changed. Run it with the
    Python of ``.venv``.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import repository
import sizes
import stubs
from complaints_report import ComplaintsReport

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CPP = (".cpp", ".hpp")
HEADERS = (".hpp", ".cuh")
SOURCES = (*CPP, ".cu", ".cuh", ".py")
PRODUCT = (
    "base", "recorder", "gpu", "cpu_tier", "lmcache", "transfer", "connector", "python", "bench", "examples", "tools",
)  # fmt: skip
NEED_SPDX = (*CPP, ".py", ".pyi", ".sh", ".cmake", ".toml", ".yaml")
NEED_SPDX_NAMES = ("CMakeLists.txt", "Makefile", ".clang-format", ".clang-tidy", "run")

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|NotImplemented(?:Error)?\b|not implemented")
# Paths that exist on one machine only. A slash or a word character before them means a longer path or a URL.
MACHINE_PATH = re.compile(r"(?<![\w./$}>*-])/(?:work|root|tmp|home|opt|mnt|Users)/")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|pypi\.nvidia|anaconda\.org"
    r"|huggingface\.co\b|\bhf\.co\b|crates\.io|npmjs\.|ghcr\.io|docker\.io|\bquay\.io"
)
# How these documents write the names of tests.
NAME_TESTS = ("tests/README.md", "tests/FAILURES.md", "docs/ARCHITECTURE.md")
TEST_NAME = re.compile(r"`([A-Z]\w+\.\w+|test_\w+(?:\.py)?|\w+\.pml)`")
CPP_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)

# (check, file): the reason for the exception.
EXCEPTIONS = {
    ("unfinished", "tools/lint.py"): "names the words it looks for",
    ("machine-paths", "cmake/KvferryKernels.cmake"): "ROCm installs itself below /opt on every machine",
    ("machine-paths", "python/kvferry/tiers.py"): "MPS has its pipes below /tmp on every machine",
}


def files() -> list[Path]:
    """Return the files of the repository, including new ones and without ignored ones."""
    return [ROOT / name for name in repository.files()]


def command(*arguments: str) -> list[str]:
    """Run a checker; its output is the complaint when it fails."""
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines() if done.returncode != 0 else []


def matches(check: str, pattern: re.Pattern[str], chosen: list[Path]) -> Iterator[str]:
    """Yield a complaint for each line in which the pattern occurs."""
    for path in chosen:
        name = str(path.relative_to(ROOT))
        if (check, name) in EXCEPTIONS:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if found := pattern.search(line):
                yield f"{name}:{number}: {found.group()!r}: {line.strip()}"


def clang_format(fix: bool) -> list[str]:
    """Check or apply .clang-format."""
    sources = [str(p.relative_to(ROOT)) for p in files() if p.suffix in CPP]
    how = ["-i"] if fix else ["--dry-run", "-Werror"]
    return command("clang-format", *how, *sources) if sources else []


def ruff(fix: bool) -> list[str]:
    """Check Python for errors and for the order of imports."""
    return command("ruff", "check", *(["--fix"] if fix else []))


def ruff_format(fix: bool) -> list[str]:
    """Check or apply the format of Python."""
    return command("ruff", "format", *([] if fix else ["--check", "--diff"]))


def mypy(_: bool) -> list[str]:
    """Check the types of the package and of the tools."""
    return command("mypy")


def shell(_: bool) -> list[str]:
    """Check that the shell scripts parse."""
    return [
        line for path in files() if path.suffix == ".sh" for line in command("bash", "-n", str(path.relative_to(ROOT)))
    ]


def spdx(_: bool) -> list[str]:
    """Check that each source names its licence in one of the first two lines."""
    return [
        f"{path.relative_to(ROOT)}: no SPDX-License-Identifier in the first two lines"
        for path in files()
        if (path.suffix in NEED_SPDX or path.name in NEED_SPDX_NAMES)
        and not any("SPDX-License-Identifier: " in s for s in path.read_text().splitlines()[:2])
    ]


def unfinished(_: bool) -> list[str]:
    """Check that the product has no reminders, and no empty functions without an explanation."""
    product = [p for p in files() if p.relative_to(ROOT).parts[0] in PRODUCT]
    found = list(matches("unfinished", UNFINISHED, product))
    for path in product:
        if path.suffix == ".py":
            found += empty_functions(path)
    return found


def empty_functions(path: Path) -> Iterator[str]:
    """Yield functions whose whole body is ``pass`` or ``...``, except abstract ones."""
    tree = ast.parse(path.read_text())
    protocols = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in node.bases)
    ]
    allowed = {id(child) for node in protocols for child in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or id(node) in allowed:
            continue
        decorators = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
        if decorators & {"abstractmethod", "overload"}:
            continue
        if len(node.body) == 1 and ast.unparse(node.body[0]) in ("pass", "..."):
            yield (
                f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} does nothing; say why in a docstring, or do it"
            )


def machine_paths(_: bool) -> list[str]:
    """Check that no file names a path that exists on one machine only."""
    return list(matches("machine-paths", MACHINE_PATH, files()))


def registry_hosts(_: bool) -> list[str]:
    """Check that no file names a package registry: users choose theirs in pip's configuration."""
    return list(matches("registry-hosts", REGISTRY_HOST, files()))


def named_tests(_: bool) -> list[str]:
    """Check that every test that a document names exists."""
    tests = [path for path in files() if path.relative_to(ROOT).parts[0] == "tests"]
    text = "".join(path.read_text() for path in tests if path.suffix in (".cpp", ".hpp", ".py"))
    known = {f"{suite}.{name}" for suite, name in CPP_TEST.findall(text)} | set(PYTHON_TEST.findall(text))
    known |= {path.name for path in tests}
    return [
        f"{document}: there is no test {name!r}"
        for document in NAME_TESTS
        for name in TEST_NAME.findall((ROOT / document).read_text())
        if name not in known
    ]


def sizes_of_product(_: bool) -> list[str]:
    """Check that no class of the product has too many public functions, and no source too many lines."""
    found: list[str] = []
    for path in files():
        name = path.relative_to(ROOT)
        if name.parts[0] not in PRODUCT or path.suffix not in SOURCES:
            continue
        found += sizes.large_file(str(name), path.read_text())
        if path.suffix in HEADERS:
            found += sizes.large_classes(str(name), path.read_text())
    return found


def core_pyi(fix: bool) -> list[str]:
    """Check that the committed stubs match the installed extension."""
    return stubs.write() if fix else stubs.compare()


def configure_tidy() -> list[str]:
    """Configure the preset tidy, with the Python extension."""
    options = []
    if not shutil.which("clang-tidy-14"):
        options.append("-DCMAKE_CXX_CLANG_TIDY=clang-tidy;--quiet")
    if list((ROOT / "python/src").glob("*.cpp")):
        import pybind11

        options += [
            "-DKVFERRY_BUILD_PYTHON=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
    return command("cmake", "--preset", "tidy", *options)


def clang_tidy(_: bool) -> list[str]:
    """Build with clang, -Wthread-safety and clang-tidy; only changed files are checked again."""
    return configure_tidy() or command(
        "cmake", "--build", "--preset", "tidy", "-j", str(os.cpu_count() or 2), "--", "-k", "0"
    )


def changed_sources() -> list[str]:
    """Return the C++ sources that differ from the main branch of the clone's origin, or from the commit before."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.split() if done.returncode == 0 else []

    here = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if not base or base == here:
        base = git("rev-parse", "HEAD~1")
    if not base:
        return []
    names = {*git("diff", "--name-only", base[0]), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(name for name in names if name.endswith(".cpp") and (ROOT / name).is_file())


def clang_tidy_changed(_: bool) -> list[str]:
    """Check changed sources with clang-tidy, without a build; only a few, because it takes long."""
    sources = changed_sources()
    if not sources:
        return []
    if failed := configure_tidy():
        return failed
    folder = ROOT / "build/tidy"
    compiled = {Path(entry["file"]).resolve() for entry in json.loads((folder / "compile_commands.json").read_text())}
    chosen = [name for name in sources if ROOT / name in compiled][:MOST_TIDIED]
    tidy = shutil.which("clang-tidy-14") or "clang-tidy"
    return command(tidy, "--quiet", "-p", str(folder), *chosen) if chosen else []


Check = Callable[[bool], list[str]]

CHECKS: dict[str, Check] = {
    "clang-format": clang_format,
    "ruff": ruff,
    "ruff-format": ruff_format,
    "mypy": mypy,
    "shell": shell,
    "spdx": spdx,
    "unfinished": unfinished,
    "machine-paths": machine_paths,
    "registry-hosts": registry_hosts,
    "sizes": sizes_of_product,
    "core-pyi": core_pyi,
    "test-map": named_tests,
}
# The most changed files that are checked: each takes some fifteen seconds.
MOST_TIDIED = 12
FIXERS = ("clang-format", "ruff", "ruff-format")


def main() -> int:
    """Run the chosen checks and report them."""
    every = CHECKS | {"clang-tidy": clang_tidy, "clang-tidy-changed": clang_tidy_changed}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--tidy", action="store_true")
    parser.add_argument("--tidy-changed", action="store_true")
    parser.add_argument("--junit", type=Path)
    parser.add_argument("checks", nargs="*", metavar="CHECK", choices=[[], *every])
    options = parser.parse_args()
    chosen = options.checks or (FIXERS if options.fix else list(CHECKS))
    if options.tidy:
        chosen = [*chosen, "clang-tidy"]
    if options.tidy_changed:
        chosen = [*chosen, "clang-tidy-changed"]

    report = ComplaintsReport("lint")

    def look(name: str) -> tuple[list[str], float]:
        began = time.time()
        return every[name](options.fix), time.time() - began

    # Fixers run one after the other, because they write the same files.
    workers = ThreadPoolExecutor(1 if options.fix else os.cpu_count())
    for name, (complaints, took) in zip(chosen, workers.map(look, chosen), strict=True):
        report.add(name, complaints, took)
    if options.junit:
        report.write(options.junit)
    return 1 if report.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
