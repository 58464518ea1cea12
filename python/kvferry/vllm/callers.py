# SPDX-License-Identifier: Apache-2.0
"""Finds what vLLM is doing with the connector's class. Only the call stack shows it: vLLM's functions are on it."""

import inspect
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def being_made(of: type[T]) -> T | None:
    """Return the instance of a class, or of a derived class, whose constructor this thread runs; None if none."""
    return argument_of("__init__", "self", of)


def argument_of(function: str, parameter: str, of: type[T]) -> T | None:
    """Return the argument of the innermost function of this name that this thread runs; None if there is none.

    Parameters
    ----------
    function, parameter
        The names of the function and of its parameter.
    of
        The argument's class. Functions with another argument do not count.

    """
    for frame in _frames():
        if frame.f_code.co_name == function and isinstance(argument := frame.f_locals.get(parameter), of):
            return argument
    return None


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
