# SPDX-License-Identifier: Apache-2.0
"""The steps of a GPU check: what is run, for how long at most, and how its result is judged."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_check_machine import ROOT

Json = dict[str, Any]
TAIL_LINES = 25
# As tests/unit/transfer/CMakeLists.txt: what needs neither the valve nor the simulated link.
ANY_DEVICE_TRANSFER_TESTS = ":".join(
    (
        "*StressTest.*",
        "StoreTest.CarriesEveryByteOfEveryGroup",
        "StoreTest.StoresWhatTheBlocksHeldWhenTheyWereGathered",
        "LoadTest.CarriesEveryByteAndTouchesNothingElse",
        "LoadTest.LoadsOneSlotIntoSeveralBlocks",
    )
)


@dataclass
class Setting:
    """What all steps need to know."""

    backend: str
    build_dir: Path
    logs: Path
    minutes: float = 5.0
    #: Seconds that no step outlasts, whatever its own limit is.
    most_seconds: float = 570.0
    #: Whether everything is as small as can be: shows that the script runs.
    tiny: bool = False
    architecture: str = ""
    prefix: Path | None = None
    #: Folders of the programs, for tests of this script.
    programs: Path | None = None

    @property
    def is_real(self) -> bool:
        """Whether the back end is a device."""
        return self.backend in ("cuda", "hip")


class UnusableError(Exception):
    """A step cannot run here; one line that says why."""


class NotApplicableError(Exception):
    """A step means nothing on this back end."""


@dataclass
class Outcome:
    """How one step ended."""

    name: str
    result: str  #: passed, failed, timed out, missing or not applicable
    seconds: float = 0.0
    command: str = ""
    detail: str = ""
    tail: list[str] = field(default_factory=list)
    data: Json = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return the record that the report keeps."""
        record = {
            "name": self.name, "result": self.result, "seconds": round(self.seconds, 1), "command": self.command,
            "detail": self.detail, "data": self.data,
        }  # fmt: skip
        return record | ({"tail": self.tail} if self.tail else {})


def program(setting: Setting, path: str) -> str:
    """Return a program of the build.

    Raises
    ------
    UnusableError
        If it was not built.
    """
    found = (setting.programs or setting.build_dir) / (Path(path).name if setting.programs else path)
    if not found.exists():
        raise UnusableError(f"{path} is not there: the step 'build' did not make it")
    return str(found)


def run(setting: Setting, name: str, command: list[str], limit: float, env: dict[str, str] | None = None) -> Outcome:
    """Run one command with its output in a log; end it and its children at the limit."""
    log = setting.logs / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    text = " ".join([*(f"{key}={value}" for key, value in (env or {}).items()), *command]).replace(f"{ROOT}/", "")
    outcome = Outcome(name, "passed", command=text)
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=os.environ | (env or {}), start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout=min(limit, setting.most_seconds))
            if status != 0:
                outcome.result, outcome.detail = "failed", f"exit {status}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            outcome.result, outcome.detail = "timed out", f"after {min(limit, setting.most_seconds):.0f} s"
    outcome.seconds = time.monotonic() - began
    if outcome.result != "passed":
        outcome.tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return outcome


# ---- GoogleTest ----


def run_gtest(
    setting: Setting, name: str, path: str, only: str, limit: float, env: dict[str, str] | None = None,
    around: Iterable[str] = (),
) -> Outcome:  # fmt: skip
    """Run a GoogleTest program; a skipped test is a failure, and so is a run of none."""
    junit = setting.logs / f"{name}.gtest.json"
    junit.unlink(missing_ok=True)
    command = [*around, program(setting, path), f"--gtest_filter={only}", f"--gtest_output=json:{junit}"]
    outcome = run(setting, name, command, limit, env)
    try:
        suites = json.loads(junit.read_text())["testsuites"]
    except (OSError, ValueError, KeyError):
        suites = []
    cases = [case for suite in suites for case in suite["testsuite"]]
    skipped = [case["name"] for case in cases if case.get("result") == "SKIPPED"]
    failed = [case["name"] for case in cases if case.get("failures")]
    outcome.data = {"tests": len(cases), "failed": failed, "skipped": len(skipped)}
    counts = f"{len(cases)} tests, {len(failed)} failed, {len(skipped)} skipped"
    outcome.detail = f"{outcome.detail}; {counts}" if outcome.detail else counts
    if outcome.result == "passed" and (failed or skipped or not cases):
        outcome.result = "failed"
    return outcome


