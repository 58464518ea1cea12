# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py without a GPU and without its programs: stubs stand for them."""

import ctypes
import os
import random
import re
import signal
import tarfile
import time
import unittest

from gpu_check_case import GpuCheckCase
from gpu_check_plan import CALLS, STEPS


class GpuCheckTest(GpuCheckCase):
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

    def test_report_has_no_paths_of_the_machine(self) -> None:
        self.check("--call", "third")
        commands = [call["command"] for call in self.report()["calls"]]
        commands += [step["command"] for step in self.report()["steps"]]
        assert any("kvferry-integrity" in command for command in commands)
        assert not [command for command in commands if re.search(r"(^|[ =:])/", command)]

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
