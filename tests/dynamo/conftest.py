# SPDX-License-Identifier: Apache-2.0
"""Under NVIDIA Dynamo: the model, engines without Dynamo, and the processes' logs when a test fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Behind everything else: this folder has the name of Dynamo's package.
sys.path += [str(HERE), str(HERE.parent)]

from cluster import Cluster  # noqa: E402
from e2e.conftest import make_model, make_runner  # noqa: E402
from e2e.engine_runs import EngineRunner  # noqa: E402

NUM_LOG_LINES = 60


@pytest.fixture(scope="session")
def model() -> Path:
    """The one that the other end-to-end tests use."""
    return make_model("tiny-llama")


@pytest.fixture(scope="session")
def runner(model: Path) -> EngineRunner:
    """Runs engines without Dynamo."""
    return make_runner(model)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.failed and Cluster.latest is not None:
        for name, log in Cluster.latest.logs().items():
            report.sections.append((name, "\n".join(log.splitlines()[-NUM_LOG_LINES:])))
    return report