def conformance(setting: Setting) -> Outcome:
    """The contract of the device interface, on this back end alone."""
    only = f"*/{setting.backend}:RequiredBackend.*"
    if setting.tiny:
        only = f"*EventConformance*/{setting.backend}:*/PackConformance*/{setting.backend}"
    env = {"KVFERRY_REQUIRE_BACKEND": setting.backend}
    return run_gtest(setting, "conformance", "tests/conformance/conformance_test", only, 400, env)


def gpu_units(setting: Setting) -> Outcome:
    """The parts of gpu/: addressing, embedded code objects, the host back end."""
    only = "BlockGeometry*" if setting.tiny else "*"
    outcome = run_gtest(setting, "gpu", "tests/unit/gpu/gpu_test", only, 300)
    return accept_skips(outcome)


def gpu_driver(setting: Setting) -> Outcome:
    """The drivers' back ends on stand-ins, and their declarations against this machine's headers."""
    only = "*Startup*" if setting.tiny else "*"
    return accept_skips(run_gtest(setting, "gpu_driver", "tests/unit/gpu_driver/gpu_driver_test", only, 300))


def accept_skips(outcome: Outcome) -> Outcome:
    """Some unit tests are for the other vendor's compiler or headers: their skips are no failure."""
    if outcome.result == "failed" and outcome.data["tests"] and not outcome.data["failed"] and not outcome.tail:
        outcome.result = "passed"
    return outcome


def ownership(setting: Setting) -> Outcome:
    """The random model: one scheduler side and two ranks, KV memory on this device."""
    env = {"KVFERRY_TEST_BACKEND": setting.backend}
    if setting.tiny:
        env["KVFERRY_NUM_SEEDS"] = "2"
    return run_gtest(setting, "ownership", "tests/model/engine_pair_test", "*", 500, env)


def transfer(setting: Setting) -> Outcome:
    """Stores and loads under stress, failures and cancels."""
    env = {"KVFERRY_TEST_BACKEND": setting.backend}
    only = "StoreTest.CarriesEveryByteOfEveryGroup" if setting.tiny else ANY_DEVICE_TRANSFER_TESTS
    return run_gtest(setting, "transfer", "tests/unit/transfer/transfer_test", only, 300, env)


# ---- data integrity ----


def integrity_command(setting: Setting, name: str, seconds: float, *more: str) -> list[str]:
    """Return the call of kvferry-integrity, small on what is no device."""
    command = [program(setting, "tests/gpu/kvferry-integrity"), "--backend", setting.backend]
    command += ["--seconds", f"{seconds:.0f}", "--json", str(setting.logs / f"{name}.json"), *more]
    if not setting.is_real:
        command += ["--pool-mib", "4", "--max-block-kib", "64"]
    return command


def integrity(setting: Setting) -> Outcome:
    """Random blocks stored and loaded while a compute stream takes them away; every byte checked."""
    seconds = 1 if setting.tiny else setting.minutes * 60
    result = setting.logs / "integrity.json"
    result.unlink(missing_ok=True)
    outcome = run(setting, "integrity", integrity_command(setting, "integrity", seconds), seconds + 150)
    if result.exists():
        outcome.data = json.loads(result.read_text())
        gib = outcome.data["verified_bytes"] / 2**30
        said = f"{gib:.1f} GiB verified in {outcome.data['cycles']} cycles, seed {outcome.data['seed']}"
        outcome.detail = "; ".join(filter(None, (outcome.detail, said, outcome.data["error"])))
    return outcome


def integrity_proof(setting: Setting) -> Outcome:
    """The same with a byte changed on purpose: it has to be found."""
    command = integrity_command(setting, "integrity-proof", 20, "--sabotage", "byte", "--seed", "7")
    outcome = run(setting, "integrity-proof", command, 200)
    found = any("MISMATCH" in line for line in outcome.tail)
    if outcome.result == "failed" and outcome.detail == "exit 1" and found:
        outcome.result, outcome.tail = "passed", []
        outcome.detail = "the changed byte was found"
    elif outcome.result == "passed":
        outcome.result, outcome.detail = "failed", "the changed byte was NOT found"
    return outcome


# ---- the kernels under compute-sanitizer ----


def sanitizer(tool: str) -> Callable[[Setting], Outcome]:
    """Return the step that runs one tool of compute-sanitizer on gather and scatter."""

    def step(setting: Setting) -> Outcome:
        if setting.backend != "cuda":
            raise NotApplicableError("compute-sanitizer is for CUDA devices")
        found = shutil.which("compute-sanitizer")
        if not found:
            raise UnusableError("compute-sanitizer is not found")
        # Racecheck is many times slower than the others.
        only = "*PackConformance*/cuda"
        if tool != "racecheck":
            only += ":*PackSweepConformance*/cuda"
        around = [found, "--tool", tool, "--error-exitcode", "9"]
        env = {"KVFERRY_REQUIRE_BACKEND": "cuda"}
        path = "tests/conformance/conformance_test"
        return run_gtest(setting, f"sanitizer-{tool}", path, only, 500, env, around)

    return step


