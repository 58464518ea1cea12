# SPDX-License-Identifier: Apache-2.0
"""The stages of run_tests.py: what each stage runs, and what it needs.

Logs are in ``build/logs``, JUnit files in ``build/test-results``.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sum_tests import Tally, outputs_of_failed, tally_file

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/logs"
RESULTS = ROOT / "build/test-results"
VENV = ROOT / ".venv/bin"
# As pyproject.toml names it.
WHEEL_BUILD = "build/wheel"
LMCACHE_CONFORMANCE = "tests/v1/distributed/test_native_connector_l2_adapter.py"
# The test files, and the seeds of the random lives, for the two oldest releases of vLLM. The oldest one is tested with
# the hooks, with everything that differs between releases, and with lives of all kinds. The next one is tested with the
# hooks: it does nothing that neither the oldest one nor 0.32 does. That the oldest one finds plugins is tested with its
# real engine. The newest one runs all tests, and 0.32 those with the real engine.
OLDER_RELEASES_MEET = {
    "0.30": (
        "aborts", "client_lives", "connector_scheduler", "failed_loads", "features_scheduling", "kv_events",
        "preflight", "random_lives", "replicas", "runner_exits", "shared_loads", "stale_reports", "start_up", "stats",
        "versions", "whole_loads",
    ),
    "0.31": ("connector_scheduler", "every_state", "kv_events", "preflight", "start_up", "versions"),
}  # fmt: skip
# What the inner loop leaves out by a part of its name: the tests that take half of the time.
CHECK_LEAVES_OUT = (
    "lives", "every_order", "exhaustion", "hit_length", "stand_in", "sleep", "plugin", "time_outs",
)  # fmt: skip
OLDER_RELEASES_SEEDS = "not random_lives or sync-0 or with_priorities and (plain-0 or hybrid-0)"
STARTED = int(os.environ.get("KVFERRY_STARTED", time.time()))
# How much of a failure is shown: lines of each test, and tests of a stage.
MOST_LINES = 60
MOST_FAILURES = 5
# The time for new inputs, for each fuzzer.
FUZZ_SECONDS = 6
NUM_JOBS = str(os.cpu_count() or 2)
# Many tests wait: for another process, a link's pace, a deadline.
NUM_TEST_JOBS = str((os.cpu_count() or 2) + 1)


def say(text: str) -> None:
    """Print one line of progress with the elapsed time."""
    print(f"[{time.time() - STARTED:4.0f}s] {text}", flush=True)


def run(log: str, *command: str, env: dict[str, str] | None = None, say_tail: bool = True) -> int:
    """Run a command with its output in a log; show the end of the log if the command fails."""
    path = LOGS / f"{log}.log"
    with path.open("w") as out:
        status = subprocess.run(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=os.environ | (env or {}), check=False,
        ).returncode  # fmt: skip
    if status != 0 and say_tail:
        say(f"{log}: FAILED (exit {status}). Last lines of {path.relative_to(ROOT)}:")
        for line in path.read_text(errors="replace").splitlines()[-MOST_LINES:]:
            print(f"    {line}", flush=True)
    return status


def script(name: str, *arguments: str) -> Tally:
    """Run one of the set-up scripts; they show their own progress."""
    ok = subprocess.run([str(ROOT / "tools" / name), *arguments], cwd=ROOT, check=False).returncode == 0
    return Tally() if ok else Tally(failed=[" ".join((name, *arguments))])


def judge(stage: str, status: int, junit: Path) -> Tally:
    """Sum up the JUnit file of a stage; a bad exit status counts even if every test passed."""
    total = tally_file(junit)
    for name, text in list(outputs_of_failed(junit).items())[:MOST_FAILURES]:
        say(f"{stage}: {name} FAILED. The end of what it said:")
        for line in text.splitlines()[-MOST_LINES:]:
            print(f"    {line}", flush=True)
    if status != 0 and not total.failed:
        total.failed.append(f"{stage}: exit status {status}")
    return total


def fixed_addresses() -> list[str]:
    """Return the command prefix with which ThreadSanitizer gets the memory map that it needs.

    ThreadSanitizer stops at the start on kernels that randomise more address bits than clang 14 expects. Some
    containers forbid the call that switches this off. There the tests run without the prefix.
    """
    prefix = ["setarch", "-R"]
    try:
        return prefix if subprocess.run([*prefix, "true"], check=False).returncode == 0 else []
    except OSError:
        return []


def cpp(preset: str, *options: str, prefix: Sequence[str] = ()) -> Tally:
    """Configure, build and run the C++ tests of one preset."""
    configure = [*prefix, "cmake", "--preset", preset, *options]
    build = [*prefix, "cmake", "--build", "--preset", preset]
    return run_cmake(preset, configure, build) or run_ctest(preset, *prefix, "ctest", "--preset", preset)


def run_cmake(name: str, configure: list[str], build: list[str]) -> Tally | None:
    """Run the two commands, the second one on all processors; return what failed."""
    for what, command in (("configure", configure), ("build", [*build, "-j", NUM_JOBS])):
        if run(f"{name}-{what}", *command) != 0:
            return Tally(failed=[f"{name}: {what}"])
    return None


def run_ctest(name: str, *command: str) -> Tally:
    """Run ctest on all processors, with a test more than those."""
    junit = RESULTS / f"{name}.xml"
    status = run(f"{name}-ctest", *command, "-j", NUM_TEST_JOBS, "--output-junit", str(junit))
    return judge(name, status, junit)


def build_beside_wheel(*target: str) -> Tally | None:
    """Build the C++ tests, or the targets, on the wheel's own objects in its build folder; return what failed.

    Where optimisation and missing pause points may matter, there are threads. The other tests run under
    AddressSanitizer only.
    """
    switches = (
        "-DKVFERRY_BUILD_TESTS=ON", "-DKVFERRY_TESTS=threads", "-DKVFERRY_BUILD_BENCH=ON", "-DKVFERRY_UNITY=tests",
    )  # fmt: skip
    return run_cmake(
        "release",
        ["cmake", "-S", ".", "-B", WHEEL_BUILD, *switches],
        ["cmake", "--build", WHEEL_BUILD, *target],
    )


def release() -> Tally:
    """Run the C++ tests without pause and fault points on the wheel's own objects."""
    command = ("ctest", "--test-dir", WHEEL_BUILD, "--output-on-failure", "--no-tests=error")
    return build_beside_wheel() or run_ctest("release", *command)


