# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that starts now would accept a configuration."""

import json
import mmap
from dataclasses import dataclass, field
from typing import Any

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.doctor import drivers
from kvferry.errors import ConfigError, ResourceError
from kvferry.settings import shown
from kvferry.sizes import format_size


@dataclass(frozen=True)
class Verdict:
    """The verdict on one configuration.

    Attributes
    ----------
    refusal
        Why it is refused, in the engine's own words; empty if it is accepted.
    bytes_per_rank
        Bytes of the tier on one rank.
    pages
        The kind of pages that it would have.
    room_bytes
        Bytes that the machine can provide for all ranks.
    machine_bytes
        Bytes of the machine's memory that the engine would take now, on all ranks. Huge pages of a pool do not count.
    notes
        Remarks for the user on a configuration that is accepted.

    """

    refusal: str
    bytes_per_rank: int = 0
    pages: str = ""
    room_bytes: int = 0
    machine_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def judge(text: str, num_ranks: int) -> Verdict:
    """Check a configuration as an engine would.

    Parameters
    ----------
    text
        JSON: ``kv_connector_extra_config``, or all of ``--kv-transfer-config``.
    num_ranks
        Ranks of the engine on this node.

    """
    try:
        given = read_json(text)
        if "kv_connector" in given:
            given = given.get("kv_connector_extra_config", {})
        config = KvFerryConfig.from_extra_config(given)
        if config.numa_node is not None:
            _core.check_numa_node(config.numa_node)
        if config.backend != "auto" and (why_not := drivers.backends()[config.backend]):
            raise ConfigError(f"the back end {config.backend!r} is not available: {why_not}")
        # The size of a block depends on the model; no block is smaller than one byte.
        rank_bytes = config.tier_bytes(1, num_ranks)
        if config.shared_path is not None:
            return _judge_shared(config, config.shared_path, rank_bytes, num_ranks)
        pages, room_bytes, shortage = _core.ask_for_tier(rank_bytes, num_ranks, config.pages)
    except (ConfigError, ResourceError) as error:
        return Verdict(str(error))
    machine_bytes = 0 if pages == "huge" else rank_bytes * num_ranks
    if not shortage:
        return Verdict("", rank_bytes, pages, room_bytes, machine_bytes)
    if not config.allow_smaller_tier or room_bytes == 0:
        return Verdict(shortage, rank_bytes, pages, room_bytes, machine_bytes)
    smaller = f"allow_smaller_tier: about {format_size(room_bytes // num_ranks)} on each rank; {shortage}"
    return Verdict("", rank_bytes, pages, room_bytes, min(machine_bytes, room_bytes), [smaller])


def _judge_shared(config: KvFerryConfig, path: str, rank_bytes: int, num_ranks: int) -> Verdict:
    """Check a tier that engines share with the engine's own checks of its file.

    Raises
    ------
    ConfigError, ResourceError
        The errors that the engine would raise.

    """
    capacity_bytes = config.shared_capacity(num_ranks)
    missing_bytes, page_bytes = _core.check_shared_tier(path, capacity_bytes, num_ranks, config.shared_chunk_bytes or 0)
    if page_bytes > mmap.PAGESIZE:
        # The file system has its own pool, which was checked above.
        return Verdict("", rank_bytes, "huge", missing_bytes)
    if missing_bytes < num_ranks:
        return Verdict("", rank_bytes, "normal")
    pages, room_bytes, shortage = _core.ask_for_tier(missing_bytes // num_ranks, num_ranks, "normal")
    return Verdict(shortage, rank_bytes, pages, room_bytes, missing_bytes)


def read_json(text: str) -> dict[str, Any]:
    """Read ``kv_connector_extra_config``, or all of ``--kv-transfer-config``.

    Raises
    ------
    ConfigError
        It is neither.

    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration is not JSON: {error}") from None
    of_kvferry = given.get("kv_connector_extra_config", {}) if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(of_kvferry, dict):
        raise ConfigError(f"the configuration is {shown(text)}; allowed is a JSON object of keys and values")
    return given
