# SPDX-License-Identifier: Apache-2.0
"""The steps of a GPU check: what each step runs, and how its result is judged."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_check_process import Ended, Watch, run_command, shown

Json = dict[str, Any]
TAIL_LINES = 25
#: Seconds that one conformance suite may take: the longest takes 8 s on the stand-ins.
SUITE_SECONDS = 60.0
#: Lanes of a kvferry-integrity run: one for each way across the link, and one that may choose the way.
NUM_LANES = 5
# The same tests as in tests/unit/transfer/CMakeLists.txt: those that need neither the valve nor the simulated link.
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
class Outcome:
    """What is known about one step; the report has it from the first second and is written while it changes."""

    name: str
    #: ``not begun``, ``running``, ``passed``, ``failed``, ``timed out``, ``stopped`` (by a signal), ``no time``,
    #: ``missing`` (what it needs) or ``not applicable``.
    result: str = "not begun"
    seconds: float = 0.0
    command: str = ""
    detail: str = ""
    #: The last lines of the log, if it did not pass.
    tail: list[str] = field(default_factory=list)
    data: Json = field(default_factory=dict)


class UnusableError(Exception):
    """A step lacks something that it needs; the message says in one line what."""


class NotApplicableError(Exception):
    """A step has no meaning on this back end."""


@dataclass
class Setting:
    """What all steps need to know."""

    backend: str
    #: Folder of the programs: either a folder that holds all of them (carried), or a build tree.
    programs: Path
    logs: Path
    watch: Watch
    #: Called when an outcome has changed while its step runs.
    changed: Callable[[], None] = lambda: None
    #: Whether all sizes are as small as possible, which only shows that the steps run.
    tiny: bool = False
    #: Whether to take the rows of an earlier bench run in the same folder of logs.
    resume: bool = False

    @property
    def is_real(self) -> bool:
        """Return whether the back end is a device."""
        return self.backend in ("cuda", "hip")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which the programs find the stand-in drivers that were carried with them."""
        found = {}
        for variable, name in (("KVFERRY_FAKE_CUDA", "libfake_cuda.so"), ("KVFERRY_FAKE_HIP", "libfake_hip.so")):
            if (self.programs / "lib" / name).exists():
                found[variable] = str(self.programs / "lib" / name)
        return found


PROGRAMS = {
    "kvferry-gpu-smoke": "tests/gpu/kvferry-gpu-smoke",
    "conformance_test": "tests/conformance/conformance_test",
    "kvferry-integrity": "tests/gpu/kvferry-integrity",
    "kvferry-bench": "bench/kvferry-bench",
    "kvferry-lab": "bench/kvferry-lab",
    "transfer_test": "tests/unit/transfer/transfer_test",
    "engine_pair_test": "tests/model/engine_pair_test",
}


def program(setting: Setting, name: str) -> str:
    """Return the path of a program.

    Raises
    ------
    UnusableError
        If it is not there.

    """
    for path in (setting.programs / name, setting.programs / PROGRAMS[name]):
        if path.exists():
            return str(path)
    raise UnusableError(f"{name} is not below {setting.programs}: neither carried nor built")


def run(
    setting: Setting, outcome: Outcome, name: str, command: list[str], limit: float,
    env: Mapping[str, str] | None = None, on_tick: Callable[[], None] = lambda: None,
) -> Ended:  # fmt: skip
    """Run one command of a step; a failure becomes the outcome's result, detail and tail."""
    log = setting.logs / f"{name}.log"
    text = " ".join([*(f"{key}={value}" for key, value in (env or {}).items()), shown(command)])
    outcome.command = f"{outcome.command} && {text}" if outcome.command else text
    ended = run_command(command, log, limit, setting.watch, {**setting.environment, **(env or {})}, on_tick)
    if ended.how != "exit" or ended.status != 0:
        worst(outcome, "failed" if ended.how == "exit" else ended.how, f"{name}: {ended.detail}")
        outcome.tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return ended


RANK = ("passed", "no time", "failed", "timed out", "stopped")


def worst(outcome: Outcome, result: str, detail: str = "") -> None:
    """Add the result of a part of a step; the worst part decides the step's result."""
    before = outcome.result if outcome.result in RANK else "passed"
    outcome.result = max(before, result, key=RANK.index)
    outcome.detail = "; ".join(filter(None, (outcome.detail, detail)))


