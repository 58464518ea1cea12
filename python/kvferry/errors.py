# SPDX-License-Identifier: Apache-2.0
"""The errors of kvferry: one tree, that of the core, whether C++ or Python raises them."""

from kvferry._core import (
    ConfigError,
    DeviceError,
    Error,
    ProtocolError,
    ResourceError,
    TimeoutError,
    TopologyError,
)

__all__ = [
    "ConfigError",
    "DeviceError",
    "Error",
    "ProtocolError",
    "ResourceError",
    "TimeoutError",
    "TopologyError",
]
