# SPDX-License-Identifier: Apache-2.0
"""The errors of kvferry. C++ and Python raise the same classes, which the core defines."""

from kvferry._core import (
    ConfigError,
    DeviceError,
    Error,
    ProtocolError,
    RecordingError,
    ResourceError,
    TimeoutError,
    TopologyError,
)

__all__ = [
    "ConfigError",
    "DeviceError",
    "Error",
    "ProtocolError",
    "RecordingError",
    "ResourceError",
    "TimeoutError",
    "TopologyError",
]
