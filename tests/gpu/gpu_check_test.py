# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py without a GPU and without its programs: stubs stand for them."""

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/gpu_check.py"
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check_plan import CALLS, STEPS  # noqa: E402

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


class GpuCheckTest(unittest.TestCase):
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

    # ---- a call ----

    def test_each_call_does_its_steps_in_order(self) -> None:
        for call, steps in CALLS.items():
            done = self.check("--call", call)
            assert done.returncode == 0, done.stdout + done.stderr
            assert list(self.results()) == ["machine", "programs", *steps]
            assert set(self.results().values()) <= {"passed", "not applicable"}
            assert self.report()["clean"]

    def test_steps_of_a_call_fit_into_ten_minutes(self) -> None:
        for call, steps in CALLS.items():
            assert sum(STEPS[name].seconds for name in steps) <= 660, call
            assert sum(STEPS[name].least for name in steps) <= 300, call

    def test_three_calls_make_one_report(self) -> None:
        for call in CALLS:
            self.check("--call", call, *([] if call == "first" else ["--append", str(next(self.out.glob("*.json")))]))
        report = self.report()
        assert [call["call"] for call in report["calls"]] == list(CALLS)
        assert len(report["steps"]) == 2 + sum(len(steps) for steps in CALLS.values())
        assert report["clean"]

    def test_report_tells_the_machine_and_where_each_fact_was_read(self) -> None:
        self.check("--steps", "conformance")
        machine = self.report()["machine"]
        assert {"gpu", "processor", "kernel", "commit", "memory"} <= set(machine)
        assert machine["processor"]["source"] == "/proc/cpuinfo"
        assert "/proc/cpuinfo" in self.markdown()

    def test_conformance_runs_by_suite(self) -> None:
        self.check("--steps", "conformance", STUB_FAILS="conformance-PackConformance")
        parts = {part["name"]: part["result"] for part in self.step("conformance")["data"]["parts"]}
        assert parts == {
            "conformance-EventConformance": "passed", "conformance-PackConformance": "failed",
            "conformance-RequiredBackend": "passed",
        }  # fmt: skip

    def test_failed_step_stops_no_other_and_shows_the_end_of_its_log(self) -> None:
        done = self.check("--steps", "ownership,transfer", STUB_FAILS="ownership")
        assert done.returncode == 1
        assert [self.results()[name] for name in ("ownership", "transfer")] == ["failed", "passed"]
        assert "this is why" in done.stdout
        assert "NOT clean. Failed: ownership." in self.markdown()
        assert "this is why" in self.markdown()

    def test_facts_of_the_smoke_test_are_in_the_report(self) -> None:
        done = self.check("--steps", "smoke", STUB_FAILS="smoke")
        assert done.returncode == 1
        assert "| failed | fact 1 | was looked at 2.5 GB/s |" in self.markdown()
        assert "3 facts, 1 failed" in self.step("smoke")["detail"]

    def test_skipped_test_is_a_failure(self) -> None:
        done = self.check("--steps", "conformance", STUB_SKIPS="conformance-PackConformance")
        assert done.returncode == 1
        assert self.results()["conformance"] == "failed"

    def test_program_that_is_not_there_is_named(self) -> None:
        (self.programs / "kvferry-bench").unlink()
        done = self.check("--steps", "bench-link,conformance")
        assert done.returncode == 1
        assert self.results()["bench-link"] == "missing"
        assert self.results()["conformance"] == "passed"
        assert "kvferry-bench is not below" in done.stdout

    def test_integrity_run_that_is_blind_fails_its_proof(self) -> None:
        done = self.check("--steps", "integrity-proof", STUB_BLIND="1")
        assert done.returncode == 1
        assert "NOT found" in done.stdout

    def test_bench_that_fails_keeps_its_rows(self) -> None:
        done = self.check("--steps", "bench-copy", STUB_FAILS="bench-copy")
        assert done.returncode == 1
        assert self.results()["bench-copy"] == "failed"
        assert len(self.step("bench-copy")["data"]["rows"]) == 8

    def test_logs_are_in_one_archive(self) -> None:
        self.check("--steps", "ownership,bench-link", STUB_FAILS="ownership")
        (path,) = self.out.glob("*-logs.tar.gz")
        with tarfile.open(path) as archive:
            assert {"logs/ownership.log", "logs/bench-link.log", "logs/bench-link.json"} <= set(archive.getnames())
            log = archive.extractfile("logs/ownership.log")
            assert log is not None
            assert b"this is why" in log.read()

    # ---- time ----

    def test_hanging_step_is_ended_and_the_next_one_runs(self) -> None:
        done = self.check(
            "--steps", "conformance,transfer", "--deadline", "22", STUB_HANG="conformance-EventConformance",
            STUB_DEAF="1",
        )  # fmt: skip
        # Its suite's 60 s are more than the call has: it takes all of them.
        assert done.returncode == 1
        assert self.results()["conformance"] == "timed out"
        assert self.results()["transfer"] == "no time"
        assert "No time: transfer." in self.markdown()
        assert not self.survivors()

    def test_rows_of_a_bench_that_is_ended_by_the_deadline_are_in_the_report(self) -> None:
        self.check("--steps", "bench-copy-quick", "--deadline", "24", STUB_LATE="bench-copy-quick")
        assert self.results()["bench-copy-quick"] == "timed out"
        assert len(self.step("bench-copy-quick")["data"]["rows"]) == 1

    def test_killed_at_any_step_it_leaves_a_report(self) -> None:
        for call, steps in CALLS.items():
            for number, name in enumerate(steps):
                if name.startswith("sanitizer-"):
                    continue  # there is none here
                log = "conformance-EventConformance" if name == "conformance" else name
                for path in self.out.glob("*"):
                    path.is_file() and path.unlink()
                how = (signal.SIGKILL, signal.SIGTERM)[number % 2]
                with self.subTest(step=name, how=how), self.running("--call", call, STUB_HANG=log) as process:
                    self.wait_for_step(name, "running")
                    time.sleep(0.1)
                    process.send_signal(how)
                    status = process.wait(timeout=20)
                    results = self.assert_whole(call)
                    assert status == (5 if how == signal.SIGTERM else -how)
                    assert results[name] == ("stopped" if how == signal.SIGTERM else "running")
                    assert set(list(results.values())[3 + number :]) <= {"not begun"}
                    assert {results[earlier] for earlier in steps[:number]} <= {"passed", "not applicable"}
                    assert ("NOT ENDED" in self.markdown()) == (how == signal.SIGKILL)

    def test_killed_at_any_moment_it_leaves_a_report(self) -> None:
        seed = int(os.environ.get("KVFERRY_SEED", time.time_ns() % 100_000))
        moments = random.Random(seed)
        for _ in range(int(os.environ.get("KVFERRY_NUM_KILLS", "8"))):
            for path in self.out.glob("*"):
                path.is_file() and path.unlink()
            with self.subTest(seed=seed), self.running("--call", "first", STUB_SLEEP="0.05") as process:
                self.wait_until("a report", lambda: list(self.out.glob("*.json")))
                time.sleep(moments.uniform(0, 3))
                process.send_signal(moments.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
                process.wait(timeout=20)
                self.assert_whole("first")

    # ---- figures ----

    def test_figures_are_held_against_the_goals(self) -> None:
        done = self.check("--steps", "bench-link,bench-copy,bench-pipeline")
        assert done.returncode == 0, done.stdout
        goals = self.goals()
        small = goals["1 to 4 KiB fragments"]
        assert (small["measured"], small["met"]) == (91.0, True)  # by the best path
        large = goals["store and load, blocks of 512 KiB and more, one direction"]
        assert (large["measured"], large["met"]) == (90.0, False)
        assert goals["slow-down of a compute-bound stream, stores at 4 GB/s"]["met"]
        assert "No figure of cuda_stand_in means anything." in self.markdown()
        assert not goals["CPU time of the engine's thread for a plan of 512 blocks"]["met"]
        both = goals["both directions at once"]
        assert both["measured"] is None
        assert "unmeasured" in both["source"]

    def test_quick_rows_serve_until_there_are_full_ones(self) -> None:
        self.check("--steps", "bench-copy-quick")
        assert self.goals()["1 to 4 KiB fragments"]["measured"] == 91.0

    def test_full_rate_is_judged_by_the_link_over_the_memory_of_this_device(self) -> None:
        self.check("--steps", "bench-link,bench-copy,bench-pipeline")
        gemm = self.goals()["the same at the link's full rate"]
        # 1.3 times twice 50 of 4500 GB/s are 2.889 %.
        assert (gemm["measured"], gemm["met"]) == (2.9, False)
        assert "at most 2.89 %" in gemm["source"]
        stream = self.goals()["slow-down of a bandwidth-bound stream, p99, full rate"]
        # 4.5 times are 5 %.
        assert (stream["measured"], stream["met"]) == (4.9, True)
        assert "at most 5.00 %" in stream["source"]

    def test_full_rate_is_not_judged_if_the_memory_of_the_device_is_unmeasured(self) -> None:
        self.check("--steps", "bench-copy,bench-pipeline")
        gemm = self.goals()["the same at the link's full rate"]
        assert (gemm["measured"], gemm["met"]) == (2.9, None)
        assert "the device's own memory is unmeasured" in gemm["source"]

    def test_rows_off_the_model_and_rates_by_piece_have_tables(self) -> None:
        self.check("--steps", "bench-copy,bench-pieces")
        assert "## Rows off the model" in self.markdown()
        assert "| bench-copy | d2h | per_run | 4096 |" in self.markdown()
        assert "| d2h | 8 |" in self.markdown()

    # ---- usage ----

    def test_sanitizer_means_nothing_without_a_cuda_device(self) -> None:
        done = self.check("--steps", "sanitizer-memcheck", backend="host")
        assert done.returncode == 0, done.stdout
        assert self.results()["sanitizer-memcheck"] == "not applicable"

    def test_unknown_step_is_refused_with_the_known_ones(self) -> None:
        done = self.check("--steps", "conformanse")
        assert done.returncode == 2
        assert "conformance" in done.stderr

    def test_deadline_that_leaves_no_time_is_refused(self) -> None:
        done = self.check("--deadline", "5")
        assert done.returncode == 2
        assert "too short" in done.stderr

    def test_without_a_gpu_it_says_so_in_one_line_and_leaves_no_report(self) -> None:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            pass
        else:
            self.skipTest("there is a driver here")
        done = self.check(backend="cuda")
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 1
        assert "there is no GPU" in done.stderr
        assert not self.out.exists()


if __name__ == "__main__":
    unittest.main()
