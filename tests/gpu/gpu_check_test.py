# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py without a GPU and without its programs: stubs stand for them."""

import ctypes
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/gpu_check.py"
GTEST_STEPS = "conformance,gpu,gpu_driver,ownership,transfer"

GTEST = """\
import json, os, sys, time
time.sleep(float(os.environ.get("STUB_SLEEP", "0")))
result = next(a for a in sys.argv if a.startswith("--gtest_output=json:")).split(":", 1)[1]
name = os.path.basename(sys.argv[0])
cases = [{"name": "Works", "result": "COMPLETED"}]
if name == os.environ.get("STUB_SKIPS"):
    cases.append({"name": "NoDevice", "result": "SKIPPED"})
if name == os.environ.get("STUB_FAILS"):
    cases.append({"name": "Breaks", "result": "COMPLETED", "failures": [{}]})
    print("this is why")
with open(result, "w") as out:
    json.dump({"testsuites": [{"testsuite": cases}]}, out)
sys.exit(1 if name == os.environ.get("STUB_FAILS") else 0)
"""
INTEGRITY = """\
import json, os, sys
spoilt = "byte" in sys.argv and not os.environ.get("STUB_BLIND")
if spoilt:
    print("MISMATCH: block 1, expected 0x01, got 0x02")
with open(sys.argv[sys.argv.index("--json") + 1], "w") as out:
    json.dump({"verified_bytes": 1 << 30, "cycles": 3, "seed": 7, "error": "spoilt" if spoilt else ""}, out)
sys.exit(1 if spoilt else 0)
"""
BENCH = """\
import json, sys
rows = [
    {"direction": d, "path": p, "fragment_bytes": s, "percent_of_peak": share, "memory": "pinned"}
    for d in ("d2h", "h2d") for p, s, share in
    (("staged", 4096, 91.0), ("per_run", 4096, 20.0), ("batch", 8192, 96.0), ("batch", 1 << 20, 90.0))
]
if sys.argv[1] == "pipeline":
    rows = [{"direction": "d2h", "co_run": "gemm", "limit_gb_per_s": 4.0, "slow_down_percent": 0.5},
            {"direction": "d2h", "co_run": "gemm", "slow_down_percent": 2.9},
            {"direction": "d2h", "co_run": "stream", "slow_down_percent_p99": 4.9},
            {"direction": "d2h", "count": 512, "submit_us_mean": 120.0, "co_run": ""}]
with open(sys.argv[sys.argv.index("--json") + 1], "w") as out:
    # As link says it; copy and pipeline leave the device's own memory out.
    device = 4500.0 if sys.argv[1] == "link" else None
    json.dump({"rows": rows, "peaks": {"d2h_gb_per_s": 50.0, "device_gb_per_s": device}}, out)
"""
STUBS = {
    "conformance_test": GTEST, "gpu_test": GTEST, "gpu_driver_test": GTEST, "engine_pair_test": GTEST,
    "transfer_test": GTEST, "kvferry-integrity": INTEGRITY, "kvferry-bench": BENCH,
}  # fmt: skip


class GpuCheckTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        for name, text in STUBS.items():
            stub = self.programs / name
            stub.write_text(f"#!{sys.executable}\n{text}")
            stub.chmod(0o755)

    def check(self, *arguments: str, backend: str = "host", **env: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable, str(SCRIPT), "--backend", backend, "--out", str(self.folder / "out"),
            "--build-dir", str(self.folder / "build"), "--programs", str(self.programs), *arguments,
        ]  # fmt: skip
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env={"PATH": "/usr/bin:/bin", **env}
        )

    def report(self) -> dict:
        (path,) = (self.folder / "out").glob("*-host.json")
        assert path.with_suffix(".md").exists()
        return json.loads(path.read_text())

    def results(self) -> dict[str, str]:
        return {step["name"]: step["result"] for step in self.report()["steps"]}

    def goals(self) -> dict[str, dict]:
        return {goal["what"]: goal for goal in self.report()["goals"]}

    def test_report_tells_each_step_and_the_machine(self) -> None:
        done = self.check("--steps", f"{GTEST_STEPS},integrity,integrity-proof")
        assert done.returncode == 0, done.stdout + done.stderr
        report = self.report()
        assert report["clean"]
        assert set(self.results().values()) == {"passed"}
        assert [s["name"] for s in report["steps"]] == [*GTEST_STEPS.split(","), "integrity", "integrity-proof"]
        for step in report["steps"]:
            assert {"name", "result", "seconds", "command", "detail", "data"} <= set(step)
        assert "KVFERRY_REQUIRE_BACKEND=host" in report["steps"][0]["command"]
        assert {"gpu", "processor", "kernel", "commit"} <= set(report["environment"])

    def test_failed_step_stops_no_other_and_shows_the_end_of_its_log(self) -> None:
        done = self.check("--steps", GTEST_STEPS, STUB_FAILS="gpu_test")
        assert done.returncode == 1
        assert self.results()["gpu"] == "failed"
        assert self.results()["transfer"] == "passed"
        assert "this is why" in done.stdout
        (markdown,) = (self.folder / "out").glob("*.md")
        assert "NOT clean: gpu." in markdown.read_text()
        assert "this is why" in markdown.read_text()

    def test_skipped_test_is_a_failure_where_the_device_was_asked_for(self) -> None:
        done = self.check("--steps", GTEST_STEPS, STUB_SKIPS="conformance_test")
        assert done.returncode == 1
        assert self.results()["conformance"] == "failed"

    def test_skipped_unit_test_of_the_other_vendor_is_none(self) -> None:
        done = self.check("--steps", GTEST_STEPS, STUB_SKIPS="gpu_driver_test")
        assert done.returncode == 0, done.stdout

    def test_program_that_was_not_built_is_named(self) -> None:
        (self.programs / "kvferry-bench").unlink()
        done = self.check("--steps", "bench-link,conformance")
        assert done.returncode == 1
        assert self.results() == {"bench-link": "missing", "conformance": "passed"}
        assert "bench/kvferry-bench is not there" in done.stdout

    def test_step_that_hangs_is_ended(self) -> None:
        done = self.check("--steps", "conformance", "--most-seconds", "1", STUB_SLEEP="60")
        assert done.returncode == 1
        assert self.results() == {"conformance": "timed out"}

    def test_steps_of_several_calls_make_one_report(self) -> None:
        self.check("--steps", "conformance,gpu", STUB_FAILS="gpu_test")
        self.check("--steps", "gpu,transfer", "--append")
        assert self.results() == {"conformance": "passed", "gpu": "passed", "transfer": "passed"}
        assert self.report()["clean"]

    def test_steps_are_added_to_a_report_from_elsewhere(self) -> None:
        self.check("--steps", "conformance")
        (path,) = (self.folder / "out").glob("*.json")
        elsewhere = path.rename(self.folder / "earlier.json")
        (self.folder / "build/gpu-check/report.json").unlink()
        self.check("--steps", "transfer", "--append", str(elsewhere))
        assert self.results() == {"conformance": "passed", "transfer": "passed"}

    def test_integrity_run_that_is_blind_fails_its_proof(self) -> None:
        done = self.check("--steps", "integrity-proof", STUB_BLIND="1")
        assert done.returncode == 1
        assert "NOT found" in done.stdout

    def test_figures_are_held_against_the_goals(self) -> None:
        done = self.check("--steps", "bench-link,bench-copy,bench-pipeline")
        assert done.returncode == 0, done.stdout
        goals = self.goals()
        small = goals["1 to 4 KiB fragments"]
        assert (small["measured"], small["met"]) == (91.0, True)  # by the best path
        large = goals["store and load, blocks of 512 KiB and more, one direction"]
        assert (large["measured"], large["met"]) == (90.0, False)
        assert goals["slow-down of a compute-bound stream, stores at 4 GB/s"]["met"]
        assert not goals["CPU time of the engine's thread for a plan of 512 blocks"]["met"]
        both = goals["both directions at once"]
        assert both["measured"] is None
        assert "unmeasured" in both["source"]

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

    def test_full_rate_is_not_judged_where_the_memory_of_the_device_is_unmeasured(self) -> None:
        self.check("--steps", "bench-copy,bench-pipeline")
        gemm = self.goals()["the same at the link's full rate"]
        assert (gemm["measured"], gemm["met"]) == (2.9, None)
        assert "the device's own memory is unmeasured" in gemm["source"]

    def test_sanitizer_means_nothing_without_a_cuda_device(self) -> None:
        done = self.check("--steps", "sanitizer-memcheck")
        assert done.returncode == 0, done.stdout
        assert self.results() == {"sanitizer-memcheck": "not applicable"}

    def test_unknown_step_is_refused_with_the_known_ones(self) -> None:
        done = self.check("--steps", "conformanse")
        assert done.returncode == 2
        assert "conformance" in done.stderr

    def test_without_a_gpu_it_says_so_in_one_line(self) -> None:
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


if __name__ == "__main__":
    unittest.main()
