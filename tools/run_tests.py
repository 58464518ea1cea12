# SPDX-License-Identifier: Apache-2.0
"""Run every test of the project, stage by stage, and print the sum as the last line: ``N passed, N failed``.

``run_tests.py [STAGE...]`` runs all stages of test_stages.py, or those named; ``check`` stands for those of the inner
loop.
A failed stage stops only the stages that need it. Logs are in ``build/logs``, JUnit files in ``build/test-results``.
"""

import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sum_tests import Tally
from test_stages import CHECK, LOGS, RESULTS, SET_UP, TESTS, Stage, say


class Run:
    """The stages of one call; downloads begin at once in a thread, and everything else runs in order."""

    def __init__(self, chosen: Sequence[Stage]) -> None:
        self._chosen = chosen
        self._ended: dict[str, Tally] = {}
        self._downloads: dict[str, Future[Tally]] = {}
        self.rows: list[tuple[str, Tally, float, float]] = []

    def perform_all(self) -> None:
        """Run the chosen stages, and before each stage those that it needs."""
        with ThreadPoolExecutor(1) as beside:
            for stage in SET_UP:
                if stage.is_download and self._is_needed(stage.name):
                    self._downloads[stage.name] = beside.submit(self._download, stage)
            for stage in self._chosen:
                self._perform(stage)

    def _is_needed(self, name: str) -> bool:
        needed = {need for stage in self._chosen for need in stage.needs}
        for stage in reversed(SET_UP):
            needed |= set(stage.needs) if stage.name in needed else set()
        return name in needed

    def _download(self, stage: Stage) -> Tally:
        # One thread works in the order of SET_UP, so everything that a download needs has ended before it begins.
        missing = [need for need in stage.needs if self._downloads[need].result().failed]
        return self._without(stage, missing) if missing else stage.action()

    def _without(self, stage: Stage, missing: Sequence[str]) -> Tally:
        result = Tally(failed=[f"{stage.name}: not run without {', '.join(sorted(missing))}"])
        say(result.failed[0])
        return result

    def _perform(self, stage: Stage) -> Tally:
        if stage.name in self._ended:
            return self._ended[stage.name]
        missing = [need.name for need in SET_UP if need.name in stage.needs and self._perform(need).failed]
        began, busy = time.time(), processor_seconds()
        if missing:
            result = self._without(stage, missing)
        elif stage.name in self._downloads:
            result = self._downloads[stage.name].result()
        elif stage in SET_UP:
            result = stage.action()
        else:
            say(f"{stage.name}: {stage.what} ...")
            result = stage.action()
            say(f"{stage.name}: {result}")
        self._ended[stage.name] = result
        if stage not in SET_UP or result.failed:
            seconds = time.time() - began
            self.rows.append((stage.name, result, seconds, processor_seconds() - busy))
        return result


def processor_seconds() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(names: list[str]) -> int:
    """Run the stages and print the summary."""
    named = {stage.name: stage for stage in (*TESTS, *CHECK)}
    if names == ["check"]:
        names = [stage.name for stage in CHECK]
    unknown = set(names) - named.keys()
    if unknown:
        known = " ".join(named)
        print(f"unknown stage: {' '.join(sorted(unknown))}; there are: {known}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)

    chosen = Run([stage for stage in named.values() if stage.name in names] if names else TESTS)
    chosen.perform_all()

    total = Tally()
    # `busy` is the processor time used, over that of all processors. A stage far below 100 % waits for something.
    print(f"\n{'stage':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'busy':>7}")
    for name, tally, seconds, busy in chosen.rows:
        counts = f"{tally.passed:>8}{len(tally.failed):>8}{tally.skipped:>9}"
        share = busy / max(seconds, 0.1) / (os.cpu_count() or 1)
        print(f"{name:<12}{counts}{seconds:>9.0f}{share:>7.0%}")
        total.add(tally)
    for name in total.failed:
        print(f"failed: {name}")
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