def stand_ins() -> Tally:
    """Build the stand-in drivers and the benchmark, which the Python tests load and run."""
    return build_beside_wheel("--target", "fake_cuda", "fake_hip", "kvferry-bench", "kvferry-lab") or Tally()


def pytest(stage: str, *options: str, **extra_env: str) -> Tally:
    """Run the Python tests that `options` name against the installed wheel."""
    junit = RESULTS / f"{stage}.xml"
    junit.unlink(missing_ok=True)
    env = {
        "PATH": f"{VENV}{os.pathsep}{os.environ['PATH']}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    } | extra_env
    # The program, not `python -m pytest`: that would put the repository's folders on the path.
    status = run(
        f"pytest-{stage}", str(VENV / "pytest"), f"--junitxml={junit}", *options, env=env
    )  # fmt: skip
    return judge(stage, status, junit)


def python(stage: str, *options: str, **extra_env: str) -> Tally:
    """Run Python tests without an engine, in a process more than there are cores.

    Tests with the same expensive fixture have a mark, xdist_group, that keeps them in one process.
    """
    return pytest(stage, "-n", NUM_TEST_JOBS, "--dist", "loadgroup", *options, **extra_env)


def site(release: str) -> str:
    """Return what to put before .venv on the path to use another vLLM."""
    return str(ROOT / f"build/vllm{release.replace('.', '')}/site")


def check_python() -> Tally:
    """Run the Python tests that take seconds, with the vLLM in .venv."""
    return python("check-python", "tests/python", "-k", f"not ({' or '.join(CHECK_LEAVES_OUT)})")


def python_newest() -> Tally:
    """Run all Python tests with vLLM 0.33."""
    return python("python", "tests/python", PYTHONPATH=site("0.33"))


def python_older() -> Tally:
    """Run a part of the Python tests with vLLM 0.30 and 0.31, and the real engine of the older one."""
    total = Tally()
    for release, names in OLDER_RELEASES_MEET.items():
        chosen = [f"tests/python/test_{name}.py" for name in names]
        stage = f"python-{release.replace('.', '')}"
        total.add(python(stage, *chosen, "-k", OLDER_RELEASES_SEEDS, PYTHONPATH=site(release)))
    engine = ("tests/e2e/test_roundtrip.py", "tests/e2e/test_one_flag.py", "-k", "in_process or told_a_name")
    total.add(pytest("e2e-030", *engine, "-n", NUM_JOBS, "--dist", "loadfile", PYTHONPATH=site("0.30")))
    return total


def e2e() -> Tally:
    """Run the tests with the real engine; the tests of a file share engines, so they stay together."""
    return pytest("e2e", "tests/e2e", "-n", NUM_TEST_JOBS, "--dist", "loadfile")


def lmcache() -> Tally:
    """Run LMCache's own conformance tests against our client, and our tests with LMCache, in LMCache's environment.

    At the same time: its tests mostly wait.
    """
    home = ROOT / "build/lmcache"

    def perform(name: str, *tests: str) -> Tally:
        junit = RESULTS / f"{name}.xml"
        junit.unlink(missing_ok=True)
        # These are paths, so that neither the repository's nor LMCache's own sources come before what is installed.
        status = run(
            f"pytest-{name}", str(home / "venv/bin/pytest"), "-c", os.devnull, "--rootdir", str(ROOT),
            "--import-mode=importlib", "--noconftest", "-p", "no:cacheprovider", "--timeout=600",
            "-W", "ignore::pytest.PytestDeprecationWarning", f"--junitxml={junit}", *tests,
            env={"PYTHONPATH": str(ROOT / "tests/lmcache"), "LMCACHE_TRACK_USAGE": "false"},
        )  # fmt: skip
        return judge(name, status, junit)

    with ThreadPoolExecutor(1) as beside:
        conformance = ("-p", "conformance", str(home / "sdist" / LMCACHE_CONFORMANCE))
        theirs = beside.submit(perform, "lmcache-conformance", *conformance)
        total = perform("lmcache-tests", "tests/lmcache")
        total.add(theirs.result())
    return total


def lint(*options: str) -> Tally:
    """Run the lint checks, each of which counts as one test."""
    junit = RESULTS / "lint.xml"
    junit.unlink(missing_ok=True)
    status = run("lint", str(VENV / "python"), "tools/lint.py", f"--junit={junit}", *options)
    return judge("lint", status, junit)


def docs() -> Tally:
    """Build the documentation site without the headers' reference; each step of the build counts as one test."""
    junit = RESULTS / "docs.xml"
    junit.unlink(missing_ok=True)
    status = run("docs", str(ROOT / "build/docs/venv/bin/python"), "tools/build_docs.py", f"--junit={junit}")
    return judge("docs", status, junit)


def protocol() -> Tally:
    """Check the models of the ownership protocol; each property and each mutant counts as one test."""
    junit = RESULTS / "protocol.xml"
    junit.unlink(missing_ok=True)
    status = run("protocol", sys.executable, "tests/model/protocol/check_models.py", f"--junit={junit}")
    return judge("protocol", status, junit)


def fuzz() -> Tally:
    """Replay the fuzzers' corpora and try new inputs for a while; each fuzzer counts as one test."""
    junit = RESULTS / "fuzz.xml"
    junit.unlink(missing_ok=True)
    status = run("fuzz", sys.executable, "tools/fuzz.py", f"--seconds={FUZZ_SECONDS}", f"--junit={junit}")
    return judge("fuzz", status, junit)


@dataclass(frozen=True)
class Stage:
    """One row of the summary.

    Attributes
    ----------
    needs
        The set-up stages that the stage needs.
    is_download
        Whether the stage mostly waits for the network. It then begins at once, beside the compilers.

    """

    name: str
    what: str
    action: Callable[[], Tally]
    needs: tuple[str, ...] = ()
    is_download: bool = False


SET_UP = (
    Stage("nvcc", "CUDA's compiler", lambda: script("setup_nvcc.sh")),
    Stage("venv", "virtual environment", lambda: script("setup_venv.sh"), is_download=True),
    Stage("wheel", "kvferry's wheel", lambda: script("build_wheel.sh"), ("venv", "nvcc")),
    Stage("stand-ins", "stand-in drivers and benchmark", stand_ins, ("wheel",)),
    Stage("docs-venv", "environment of the documentation site", partial(script, "setup_docs.sh"), is_download=True),
    Stage(
        "lmcache-venv",
        "environment of LMCache",
        partial(script, "setup_lmcache.sh", "environment"),
        is_download=True,
    ),
    Stage("lmcache-kvferry", "kvferry beside LMCache", lambda: script("setup_lmcache.sh"), ("lmcache-venv", "wheel")),
    *(
        Stage(
            f"vllm{name}",
            f"vLLM {release}",
            partial(script, "setup_vllm_site.sh", release),
            ("venv",),
            is_download=True,
        )
        for name, release in (("033", "0.33"), ("030", "0.30"), ("031", "0.31"))
    ),
)
TESTS = (
    # These stages need no download. The downloads of the others run in the meantime.
    Stage("host-asan", "C++ tests with pause and fault points, clang, ASan and UBSan", lambda: cpp("host-asan")),
    Stage("fuzz", "fuzzers of plans, reports, the tier's file and objects' records", fuzz),
    Stage("host-tsan", "C++ tests with threads, clang, TSan", lambda: cpp("host-tsan", prefix=fixed_addresses())),
    Stage("release", "C++ tests of what the wheel holds", release, ("wheel",)),
    Stage(
        "lint",
        "format, types, house rules; clang-tidy on what changed",
        lambda: lint("--tidy-changed"),
        ("venv", "wheel"),
    ),
    Stage("docs", "documentation site", docs, ("docs-venv",)),
    Stage("protocol", "models of the ownership protocol", protocol),
    Stage("python", "Python tests with vLLM 0.33", python_newest, ("venv", "wheel", "vllm033", "stand-ins")),
    Stage("python-older", "some with vLLM 0.30 and 0.31", python_older, ("venv", "wheel", "vllm030", "vllm031")),
    Stage("lmcache", "LMCache's conformance tests and ours with it", lmcache, ("lmcache-kvferry",)),
    Stage("e2e", "tests with the real engine", e2e, ("venv", "wheel", "stand-ins", "lmcache-kvferry")),
)
# The inner loop: it builds what changed, and runs the quick tests.
CHECK = (
    Stage("host-debug", "C++ tests with pause and fault points", lambda: cpp("host-debug"), ("nvcc",)),
    Stage("check-lint", "format, types, house rules", lint, ("venv", "wheel")),
    Stage("check-python", "quick Python tests", check_python, ("venv", "wheel", "stand-ins")),
)
