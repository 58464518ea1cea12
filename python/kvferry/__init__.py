# SPDX-License-Identifier: Apache-2.0
"""kvferry keeps an LLM engine's KV cache blocks in host memory and loads them back.

Importing the package loads neither the compiled core nor an engine. The first attribute that needs the core loads it;
``kvferry.vllm.KvFerryConnector`` loads vLLM.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry._core import __version__
    from kvferry.errors import ConfigError, Error

__all__ = ["ConfigError", "Error", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from kvferry._core import __version__

        return __version__
    if name in ("ConfigError", "Error"):
        from kvferry import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'kvferry' has no attribute {name!r}")
