# SPDX-License-Identifier: Apache-2.0
"""What an engine that starts now would say to a configuration."""

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
    """On one configuration.

    Attributes
    ----------
    refusal
        Why it is refused, in the words that the engine would use; empty if it is not.
    bytes_per_rank
        Of the tier.
    pages
        That it would lie in.
    room_bytes
        What the machine has for all ranks.
    machine_bytes
        What the engine would take of the machine's memory now, on all ranks; huge pages of a pool do not count.
    notes
        What a user is to know though nothing is refused.

    """

    refusal: str
    bytes_per_rank: int = 0
    pages: str = ""
    room_bytes: int = 0
    machine_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def judge(text: str, num_ranks: int) -> Verdict:
    """Judge a configuration.

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
            raise ConfigError(f"the back end {config.backend!r} cannot be had: {why_not}")
        # How large a block is, the model says; none is smaller than this.
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
    """Judge a tier that engines share by the engine's own checks of its file.

    Raises
    ------
    ConfigError, ResourceError
        What the engine would raise.

    """
    capacity_bytes = config.shared_capacity(num_ranks)
    missing_bytes, page_bytes = _core.check_shared_tier(path, capacity_bytes, num_ranks, config.shared_chunk_bytes or 0)
    if page_bytes > mmap.PAGESIZE:
        # The file system's own pool, which has been asked.
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
        raise ConfigError(f"the configuration is no JSON: {error}") from None
    of_kvferry = given.get("kv_connector_extra_config", {}) if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(of_kvferry, dict):
        raise ConfigError(f"the configuration is {shown(text)}; allowed is a JSON object of keys and values")
    return given
