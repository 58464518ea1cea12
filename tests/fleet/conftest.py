# SPDX-License-Identifier: Apache-2.0
"""Engines on several machines, played by processes: the model, engines alone, and the logs when a test fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent)]

from e2e.conftest import make_model, make_runner  # noqa: E402
from e2e.engine_runs import EngineRunner  # noqa: E402
from processes import Processes  # noqa: E402

NUM_LOG_LINES = 60


@pytest.fixture(scope="session")
def runner() -> EngineRunner:
    """Runs engines without a connector, on the model of examples/prefill_decode."""
    return make_runner(make_model("tiny-llama"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.failed and Processes.latest is not None:
        for name, log in Processes.latest.logs().items():
            report.sections.append((name, "\n".join(log.splitlines()[-NUM_LOG_LINES:])))
    return report