# ---- figures ----


def bench(subcommand: str) -> Callable[[Setting], Outcome]:
    """Return the step that runs one subcommand of kvferry-bench."""

    def step(setting: Setting) -> Outcome:
        name = f"bench-{subcommand}"
        result = setting.logs / f"{name}.json"
        result.unlink(missing_ok=True)
        device = setting.backend if setting.is_real else "host"
        command = [program(setting, "bench/kvferry-bench"), subcommand, "--device", device, "--json", str(result)]
        if subcommand == "pipeline":
            # Alone, and beside work bound by arithmetic and by memory, without and with a limit.
            command += ["--co-run", "none,gemm,stream"]
        if setting.tiny:
            command.append("--quick")
        outcome = run(setting, name, command, 560)
        if not result.exists():
            if outcome.result == "passed":
                outcome.result, outcome.detail = "failed", "it wrote no JSON"
            return outcome
        found = json.loads(result.read_text())
        rows = [{key: value for key, value in row.items() if value not in (None, "")} for row in found.get("rows", [])]
        outcome.data = {"peaks": found.get("peaks"), "notes": found.get("notes", []), "rows": rows}
        outcome.detail = "; ".join(filter(None, (outcome.detail, f"{len(rows)} rows", found.get("mismatch"))))
        return outcome

    return step


# ---- the build ----

TARGETS = (
    "conformance_test", "gpu_test", "gpu_driver_test", "engine_pair_test", "transfer_test", "kvferry-integrity",
)  # fmt: skip


def build(setting: Setting) -> Outcome:
    """Configure and build what the other steps run, with what is here and what was carried."""
    bench_is_there = (ROOT / "bench/CMakeLists.txt").exists()
    configure = ["cmake", "--preset", "gpu-check", "-B", str(setting.build_dir)]
    configure += ["-G", "Ninja" if shutil.which("ninja") else "Unix Makefiles"]
    configure.append(f"-DKVFERRY_BUILD_BENCH={'ON' if bench_is_there else 'OFF'}")
    if setting.prefix is not None:
        configure.append(f"-DCMAKE_PREFIX_PATH={setting.prefix}")
    if setting.backend == "cuda":
        configure += ["-DKVFERRY_CUDA=ON", f"-DKVFERRY_CUDA_ARCHITECTURES={setting.architecture or '90'}"]
    if setting.backend == "hip":
        configure.append("-DKVFERRY_HIP=ON")
    configured = run(setting, "configure", configure, 120)
    if configured.result != "passed":
        configured.name = "build"
        return configured
    targets = [*TARGETS, *(["kvferry-bench"] if bench_is_there else [])]
    # All that can be made, so that one broken program does not take the others along.
    keep_going = ["-k", "0"] if shutil.which("ninja") else ["-k"]
    command = ["cmake", "--build", str(setting.build_dir), "-j", str(os.cpu_count() or 2), "--target", *targets]
    outcome = run(setting, "build", [*command, "--", *keep_going], 560)
    warnings = re.findall(r"^-- kvferry: .*", (setting.logs / "configure.log").read_text(), re.MULTILINE)
    outcome.data = {"configured": [line.removeprefix("-- kvferry: ") for line in warnings]}
    outcome.seconds += configured.seconds
    return outcome


Step = Callable[[Setting], Outcome]
STEPS: dict[str, Step] = {
    "build": build,
    "conformance": conformance,
    "gpu": gpu_units,
    "gpu_driver": gpu_driver,
    "ownership": ownership,
    "transfer": transfer,
    "integrity": integrity,
    "integrity-proof": integrity_proof,
    "sanitizer-memcheck": sanitizer("memcheck"),
    "sanitizer-racecheck": sanitizer("racecheck"),
    "sanitizer-synccheck": sanitizer("synccheck"),
    "bench-link": bench("link"),
    "bench-copy": bench("copy"),
    "bench-pipeline": bench("pipeline"),
}


def perform(name: str, setting: Setting) -> Outcome:
    """Run one step; what stops it becomes its outcome."""
    try:
        return STEPS[name](setting)
    except NotApplicableError as reason:
        return Outcome(name, "not applicable", detail=str(reason))
    except UnusableError as reason:
        return Outcome(name, "missing", detail=str(reason))
    except (OSError, ValueError, KeyError) as error:
        return Outcome(name, "failed", detail=f"{type(error).__name__}: {error}")
