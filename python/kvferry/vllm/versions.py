# SPDX-License-Identifier: Apache-2.0
"""What differs between the vLLM releases that the connector runs under, 0.30 to 0.33.

============================  ========  ===========================================================================
what                          until     then
============================  ========  ===========================================================================
keys of KV events             0.30      0.31 tags what else a block hash covers; events have it without the tags
adapters in block hashes      0.30      0.31 hashes a LoRA adapter's name and path; before, the name alone, so that
                                        another adapter under it would get the blocks: `preflight` refuses LoRA
decode context parallelism    0.30      0.31 says of each layer whether its tokens are divided among ranks; before,
                                        those of attention are
source of a prefix hit        0.31      0.32 asks whether it came from host memory
hashes of streaming sessions  0.31      0.32 takes the hash of a block back whose last token a next turn replaces;
                                        before, it keeps other tokens under it: later turns are not stored
model runner v2               0.31      0.32 tells the connector's hooks of a step's batch
states of every block         0.31      0.32 has ``mamba_cache_mode`` "align" alone; before, "all" leaves a state in
                                        each block, and says nothing of it to connectors
pause that waits              0.31      0.32 lets a request whose load ends meanwhile run
sleep mode                    0.32      0.33 asks ``supports_sleep_mode`` when the engine's configuration is made;
                                        before, the connector cannot object and is not told: `preflight` refuses.
                                        0.33 tells: ``unregister_kv_caches``, ``restore_kv_caches``
zeroing and copy-on-write,    0.32      0.33 does both before ``handle_preemptions``, earlier ones after it; before
model runner v2                         the bind, which is where kvferry's fence is, all of them
planning of KV caches         0.32      0.33 has a module of its own for it, and finds the groups first
a request whose load failed   0.32      0.33 looks for its blocks before requests that hold some, which wait for
                                        ever if there is no room for it; a lookup that is put off once lets them
                                        pass (`scheduler_side`); before, it does where it stands in the queue
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
    """Check the installed vLLM. To be called before the connector is imported: older releases lack what it imports.

    Raises
    ------
    ConfigError
        It is older than the oldest release that the connector can run under.

    """
    import vllm

    check(vllm.__version__)


def check(version: str) -> None:
    """Check a vLLM version, e.g. ``"0.32.0+cpu"``; warn of one that kvferry was not tested with.

    Raises
    ------
    ConfigError
        It is older than `OLDEST`.

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
    """What vLLM calls a hit in host memory; None where it does not ask."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST


def event_extra_keys(extra_keys: Iterable[tuple[Any, ...] | None]) -> list[tuple[Any, ...] | None] | None:
    """What else the hashes of blocks cover, as KV events have it.

    Parameters
    ----------
    extra_keys
        One entry per block, of vLLM's ``generate_block_hash_extra_keys``.

    """
    try:
        from vllm.v1.core.kv_cache_utils import to_event_extra_keys
    except ImportError:  # They are not tagged.
        return list(extra_keys)
    untagged: list[tuple[Any, ...] | None] | None = to_event_extra_keys(extra_keys)
    return untagged


def hashes_cover_adapter_path(version: str) -> bool:
    """Whether block hashes of a vLLM version tell adapters of one name and different paths apart."""
    release = _release(version)
    return release is None or release >= (0, 31)


def tells_of_sleep(version: str) -> bool:
    """Whether a vLLM version tells connectors before the KV cache loses its memory, and when it has it again."""
    release = _release(version)
    return release is None or release >= (0, 33)


def sessions_take_hashes_back() -> bool:
    """Whether a streaming session takes the hash of its last block back when a next turn replaces that block's end."""
    import vllm

    release = _release(vllm.__version__)
    return release is None or release >= (0, 32)


def kv_tp_replicas(kv_cache_config: "KVCacheConfig") -> int | None:
    """Return how many consecutive ranks hold the same in all layers, or None: vLLM before 0.31 does not count them."""
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
        Of the engine.
    specs
        Of each worker: layer name to KV cache specification.
    memory_bytes
        Of each worker: what it has for the KV cache.

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
