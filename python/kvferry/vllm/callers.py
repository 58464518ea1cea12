# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's objects is making the connector: its constructor is among the callers, and nothing else says so."""

import inspect
from typing import TypeVar

T = TypeVar("T")


def being_made(of: type[T]) -> T | None:
    """Return the object of a class, or of one derived from it, that is being made in this thread; None if none is."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "__init__" and isinstance(maker := frame.f_locals.get("self"), of):
            return maker
        frame = frame.f_back
    return None
