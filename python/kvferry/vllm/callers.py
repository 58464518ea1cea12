# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's objects is making the connector: its constructor is among the callers, and nothing else says so."""

import inspect
from typing import TypeVar

T = TypeVar("T")


def being_made(of: type[T]) -> T | None:
    """Return the object of a class whose constructor is running in this thread; None if there is none."""
    code = of.__init__.__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code:
            found: T = frame.f_locals["self"]
            return found
        frame = frame.f_back
    return None
