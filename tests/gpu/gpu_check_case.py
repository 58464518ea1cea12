# SPDX-License-Identifier: Apache-2.0
"""Runs tools/gpu_check.py with stubs for its programs, and reads what it reports."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/gpu_check.py"
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check_plan import CALLS  # noqa: E402

RESULTS = {
    "not begun", "running", "passed", "failed", "timed out", "stopped", "no time", "missing", "not applicable"
}  # fmt: skip

# Begins each stub: `me` is the log that its step will have.
HEAD = """\
import json, os, signal, sys, time
def after(option):
    return next((a.split("=json:")[1] for a in sys.argv if a.startswith(option + "=json:")), "") or (
        sys.argv[sys.argv.index(option) + 1] if option in sys.argv else "")
file = after("--json") or after("--gtest_output")
me = os.path.basename(file).split(".")[0] or ("integrity-proof" if "--sabotage" in sys.argv else "")
with open(os.path.join(os.path.dirname(sys.argv[0]), "pids"), "a") as pids:
    pids.write(f"{os.getpid()}\\n")
def hang():
    if os.environ.get("STUB_DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
if os.environ.get("STUB_HANG") == me and "--gtest_list_tests" not in sys.argv:
    hang()
time.sleep(float(os.environ.get("STUB_SLEEP", "0")))
"""
GTEST = """\
if "--gtest_list_tests" in sys.argv:
    print("Backends/EventConformance.\\n  Works/host\\nBackends/PackConformance.\\n  Works/host")
    sys.exit(0)
name = os.path.basename(sys.argv[0])
cases = [{"name": "Works", "result": "COMPLETED"}]
if os.environ.get("STUB_SKIPS") == me:
    cases.append({"name": "NoDevice", "result": "SKIPPED"})
if os.environ.get("STUB_FAILS") == me:
    cases.append({"name": "Breaks", "result": "COMPLETED", "failures": [{}]})
    print("this is why")
with open(file, "w") as out:
    json.dump({"testsuites": [{"testsuite": cases}]}, out)
sys.exit(1 if os.environ.get("STUB_FAILS") == me else 0)
"""
SMOKE = """\
for number in range(3):
    failed = os.environ.get("STUB_FAILS") == me and number == 1
    fact = {"fact": f"fact {number}", "result": "failed" if failed else "ok", "detail": "was looked at",
            "value": 2.5, "unit": "GB/s", "seconds": 0.1}
    with open(file, "a") as out:
        out.write(json.dumps(fact) + "\\n")
sys.exit(1 if os.environ.get("STUB_FAILS") == me else 0)
"""
INTEGRITY = """\
spoilt = "byte" in sys.argv and not os.environ.get("STUB_BLIND")
if spoilt:
    print("MISMATCH: block 1, expected 0x01, got 0x02")
if file:
    with open(file, "w") as out:
        json.dump({"verified_bytes": 1 << 30, "cycles": 3, "seed": 7, "error": "spoilt" if spoilt else ""}, out)
sys.exit(1 if spoilt else 0)
"""
BENCH = """\
rows = [
    {"direction": d, "path": p, "fragment_bytes": s, "percent_of_peak": share, "memory": "pinned"}
    for d in ("d2h", "h2d") for p, s, share in
    (("staged", 4096, 91.0), ("per_run", 4096, 20.0), ("batch", 8192, 96.0), ("batch", 1 << 20, 90.0))
]
rows[1] |= {"gb_per_s": 11.0, "expected_gb_per_s": 20.0, "off_model": "slower", "bound_by": "calls"}
if sys.argv[1] == "pipeline":
    rows = [{"direction": "d2h", "co_run": "gemm", "limit_gb_per_s": 4.0, "slow_down_percent": 0.5},
            {"direction": "d2h", "co_run": "gemm", "slow_down_percent": 2.9},
            {"direction": "d2h", "co_run": "stream", "slow_down_percent_p99": 4.9},
            {"direction": "d2h", "count": 512, "submit_us_mean": 120.0, "co_run": "", "piece_bytes": 8 << 20}]
def write(some):
    # As link says it; copy and pipeline leave the device's own memory out.
    device = 4500.0 if sys.argv[1] == "link" else None
    with open(file + ".draft", "w") as out:
        json.dump({"rows": some, "peaks": {"d2h_gb_per_s": 50.0, "device_gb_per_s": device}}, out)
    os.replace(file + ".draft", file)
write(rows[:1])
if os.environ.get("STUB_LATE") == me:
    hang()
write(rows)
if os.environ.get("STUB_FAILS") == me:
    print("this is why")
    sys.exit(4)
"""
STUBS = {
    "conformance_test": GTEST, "engine_pair_test": GTEST, "transfer_test": GTEST, "kvferry-gpu-smoke": SMOKE,
    "kvferry-integrity": INTEGRITY, "kvferry-bench": BENCH,
    "kvferry-lab": BENCH,
}  # fmt: skip


class GpuCheckCase(unittest.TestCase):
    """A folder with the stubs, and one for the report."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.out = self.folder / "out"
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        for name, text in STUBS.items():
            stub = self.programs / name
            stub.write_text(f"#!{sys.executable} -S\n{HEAD}{text}")
            stub.chmod(0o755)

    def command(self, *arguments: str, backend: str = "cuda_stand_in") -> list[str]:
        return [
            sys.executable, str(SCRIPT), "--backend", backend, "--out", str(self.out), "--programs", str(self.programs),
            *arguments,
        ]  # fmt: skip

    def environment(self, **env: str) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", **env}

    def check(self, *arguments: str, backend: str = "cuda_stand_in", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, backend=backend), capture_output=True, text=True, check=False, timeout=120,
            env=self.environment(**env),
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, *arguments: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "said").open("wb") as said:
            process = subprocess.Popen(self.command(*arguments), stdout=said, stderr=said, env=self.environment(**env))
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def report(self) -> dict:
        (path,) = self.out.glob("*.json")
        return json.loads(path.read_text())

    def results(self) -> dict[str, str]:
        return {step["name"]: step["result"] for step in self.report()["steps"]}

    def step(self, name: str) -> dict:
        (step,) = (step for step in self.report()["steps"] if step["name"] == name)
        return step

    def markdown(self) -> str:
        (path,) = self.out.glob("*.md")
        return path.read_text()

    def goals(self) -> dict[str, dict]:
        return {goal["what"]: goal for goal in self.report()["goals"]}

    def wait_until(self, what: str, is_so) -> None:
        end = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < end, f"{what} does not come: {(self.folder / 'said').read_text()}"
            time.sleep(0.02)

    def wait_for_step(self, name: str, result: str) -> None:
        self.wait_until(f"{name} {result}", lambda: list(self.out.glob("*.json")) and self.results()[name] == result)

    def survivors(self) -> list[int]:
        pids = self.programs / "pids"
        alive = []
        for pid in map(int, pids.read_text().split() if pids.exists() else []):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                alive += [pid] if state != "Z" else []
        return alive

    def assert_whole(self, call: str) -> dict[str, str]:
        """Check that a report of a call that was cut off can be read and misses no step."""
        results = self.results()
        assert list(results) == ["machine", "programs", *CALLS[call]]
        assert set(results.values()) <= RESULTS
        assert self.markdown().startswith("# GPU check")
        assert not list(self.out.glob("*.draft"))
        self.wait_until("the end of all children", lambda: not self.survivors())
        return results
