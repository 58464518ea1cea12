# SPDX-License-Identifier: Apache-2.0
"""What an engine accepts as vLLM's ``--kv-transfer-config`` if kvferry is to be its connector. Needs no vLLM."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.errors import ConfigError
from kvferry.settings import bad_value, refuse_unknown_keys, shown

WHERE = "--kv-transfer-config"
CONNECTOR = "KvFerryConnector"
MODULE = "kvferry.vllm"
ROLE = "kv_both"

# Its configuration holds those of several others.
_MULTI = "MultiConnector"
_EXTRA = "kv_connector_extra_config"
# Those that every release knows; vLLM itself refuses a key that it does not know.
_KEYS = (
    "kv_connector", "kv_role", _EXTRA, "kv_connector_module_path", "kv_load_failure_policy", "engine_id",
    "kv_buffer_device", "kv_port", "enable_permute_local_kv",
)  # fmt: skip
# Those that only releases before 0.32 know.
_OLD_KEYS = ("kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip")
_ROLES = (ROLE, "kv_producer", "kv_consumer")
_POLICIES = ("fail", "recompute")


def keys_of(vllm_version: str | None) -> tuple[str, ...]:
    """Return the keys that a release of vLLM knows; of an unknown one (None) those of all releases."""
    release = re.match(r"v?(\d+)\.(\d+)", vllm_version or "")
    is_new = release is not None and (int(release[1]), int(release[2])) >= (0, 32)
    return _KEYS if is_new else _KEYS + _OLD_KEYS


def is_whole(given: Mapping[str, object], keys_of_kvferry: Sequence[str]) -> bool:
    """Whether a JSON object, whose keys may be misspelt, is the whole argument and not only kvferry's part of it."""
    keys = keys_of(None)
    return any(
        key in keys or (key not in keys_of_kvferry and difflib.get_close_matches(key, keys, n=1, cutoff=0.85))
        for key in given
    )


def check_role(role: object) -> None:
    """Check the role of an engine.

    Raises
    ------
    ConfigError
        It is not ``"kv_both"``.

    """
    if role != ROLE:
        raise ConfigError(
            f"kvferry cannot start: kv_role is {shown(role)}; allowed: {ROLE!r}, because one engine fills and reads "
            f"the tier; set {ROLE}"
        )


def part_of_kvferry(given: Mapping[str, Any], vllm_version: str | None) -> Mapping[str, Any]:
    """Check the whole argument, and return the part for kvferry's connector: itself, or that of a child.

    Parameters
    ----------
    given
        The argument. It may name ``MultiConnector`` with kvferry's connector among its children.
    vllm_version
        The release that will read it; None if it is not known.

    Raises
    ------
    ConfigError
        An engine would not start with it, or would start without kvferry.

    """
    refuse_unknown_keys(WHERE, given, keys_of(vllm_version))
    if given.get("kv_connector") == _MULTI:
        _check_choice({"kv_role": None, **given}, "kv_role", _ROLES, f"set it to {ROLE!r}")
        return _part_of_child(given, vllm_version)
    connector = given.get("kv_connector")
    if connector != CONNECTOR:
        raise bad_value(
            WHERE,
            "kv_connector",
            connector,
            f"{CONNECTOR!r}: with another name the engine starts without kvferry, or not at all",
            f"write 'kv_connector': {CONNECTOR!r}; for kvferry under LMCache, check the value of --l2-adapter instead",
        )
    check_role(given.get("kv_role"))
    _check_choice(given, "kv_connector_module_path", (MODULE, f"{MODULE}.connector", None), "leave it out")
    _check_choice(given, "kv_load_failure_policy", _POLICIES, "write 'recompute'")
    extra = given.get(_EXTRA, {})
    if not isinstance(extra, dict):
        raise bad_value(WHERE, _EXTRA, extra, "a JSON object of keys and values", f"write {_EXTRA!r}: {{...}}")
    return given


def _check_choice(given: Mapping[str, Any], key: str, allowed: Sequence[str | None], remedy: str) -> None:
    if key in given and given[key] not in allowed:
        raise bad_value(WHERE, key, given[key], " or ".join(repr(each) for each in allowed if each), remedy)


def _part_of_child(given: Mapping[str, Any], vllm_version: str | None) -> Mapping[str, Any]:
    extra = given.get(_EXTRA)
    children = extra.get("connectors") if isinstance(extra, dict) else None
    if not isinstance(children, list) or not all(isinstance(child, dict) for child in children):
        raise ConfigError(
            f"{WHERE}: {_MULTI} has no list of connectors; allowed is one configuration for each of them; write "
            f"{_EXTRA!r}: {{'connectors': [...]}}"
        )
    for child in children:
        if child.get("kv_connector") == CONNECTOR:
            return part_of_kvferry(child, vllm_version)
    names = ", ".join(shown(child.get("kv_connector")) for child in children)
    raise ConfigError(
        f"{WHERE}: the connectors of {_MULTI} are {names or 'none'}; allowed is {CONNECTOR!r} among them, because the "
        "engine starts without kvferry otherwise; add it"
    )
