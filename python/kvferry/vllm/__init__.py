# SPDX-License-Identifier: Apache-2.0
"""kvferry as a vLLM KV connector.

vLLM finds it by ``"kv_connector": "KvFerryConnector"`` (`kvferry.vllm.plugin`). If vLLM loads no plugins, add
``"kv_connector_module_path": "kvferry.vllm"``.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.vllm.connector import KvFerryConnector

__all__ = ["KvFerryConnector"]

if importlib.util.find_spec("vllm") is None:
    raise ImportError(
        "kvferry.vllm is the connector for vLLM, and vLLM is not installed here; install vLLM 0.30 or newer in this "
        "environment (pip install vllm)"
    )


def __getattr__(name: str) -> Any:
    if name == "KvFerryConnector":
        from kvferry.vllm import versions

        versions.check_installed()
        from kvferry.vllm.connector import KvFerryConnector
        from kvferry.vllm.early_check import check_lookup

        check_lookup()
        return KvFerryConnector
    raise AttributeError(f"module 'kvferry.vllm' has no attribute {name!r}")
