# SPDX-License-Identifier: Apache-2.0
"""kvferry as a storage back end of LMCache's multi-process server.

LMCache loads it with ``--l2-adapter '{"type": "native_plugin", "module_path": "kvferry.lmcache", "class_name":
"KvFerryClient", "adapter_params": {"capacity": "8GiB"}}'``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.lmcache.client import KvFerryClient

__all__ = ["KvFerryClient"]


def __getattr__(name: str) -> Any:
    if name == "KvFerryClient":
        from kvferry.lmcache.client import KvFerryClient

        return KvFerryClient
    raise AttributeError(f"module 'kvferry.lmcache' has no attribute {name!r}; its class is 'KvFerryClient'")
