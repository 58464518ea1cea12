# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that starts now would accept a configuration."""

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvferry import _core, transfer_config
from kvferry.config import KvFerryConfig
from kvferry.doctor import drivers
from kvferry.doctor.kernels import missing_kernels
from kvferry.doctor.packages import version_of, vllm_is_for_cpus
from kvferry.doctor.plugin import examine_plugin
from kvferry.errors import ConfigError, ResourceError
from kvferry.lmcache.params import AdapterParams
from kvferry.settings import bad_value, known_keys, shown
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
    whose
        Whose bytes `bytes_per_rank` are: those of an engine's rank, or of LMCache's server.

    """

    refusal: str
    bytes_per_rank: int = 0
    pages: str = ""
    room_bytes: int = 0
    machine_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    whose: str = "on each rank"


def judge(text: str, num_ranks: int, num_engines: int = 1) -> Verdict:
    """Check a configuration as an engine would.

    Parameters
    ----------
    text
        JSON: ``kv_connector_extra_config``, all of ``--kv-transfer-config``, LMCache's ``adapter_params``, or all of
        ``--l2-adapter``.
    num_ranks
        Ranks of the engine on this node.
    num_engines
        Engines on this node that start with the configuration. Without ``shared_path`` each has a tier of its own.

    """
    try:
        given = read_json(text)
        if (params := adapter_params_of(given)) is not None:
            return replace(_judge_lmcache(params), whose="for LMCache's server")
        return _judge_vllm(extra_config_of(given), num_ranks, num_engines)
    except (ConfigError, ResourceError) as error:
        return Verdict(str(error))


def complaint_of(text: str) -> str:
    """Return why an engine refuses a configuration before it looks at the machine's memory; empty if it does not."""
    try:
        given = read_json(text)
        if (params := adapter_params_of(given)) is not None:
            AdapterParams.from_params(params)
        else:
            KvFerryConfig.from_extra_config(extra_config_of(given))
    except ConfigError as error:
        return str(error)
    return ""


def extra_config_of(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``kv_connector_extra_config`` of a configuration, which may be all of ``--kv-transfer-config``.

    Raises
    ------
    ConfigError
        An engine would refuse the rest of ``--kv-transfer-config``, or would not find the connector.

    """
    if not transfer_config.is_whole(given, known_keys(KvFerryConfig)):
        return given
    part = transfer_config.part_of_kvferry(given, version_of("vllm"))
    if not part.get("kv_connector_module_path") and (plugin := examine_plugin(os.environ)).verdict != "ok":
        raise ConfigError(plugin.detail)
    extra: Mapping[str, Any] = part.get("kv_connector_extra_config", {})
    return extra


def _judge_vllm(extra: Mapping[str, Any], num_ranks: int, num_engines: int) -> Verdict:
    config = KvFerryConfig.from_extra_config(extra)
    if config.numa_node is not None:
        _core.check_numa_node(config.numa_node)
    if config.backend != "auto" and (why_not := drivers.backends()[config.backend]):
        raise ConfigError(f"the back end {config.backend!r} is not available: {why_not}")
    if why_not := _missing_kernels(config.backend):
        raise ConfigError(why_not)
    # The size of a block depends on the model; no block is smaller than one byte.
    rank_bytes = config.tier_bytes(1, num_ranks)
    if config.shared_path is not None:
        capacity = config.shared_capacity(num_ranks)
        return _judge_shared(config.shared_path, capacity, num_ranks, config.shared_chunk_bytes)
    num_tiers = num_ranks * num_engines
    pages, room_bytes, shortage = _core.ask_for_tier(rank_bytes, num_tiers, config.pages)
    machine_bytes = 0 if pages == "huge" else rank_bytes * num_tiers
    if not shortage:
        all_bytes = format_size(rank_bytes * num_tiers)
        notes = [f"{num_engines} engines with a tier each take {all_bytes} on this node"] if num_engines > 1 else []
        return Verdict("", rank_bytes, pages, room_bytes, machine_bytes, notes)
    if not config.allow_smaller_tier or room_bytes == 0:
        return Verdict(shortage, rank_bytes, pages, room_bytes, machine_bytes)
    smaller = f"allow_smaller_tier: about {format_size(room_bytes // num_tiers)} on each rank; {shortage}"
    return Verdict("", rank_bytes, pages, room_bytes, min(machine_bytes, room_bytes), [smaller])


def _missing_kernels(backend: str) -> str:
    """Return why the engine's GPU has no kernels. vLLM's build for CPUs has its KV cache in host memory."""
    if backend == "host" or (backend == "auto" and vllm_is_for_cpus()):
        return ""
    answers = drivers.answers()
    return missing_kernels(answers if backend == "auto" else {backend: answers[backend]})


def _judge_lmcache(given: Mapping[str, Any]) -> Verdict:
    params = AdapterParams.from_params(given)
    if params.numa_node is not None:
        _core.check_numa_node(params.numa_node)
    if params.shared_path is not None:
        return _judge_shared(params.shared_path, params.capacity, 1, params.shared_chunk_bytes)
    pages, room_bytes, shortage = _core.ask_for_tier(params.capacity, 1, params.huge_pages)
    machine_bytes = 0 if pages == "huge" else params.capacity
    return Verdict(shortage, params.capacity, pages, room_bytes, machine_bytes)


def adapter_params_of(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return LMCache's ``adapter_params`` if that is what was given, alone or in all of ``--l2-adapter``; else None.

    Raises
    ------
    ConfigError
        LMCache would not load kvferry by the rest of ``--l2-adapter``.

    """
    whole = {"type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvFerryClient"}
    params = given.get("adapter_params", {})
    if not ({"adapter_params", *whole} & given.keys()):
        return given if "capacity" in given else None
    for key, value in whole.items():
        if given.get(key) != value:
            raise bad_value("--l2-adapter", key, given.get(key), repr(value), f"write {key!r}: {value!r}")
    if not isinstance(params, dict):
        raise bad_value("--l2-adapter", "adapter_params", params, "a JSON object", "write {'capacity': '8GiB'}")
    return params


def _judge_shared(path: str, capacity_bytes: int, num_ranks: int, chunk_bytes: int | None) -> Verdict:
    """Check a tier that engines share with the engine's own checks of its file.

    Raises
    ------
    ConfigError, ResourceError
        The errors that the engine would raise.

    """
    rank_bytes = capacity_bytes // num_ranks
    missing_bytes, page_bytes = _core.check_shared_tier(path, capacity_bytes, num_ranks, chunk_bytes or 0)
    if page_bytes > mmap.PAGESIZE:
        # The file system has its own pool, which was checked above.
        return Verdict("", rank_bytes, "huge", missing_bytes)
    if missing_bytes < num_ranks:
        return Verdict("", rank_bytes, "normal")
    pages, room_bytes, shortage = _core.ask_for_tier(missing_bytes // num_ranks, num_ranks, "normal")
    return Verdict(shortage, rank_bytes, pages, room_bytes, missing_bytes)


def read_json(text: str) -> dict[str, Any]:
    """Read a configuration.

    Raises
    ------
    ConfigError
        It is not a JSON object.

    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'the configuration is not JSON: {error}; allowed is an object such as {{"cpu_bytes_to_use": "64GiB"}}, '
            "with double quotes; quote the whole for the shell, or write @FILE"
        ) from None
    if not isinstance(given, dict):
        raise ConfigError(f"the configuration is {shown(text)}; allowed is a JSON object of keys and values")
    return given