def read_json(path: Path) -> Json:
    """Return a program's JSON file; empty if it is missing or incomplete."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# ---- the first minute ----


def smoke(setting: Setting, outcome: Outcome, limit: float) -> None:
    """Ask the GPU the open questions of an audit, one fact per line (tests/gpu/smoke)."""
    if setting.backend == "host":
        raise NotApplicableError("the host is no GPU")
    lines = setting.logs / "smoke.jsonl"
    lines.unlink(missing_ok=True)

    def read() -> None:
        text = lines.read_text(errors="replace") if lines.exists() else ""
        facts = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        if facts != outcome.data.get("facts"):
            outcome.data["facts"] = facts
            setting.changed()

    seconds = str(int(max(1, min(limit, setting.watch.left()) - 5)))
    command = [program(setting, "kvferry-gpu-smoke"), "--backend", setting.backend]
    command += ["--json", str(lines), "--seconds", seconds]
    if not setting.is_real:
        command.append("--quick")
    run(setting, outcome, "smoke", command, limit, on_tick=read)
    read()
    facts = outcome.data["facts"]
    failed = [fact["fact"] for fact in facts if fact["result"] == "failed"]
    worst(outcome, "failed" if failed or not facts else "passed", f"{len(facts)} facts, {len(failed)} failed")


# ---- GoogleTest ----


def run_gtest(
    setting: Setting, outcome: Outcome, name: str, program_name: str, only: str, limit: float,
    env: Mapping[str, str] | None = None, around: Iterable[str] = (),
) -> None:  # fmt: skip
    """Run tests in a process of their own; a skipped test is a failure, and so is a run without tests."""
    junit = setting.logs / f"{name}.gtest.json"
    junit.unlink(missing_ok=True)
    command = [*around, program(setting, program_name), f"--gtest_filter={only}", f"--gtest_output=json:{junit}"]
    part = Outcome(name)
    ended = run(setting, part, name, command, limit, env)
    cases = [case for suite in read_json(junit).get("testsuites", []) for case in suite["testsuite"]]
    skipped = [case["name"] for case in cases if case.get("result") == "SKIPPED"]
    failed = [case["name"] for case in cases if case.get("failures")]
    worst(part, "failed" if failed or skipped or not cases else "passed")
    counts = f"{len(cases)} tests, {len(failed)} failed, {len(skipped)} skipped"
    part.detail = "; ".join(filter(None, (part.detail, counts)))
    outcome.data.setdefault("parts", []).append(
        {"name": name, "result": part.result, "seconds": round(ended.seconds, 1), "tests": len(cases),
         "failed": failed, "skipped": len(skipped), "detail": part.detail}
    )  # fmt: skip
    outcome.command = outcome.command or part.command
    outcome.tail = outcome.tail or part.tail
    worst(outcome, part.result, part.detail if part.result != "passed" else "")


def sum_parts(outcome: Outcome) -> None:
    """Say how many tests a step with several runs had."""
    parts = outcome.data.get("parts", [])
    counts = f"{sum(part['tests'] for part in parts)} tests"
    if len(parts) > 1:
        counts = f"{len(parts)} suites, {counts}"
    outcome.detail = "; ".join(filter(None, (counts, outcome.detail)))


def conformance(setting: Setting, outcome: Outcome, limit: float) -> None:
    """The contract of the device interface on this back end alone, each suite in a process of its own."""
    ask = [program(setting, "conformance_test"), "--gtest_list_tests", f"--gtest_filter=*/{setting.backend}"]
    if run(setting, outcome, "conformance-list", ask, min(30, limit)).how != "exit" or outcome.result == "failed":
        return
    listed = (setting.logs / "conformance-list.log").read_text().splitlines()
    suites = [line.rstrip(".") for line in listed if line.endswith(".") and not line.startswith(" ")]
    outcome.command = ""
    if setting.tiny:
        suites = [suite for suite in suites if suite.endswith(("/EventConformance", "/PackConformance"))]
    env = {"KVFERRY_REQUIRE_BACKEND": setting.backend}
    chosen = [(suite.rpartition("/")[2], f"{suite}.*/{setting.backend}") for suite in suites]
    for suite, only in [*chosen, ("RequiredBackend", "RequiredBackend.*")]:
        if setting.watch.left() < 5 or outcome.result == "stopped":
            worst(outcome, "no time", f"{suite}: not run")
            continue
        run_gtest(setting, outcome, f"conformance-{suite}", "conformance_test", only, min(SUITE_SECONDS, limit), env)
        setting.changed()
    sum_parts(outcome)


def ownership(setting: Setting, outcome: Outcome, limit: float) -> None:
    """The random model: one scheduler side and two ranks, KV memory on this device."""
    env = {"KVFERRY_TEST_BACKEND": setting.backend, "KVFERRY_NUM_SEEDS": "2" if setting.tiny else "64"}
    run_gtest(setting, outcome, "ownership", "engine_pair_test", "*", limit, env)
    sum_parts(outcome)


def transfer(setting: Setting, outcome: Outcome, limit: float) -> None:
    """Stores and loads under stress, failures and cancels."""
    env = {"KVFERRY_TEST_BACKEND": setting.backend}
    only = "StoreTest.CarriesEveryByteOfEveryGroup" if setting.tiny else ANY_DEVICE_TRANSFER_TESTS
    run_gtest(setting, outcome, "transfer", "transfer_test", only, limit, env)
    sum_parts(outcome)


def sanitizer(tool: str) -> Callable[[Setting, Outcome, float], None]:
    """Return the step that runs one tool of compute-sanitizer on gather and scatter."""

    def step(setting: Setting, outcome: Outcome, limit: float) -> None:
        if setting.backend != "cuda":
            raise NotApplicableError("compute-sanitizer is for CUDA devices")
        found = shutil.which("compute-sanitizer")
        if not found:
            raise UnusableError("compute-sanitizer is not found (CUDA toolkit)")
        # Racecheck is many times slower than the others.
        only = "*/PackConformance.*/cuda"
        if tool != "racecheck":
            only += ":*/PackSweepConformance.*/cuda"
        around = [found, "--tool", tool, "--error-exitcode", "9"]
        env = {"KVFERRY_REQUIRE_BACKEND": "cuda"}
        run_gtest(setting, outcome, f"sanitizer-{tool}", "conformance_test", only, limit, env, around)
        sum_parts(outcome)

    return step


# ---- data integrity ----


def integrity(seconds: float) -> Callable[[Setting, Outcome, float], None]:
    """Return the step that stores and loads random blocks for this time and checks every byte."""

    def step(setting: Setting, outcome: Outcome, limit: float) -> None:
        # The rest of the call, less the time for draining and for the last check of everything.
        most = min(limit, setting.watch.left()) - 25
        chosen = 1 if setting.tiny else max(1, min(seconds, most) if setting.is_real else min(seconds, most, 10))
        result = setting.logs / f"{outcome.name}.json"
        result.unlink(missing_ok=True)
        command = integrity_command(setting, chosen, "--json", str(result))
        run(setting, outcome, outcome.name, command, limit)
        if found := read_json(result):
            outcome.data = found
            gib = found["verified_bytes"] / 2**30
            said = f"{gib:.1f} GiB verified in {found['cycles']} cycles, seed {found['seed']}"
            outcome.detail = "; ".join(filter(None, (outcome.detail, said, found["error"])))
        worst(outcome, "passed" if found else "failed", "" if found else "it wrote no result")

    return step


def integrity_command(setting: Setting, seconds: float, *more: str) -> list[str]:
    """Return the call of kvferry-integrity, with small sizes on a back end that is not a device."""
    command = [program(setting, "kvferry-integrity"), "--backend", setting.backend]
    command += ["--seconds", f"{seconds:.0f}", "--threads", str(NUM_LANES), *more]
    return command if setting.is_real else [*command, "--pool-mib", "4", "--max-block-kib", "64"]


def integrity_proof(setting: Setting, outcome: Outcome, limit: float) -> None:
    """Run the same with one byte changed on purpose, which must be found."""
    command = integrity_command(setting, 10, "--sabotage", "byte", "--seed", "7")
    ended = run(setting, outcome, outcome.name, command, limit)
    found = any("MISMATCH" in line for line in outcome.tail)
    if ended.how == "exit" and ended.status == 1 and found:
        outcome.result, outcome.tail, outcome.detail = "passed", [], "the changed byte was found"
    elif ended.how == "exit":
        outcome.result, outcome.detail = "failed", "the changed byte was NOT found"


# ---- figures ----


def bench(
    subcommand: str, *options: str, quick: bool = False, of: str = "kvferry-bench"
) -> Callable[[Setting, Outcome, float], None]:
    """Return the step that runs one subcommand of `of`; its rows are in the report as they are measured."""

    def step(setting: Setting, outcome: Outcome, limit: float) -> None:
        result = setting.logs / f"{outcome.name}.json"
        if not setting.resume:
            result.unlink(missing_ok=True)
        command = [program(setting, of), subcommand, "--device", setting.backend, *options]
        command += ["--json", str(result), *(["--resume"] if result.exists() else [])]
        if quick or setting.tiny or not setting.is_real:
            command.append("--quick")
        if setting.tiny:
            command += ["--rounds", "1", "--warm-up", "0"]

        def read() -> None:
            found = read_json(result)
            whole = found.get("rows", [])
            rows = [{key: value for key, value in row.items() if value not in (None, "")} for row in whole]
            if found and rows != outcome.data.get("rows"):
                outcome.data |= {"peaks": found.get("peaks"), "notes": found.get("notes", []), "rows": rows}
                outcome.data["mismatch"] = found.get("mismatch") or ""
                setting.changed()

        run(setting, outcome, outcome.name, command, limit, on_tick=read)
        read()
        rows = outcome.data.get("rows", [])
        said = (f"{len(rows)} rows", outcome.data.get("mismatch", ""))
        worst(outcome, "passed" if rows else "failed", "; ".join(filter(None, said)))

    return step
