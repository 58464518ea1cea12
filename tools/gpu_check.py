# SPDX-License-Identifier: Apache-2.0
"""Run all checks that need a GPU, on a machine with a GPU and without a network. This uses the standard library only.

Three calls of ten minutes, each useful by itself:
  --call first    the first questions to a new GPU, conformance, data integrity, a quick form of the figures
  --call second   the figures in full
  --call third    compute-sanitizer, the ownership model, minutes of data integrity
  --stand-in      the same on a stand-in driver, to try it without a GPU

The report (<date>-<gpu>.json, .md and -logs.tar.gz) exists from the first second, with the planned steps, and is
written again after every suite and every group of rows. A step that fails does not stop the others.
``--carry DIR`` builds and collects, on a machine with a network, everything that a bare machine lacks.

The exit status is 0 if every step passed, 1 if one did not, 2 for wrong usage, 3 if there is no GPU, and 5 if a signal
stopped the check. tests/gpu/README.md says more.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import carry
import gpu_check_build
from gpu_check_machine import SMI_STATE, MissingDeviceError, missing_tools, nvidia_smi, open_library
from gpu_check_plan import CALLS, STEPS
from gpu_check_process import GRACE, ROOT, VANISH, Watch, run_command, shown
from gpu_check_report import CLEAN, Report, load
from gpu_check_steps import NotApplicableError, Outcome, Setting, UnusableError, worst
from gpu_check_steps import run as run_step

BACKENDS = ("cuda", "hip", "cuda_stand_in", "hip_stand_in", "host")
#: The report that `--append` adds to: a copy of the last one.
STATE = ROOT / "build/gpu-check/report.json"
#: Seconds that are kept for the last report and the archive, and for a command that does not end at once.
RESERVE = 4 + GRACE + VANISH
EXIT_FAILED, EXIT_NO_DEVICE, EXIT_STOPPED = 1, 3, 5


def absolute(text: str) -> Path:
    """Return a path that other programs, which run in the repository's root, understand as well."""
    return Path(text).resolve()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--call", choices=CALLS, help="which of the three (default: first)")
    parser.add_argument("--steps", metavar="A,B", help=f"instead: these, in this order, of: {' '.join(STEPS)}")
    parser.add_argument("--deadline", type=float, default=570.0, metavar="S", help="of the whole call (default 570)")
    parser.add_argument("--backend", choices=BACKENDS, default="cuda", help="default: cuda")
    parser.add_argument(
        "--stand-in", dest="backend", action="store_const", const="cuda_stand_in", help="--backend cuda_stand_in"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "tests/gpu/reports", help="where the report goes")
    parser.add_argument(
        "--append", nargs="?", type=Path, const=STATE, metavar="JSON", help="add to the last report, or to this one"
    )
    parser.add_argument("--carry", type=absolute, metavar="DIR", help="collect what a bare machine lacks, and end")
    parser.add_argument(
        "--prepare", action="store_true", help="first collect it into --carried; not counted by the deadline"
    )
    parser.add_argument(
        "--carried", type=absolute, default=ROOT / "build/carried", metavar="DIR", help="(build/carried)"
    )
    parser.add_argument(
        "--programs", type=absolute, metavar="DIR", help="take the programs of this build tree or folder"
    )
    parser.add_argument("--tiny", action="store_true", help="as little as shows that the steps run")
    options = parser.parse_args()
    unknown = set((options.steps or "").split(",")) - {"", *STEPS}
    if unknown:
        parser.error(f"unknown steps: {' '.join(sorted(unknown))}; there are: {' '.join(STEPS)}")
    if options.steps and options.call:
        parser.error("--call and --steps say the same: give one of them")
    if options.deadline < 2 * RESERVE:
        parser.error(f"--deadline {options.deadline:g} is too short: {2 * RESERVE:g} s are the least")
    return options


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


