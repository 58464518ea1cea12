# SPDX-License-Identifier: Apache-2.0
"""Readers for the values of ``kv_connector_extra_config``. Each raises ConfigError for a value that is not allowed."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvferry import sizes
from kvferry.errors import ConfigError
from kvferry.settings import bad_value, refuse_unknown_keys

if TYPE_CHECKING:
    from kvferry.config import KvFerryConfig

WHERE = "kv_connector_extra_config"

_LINK_ORDERS = ("fifo", "shuffled")
_LINK_FIGURES = ("bandwidth_gb_s", "h2d_gb_s", "d2h_gb_s", "latency_us", "jitter_us", "stall_us")
_LINK_COUNTS = ("fail_nth", "seed")
_LINK_CHANCES = ("fail_probability", "inject_probability")
_LINK_KEYS = (*_LINK_FIGURES, *_LINK_COUNTS, "order", *_LINK_CHANCES, "inject_log")
_MAX_COUNT = 2**64 - 1
# With this limit the bytes of all ranks together fit into 64 bits.
_MAX_BYTES = 2**56
LEAST_TIER_BYTES = 4096
# The core's own limit (python/src/py_options.hpp): 31 years.
MAX_SECONDS = 1_000_000_000
_MAX_LINK_FIGURE = 1e9

HostLink = dict[str, float | int | str]


def complaint(key: str, value: object, allowed: str, remedy: str) -> ConfigError:
    """Return the error for the value of one key of ``kv_connector_extra_config``."""
    return bad_value(WHERE, key, value, allowed, remedy)


def read_size(key: str, value: object) -> int:
    """Read a size of more than zero bytes."""
    num_bytes = sizes.parse_size(value)
    if num_bytes is None or not 0 < num_bytes <= _MAX_BYTES:
        raise complaint(key, value, f"{sizes.ALLOWED}, more than zero", f"write for example {key!r}: '8GiB'")
    return num_bytes


def read_tier_size(key: str, value: object) -> int:
    """Read the size of a tier: a page of memory or more, because 8 is more likely to mean 8 GiB than 8 bytes."""
    num_bytes = read_size(key, value)
    if num_bytes < LEAST_TIER_BYTES:
        raise complaint(
            key,
            value,
            f"{LEAST_TIER_BYTES} bytes or more",
            f"a number without a unit is bytes: write for example {key!r}: '8GiB'",
        )
    return num_bytes


def read_seconds(key: str, value: object) -> float:
    """Read a time of more than zero seconds."""
    if not _is_figure(value) or not 0.0 < float(value) <= MAX_SECONDS:  # type: ignore[arg-type]
        raise complaint(
            key,
            value,
            f"a finite number of seconds, more than zero and {MAX_SECONDS} at most",
            f"write for example {key!r}: 300",
        )
    return float(value)  # type: ignore[arg-type]


def read_share(key: str, value: object) -> float:
    """Read a share, from 0 to 1."""
    if not _is_figure(value) or float(value) > 1.0:  # type: ignore[arg-type]
        raise complaint(key, value, "a number from 0 to 1", "leave it out, or write 0 to keep nothing")
    return float(value)  # type: ignore[arg-type]


def read_size_or_zero(key: str, value: object) -> int:
    """Read a size in bytes, or zero."""
    return 0 if sizes.parse_size(value) == 0 else read_size(key, value)


def read_tokens(key: str, value: object) -> int:
    """Read a number of tokens, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise complaint(key, value, "a number of tokens, 0 or more", f"set {key} 0 to load everything, or leave it out")
    return value


def read_retention(key: str, value: object) -> str | int:
    """Read the rule for which blocks of windows are stored."""
    if value in ("engine", "dense"):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise complaint(key, value, "'engine', 'dense' or a number of tokens, 1 or more", "leave it out for 'engine'")
    return value


