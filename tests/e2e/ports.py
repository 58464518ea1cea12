# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of a test."""

from __future__ import annotations

import contextlib
import random
import socket

# For servers that take no number of more than 15 bits; the kernel gives others to who asks for any.
LOW = range(20000, 1 << 15)


def free_ports(count: int) -> list[int]:
    """Different ones that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def free_low_port() -> int:
    """One of `LOW` that nobody listens at."""
    for port in random.sample(LOW, len(LOW)):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port is free in {LOW}")
