# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that puts kvferry's client where LMCache's own conformance tests have a mock.

The tests are LMCache's, from its source distribution, and unchanged; ``tools/run_tests.py lmcache`` runs them.
"""

from types import ModuleType
from typing import Any

import pytest
from kvferry.lmcache import KvFerryClient

METHODS = (
    "event_fd",
    "submit_batch_set",
    "submit_batch_get",
    "submit_batch_exists",
    "submit_batch_delete",
    "drain_completions",
    "close",
)
_num_clients = 0


def _make(self: Any) -> None:
    global _num_clients
    _num_clients += 1
    self.kvferry_client = KvFerryClient(capacity="16MiB", num_workers=2)


def _delegate(method: str) -> Any:
    return lambda self, *arguments: getattr(self.kvferry_client, method)(*arguments)


def _replace_mock(module: ModuleType) -> None:
    mock = getattr(module, "MockNativeConnector", None)
    if mock is None or mock.__init__ is _make:
        return
    mock.__init__ = _make
    for method in METHODS:
        setattr(mock, method, _delegate(method))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Replace the mock of the module that a test is in."""
    _replace_mock(item.module)  # type: ignore[attr-defined]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which nobody has met our client."""
    if _num_clients == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