class Check:
    """One call: its plan, its report, and what runs."""

    def __init__(self, options: argparse.Namespace, earlier: dict[str, Any] | None) -> None:
        self._options = options
        self._steps: Sequence[str] = options.steps.split(",") if options.steps else CALLS[options.call or "first"]
        self._watch = Watch(options.deadline - RESERVE)
        self._watch.listen()
        self._logs = STATE.parent / "logs" if options.programs is None else options.out / "logs"
        if options.append is None:
            shutil.rmtree(self._logs, ignore_errors=True)
        self._call: dict[str, Any] = {
            "call": options.steps or options.call or "first",
            "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "deadline_s": options.deadline,
            "command": shown(sys.argv),
        }
        self._planned = ["machine", "programs", *self._steps]
        self._report = Report(options.out, options.backend, self._call, self._planned, earlier)
        self._save()

    def _save(self) -> None:
        written = self._report.save()
        if self._options.programs is None:
            STATE.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(written[0], STATE)

    def run(self) -> int:
        """Run every step that there is time for; return the exit status."""
        programs = self._options.programs or Path()
        if not self._machine():
            self._end()
            return EXIT_NO_DEVICE
        if self._options.programs is None:
            programs = self._programs()
        else:
            self._report.steps["programs"].result = "passed"
            self._report.steps["programs"].detail = f"of {programs}"
        setting = Setting(
            self._options.backend, programs, self._logs, self._watch, self._save, self._options.tiny,
            resume=self._options.append is not None,
        )  # fmt: skip
        for name in self._steps:
            self._perform(name, setting)
        return self._end()

    def _perform(self, name: str, setting: Setting) -> None:
        outcome, step = self._report.steps[name], STEPS[name]
        if self._watch.signal is not None:
            return
        if self._watch.left() < step.least:
            outcome.result, outcome.detail = "no time", f"{max(0, self._watch.left()):.0f} s were left"
            self._told(outcome)
            return
        began = self._begin(outcome, step.what)
        states = {"before": nvidia_smi(SMI_STATE)} if name.startswith("bench-") and setting.is_real else {}
        try:
            step.action(setting, outcome, step.seconds)
        except NotApplicableError as reason:
            outcome.result, outcome.detail = "not applicable", str(reason)
        except UnusableError as reason:
            outcome.result, outcome.detail = "missing", str(reason)
        except (OSError, ValueError, KeyError) as error:
            worst(outcome, "failed", f"{type(error).__name__}: {error}")
        if states:
            outcome.data["gpu"] = states | {"after": nvidia_smi(SMI_STATE)}
        self._told(outcome, began)

    def _begin(self, outcome: Outcome, what: str) -> float:
        say(f"{'':<15}{outcome.name}: {what} ...")
        outcome.result = "running"
        self._save()
        return time.monotonic()

    def _told(self, outcome: Outcome, began: float | None = None) -> None:
        if began is not None:
            outcome.seconds = round(time.monotonic() - began, 1)
        say(f"{outcome.result:<15}{outcome.name} ({outcome.seconds:.0f} s) {outcome.detail}")
        for line in outcome.tail:
            say(f"    {line}")
        self._save()

    def _machine(self) -> bool:
        """Find out what the machine is; return False if it has no such device."""
        outcome = self._report.steps["machine"]
        began = self._begin(outcome, "what it is")
        log = self._logs / "machine.log"
        command = [sys.executable, str(ROOT / "tools/gpu_check_machine.py"), self._options.backend]
        ended = run_command(command, log, 45, self._watch)
        text = log.read_text(errors="replace").strip()
        outcome.command = shown(command)
        if ended.status == 0:
            self._report.machine = {name: (value, source) for name, (value, source) in json.loads(text).items()}
            outcome.result, outcome.detail = "passed", self._report.machine["gpu"][0]
        else:
            outcome.result = "failed" if ended.how == "exit" else ended.how
            outcome.detail = text.splitlines()[-1] if text and ended.status == EXIT_NO_DEVICE else ended.detail
        self._told(outcome, began)
        for line in missing_tools(self._options.backend):
            say(f"gpu-check: {line}")
        return ended.status != EXIT_NO_DEVICE

    def _programs(self) -> Path:
        """Return the folder of the programs: the carried ones if they start here, or else those that are built now."""
        outcome = self._report.steps["programs"]
        began = self._begin(outcome, "carried or built")
        carried = self._options.carried / "programs"
        if why := gpu_check_build.why_unusable(carried, self._probe):
            say(f"gpu-check: the programs are built here, because {why}")
            folder = self._build(outcome)
        else:
            folder = carried
            commit = (carried / "commit").read_text().strip()
            here = self._report.machine.get("commit", ("", ""))[0]
            worst(outcome, "passed", f"carried, of commit {commit}; the tree here is {here}")
        self._told(outcome, began)
        return folder

    def _probe(self, command: Sequence[str]) -> tuple[int, str]:
        log = self._logs / "probe.log"
        try:
            status = run_command(command, log, 20, self._watch).status
        except OSError as error:
            return -1, str(error)
        lines = log.read_text(errors="replace").splitlines()
        return -1 if status is None else status, lines[-1] if lines else ""

    def _build(self, outcome: Outcome) -> Path:
        for line in gpu_check_build.missing_tools(self._options.backend):
            say(f"gpu-check: {line}")
        prefix = self._options.carried if (self._options.carried / "share").is_dir() else None
        architecture = self._report.machine.get("architecture", ("", ""))[0]
        folder = gpu_check_build.BUILD_DIR
        setting = Setting(self._options.backend, folder, self._logs, self._watch)
        for what, command in (
            ("configure", gpu_check_build.configure_command(folder, prefix, self._options.backend, architecture)),
            ("build", gpu_check_build.build_command(folder)),
        ):
            ended = run_step(setting, outcome, what, command, self._watch.left())
            if ended.detail:
                break
            worst(outcome, "passed", f"{what}: done")
        return folder

    def _end(self) -> int:
        if self._watch.signal is not None:
            self._call["stopped_by"] = self._watch.signal.name
        self._call["ended"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
        self._save()
        archive = self._report.archive(self._logs)
        say(f"report: {self._report.name}.json, .md and {archive.name} in {self._options.out}")
        if self._watch.signal is not None:
            return EXIT_STOPPED
        return 0 if all(self._report.steps[name].result in CLEAN for name in self._planned) else EXIT_FAILED


def main() -> int:
    """Check the machine, then run the steps."""
    options = arguments()
    if options.carry is not None:
        return carry.main(options.carry, say)
    try:
        open_library(options.backend)
    except MissingDeviceError as reason:
        print(f"gpu-check: {reason}; --stand-in runs the same steps without one", file=sys.stderr)
        return EXIT_NO_DEVICE
    if options.prepare and options.programs is None and carry.main(options.carried, say) != 0:
        say("gpu-check: the programs will be built against the system's libraries, which the deadline counts")
    earlier = None
    if options.append is not None:
        if options.append.exists():
            earlier = load(options.append)
        else:
            say(f"gpu-check: nothing to add to: {options.append} does not exist; a report is begun")
    return Check(options, earlier).run()


if __name__ == "__main__":
    sys.exit(main())
