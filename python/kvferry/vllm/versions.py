# SPDX-License-Identifier: Apache-2.0
"""The differences between the vLLM releases that the connector supports, 0.30 to 0.33.

The second column names the last release before a change, the third column says what the next release does.

============================  ========  ===========================================================================
subject                       until     then
============================  ========  ===========================================================================
keys of KV events             0.30      0.31 tags the other inputs of a block hash; events have them without the
                                        tags
adapters in block hashes      0.30      0.31 hashes a LoRA adapter's name and path; earlier releases hash only the
                                        name, so another adapter of that name would get the blocks: `preflight`
                                        refuses LoRA
decode context parallelism    0.30      0.31 says for each layer whether its tokens are divided among ranks; in
                                        earlier releases those of all attention layers are
source of a prefix hit        0.31      0.32 asks whether it came from host memory
hashes of streaming sessions  0.31      0.32 takes back the hash of a block whose last token the next turn replaces;
                                        earlier releases keep the hash for other tokens: later turns are not stored
model runner v2               0.31      0.32 passes a step's batch to the connector's hooks
states of every block         0.31      0.32 has only ``mamba_cache_mode`` "align"; in earlier releases "all" leaves
                                        a state in each block, and does not tell connectors
pause that waits              0.31      0.32 runs a request whose load ends during the pause
sleep mode                    0.32      0.33 asks ``supports_sleep_mode`` when the engine's configuration is made,
                                        and calls ``unregister_kv_caches`` and ``restore_kv_caches``; earlier
                                        releases neither ask nor tell the connector: `preflight` refuses
zeroing and copy-on-write,    0.32      0.33 does both before ``handle_preemptions``, earlier releases after it; all
model runner v2                         do both before the bind, where kvferry's fence is
planning of KV caches         0.32      0.33 has a separate module for it, and finds the groups first
a request whose load failed   0.32      0.33 allocates its blocks before those of requests that hold some, and these
                                        wait for ever if there is no room for it. If one lookup is put off, they can
                                        pass (`scheduler_side`). In earlier releases it keeps its place in the queue
============================  ========  ===========================================================================
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

logger = init_logger("vllm.kvferry")

OLDEST = (0, 30)
NEWEST_TESTED = (0, 33)


def check_installed() -> None:
    """Check the installed vLLM. Call this before importing the connector: older releases lack what it imports.

    Raises
    ------
    ConfigError
        vLLM is older than `OLDEST`.

    """
    import vllm

    check(vllm.__version__)


def check(version: str) -> None:
    """Check a vLLM version, e.g. ``"0.32.0+cpu"``. Warn about a version with which kvferry was not tested.

    Raises
    ------
    ConfigError
        The version is older than `OLDEST`.

    """
    tested = f"{_text(OLDEST)} to {_text(NEWEST_TESTED)}"
    release = _release(version)
    if release is None:
        logger.warning("kvferry cannot tell the vLLM release from %r; it is tested with %s", version, tested)
        return
    if release < OLDEST:
        raise ConfigError(
            f"vLLM is {version}; allowed is {_text(OLDEST)} or newer (tested: {tested}); upgrade vLLM or start it "
            "without KvFerryConnector"
        )
    if release > NEWEST_TESTED:
        logger.warning("kvferry is not tested with vLLM %s; it is tested with %s", version, tested)


def host_cache_hit_source() -> "CacheHitSource | None":
    """Return vLLM's name for a hit in host memory; None for releases that do not ask."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST


def event_extra_keys(extra_keys: Iterable[tuple[Any, ...] | None]) -> list[tuple[Any, ...] | None] | None:
    """Return the other inputs of block hashes in the form of KV events.

    Parameters
    ----------
    extra_keys
        One entry for each block, from vLLM's ``generate_block_hash_extra_keys``.

    """
    try:
        from vllm.v1.core.kv_cache_utils import to_event_extra_keys
    except ImportError:  # They are not tagged.
        return list(extra_keys)
    untagged: list[tuple[Any, ...] | None] | None = to_event_extra_keys(extra_keys)
    return untagged


def hashes_cover_adapter_path(version: str) -> bool:
    """Whether the block hashes of a vLLM version distinguish adapters that have one name and different paths."""
    release = _release(version)
    return release is None or release >= (0, 31)


def tells_of_sleep(version: str) -> bool:
    """Whether a vLLM version tells connectors before the KV cache loses its memory, and after it has memory again."""
    release = _release(version)
    return release is None or release >= (0, 33)


def sessions_take_hashes_back() -> bool:
    """Whether a streaming session takes back the hash of its last block when the next turn replaces the block's end."""
    import vllm

    release = _release(vllm.__version__)
    return release is None or release >= (0, 32)


def kv_tp_replicas(kv_cache_config: "KVCacheConfig") -> int | None:
    """Return how many consecutive ranks hold the same bytes in all layers; None before vLLM 0.31, which counts them."""
    return getattr(kv_cache_config, "kv_tp_replicas", None)


def is_divided(spec: "KVCacheSpec") -> bool:
    """Whether decode context parallelism divides the tokens of the layer's blocks among ranks."""
    from vllm.v1.kv_cache_interface import AttentionSpec

    return bool(getattr(spec, "dcp_sharded", isinstance(spec, AttentionSpec)))


def plan_kv_caches(
    vllm_config: "VllmConfig", specs: "list[dict[str, KVCacheSpec]]", memory_bytes: list[int]
) -> "list[KVCacheConfig]":
    """Plan the KV cache of each worker, as the engine core does.

    Parameters
    ----------
    vllm_config
        The engine's configuration.
    specs
        For each worker: layer name to KV cache specification.
    memory_bytes
        For each worker: bytes available for the KV cache.

    """
    try:
        from vllm.v1.core import kv_cache_planning
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        return list(get_kv_cache_configs(vllm_config, specs, memory_bytes))
    groups = kv_cache_planning.get_global_kv_cache_groups(vllm_config, specs)
    return list(kv_cache_planning.get_kv_cache_configs(vllm_config, specs, memory_bytes, groups))


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match is not None else None


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