def read_rate(key: str, value: object) -> int:
    """Read bytes per second, more than zero."""
    num_bytes = sizes.parse_size(value.removesuffix("/s") if isinstance(value, str) else value)
    if num_bytes is None or not 0 < num_bytes <= _MAX_BYTES:
        raise complaint(
            key,
            value,
            f"bytes per second, more than zero: {sizes.ALLOWED}",
            f"write for example {key!r}: '4GB/s', or leave it out for no limit",
        )
    return num_bytes


def read_host_link(key: str, value: object) -> HostLink:
    """Check the simulated link. ``bandwidth_gb_s`` applies to each direction that has no bandwidth of its own."""
    if not isinstance(value, Mapping):
        raise complaint(key, value, f"an object with keys among {', '.join(_LINK_KEYS)}", "leave it out for no link")
    refuse_unknown_keys(f"{WHERE}: {key}", value, _LINK_KEYS)
    for figure in _LINK_FIGURES:
        if figure in value and not (_is_figure(value[figure]) and value[figure] <= _MAX_LINK_FIGURE):
            raise complaint(f"{key}.{figure}", value[figure], "a number from 0 to 1e9", "zero means unlimited or none")
    for count in _LINK_COUNTS:
        if count in value and not (_is_int(value[count]) and 0 <= value[count] <= _MAX_COUNT):
            raise complaint(f"{key}.{count}", value[count], "a whole number from 0 to 2**64 - 1", "leave it out for 0")
    for chance in _LINK_CHANCES:
        probability = value.get(chance, 0)
        if not _is_figure(probability) or probability > 1:
            raise complaint(f"{key}.{chance}", probability, "a number from 0 to 1", "leave it out for 0")
    log = value.get("inject_log", "")
    if not isinstance(log, str):
        raise complaint(f"{key}.inject_log", log, "the path of a file", "leave it out for no log")
    if value.get("order", _LINK_ORDERS[0]) not in _LINK_ORDERS:
        raise complaint(f"{key}.order", value["order"], " or ".join(map(repr, _LINK_ORDERS)), "leave it out for 'fifo'")
    link: HostLink = dict(value)
    both_ways = link.pop("bandwidth_gb_s", None)
    if both_ways is not None:
        link.setdefault("h2d_gb_s", both_ways)
        link.setdefault("d2h_gb_s", both_ways)
    return link


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_figure(value: object) -> bool:
    """Whether `value` is a finite number of zero or more."""
    if not _is_int(value) and not isinstance(value, float):
        return False
    try:
        return math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]
    except OverflowError:
        return False


def refuse_fixed_contradictions(config: "KvFerryConfig") -> None:
    """Raise ConfigError if keys stand next to each other that exclude each other."""
    if config.scrub_bandwidth is not None and config.verify == "off":
        raise complaint(
            "scrub_bandwidth", config.scrub_bandwidth, "a key next to verify", "set verify to 'sampled' or 'all'"
        )
    for name in ("scrub_bandwidth", "cpu_bytes_limit", "memory_margin"):
        value = getattr(config, name)
        if value is not None and config.shared_path is not None:
            raise complaint(name, value, "a tier of the engine's own", f"leave {name} or shared_path out")
    for name in ("cpu_bytes_limit", "memory_margin"):
        value = getattr(config, name)
        if value is None:
            continue
        if config.pages == "huge":
            raise complaint(
                name,
                value,
                "memory that can go back to the machine, and huge pages go back to their pool",
                f"leave {name} out, or set pages to 'transparent'",
            )
        if config.cpu_bytes_to_use_per_rank is not None:
            raise complaint(
                name,
                value,
                "a key beside cpu_bytes_to_use, for all ranks of a node together",
                "set cpu_bytes_to_use in place of cpu_bytes_to_use_per_rank",
            )
    if config.cpu_bytes_limit is not None and config.cpu_bytes_limit < config.cpu_bytes_to_use:
        raise complaint(
            "cpu_bytes_limit",
            config.cpu_bytes_limit,
            f"cpu_bytes_to_use ({config.cpu_bytes_to_use}) or more",
            "raise it, or leave it out",
        )
