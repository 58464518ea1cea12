# SPDX-License-Identifier: Apache-2.0
"""What a user can set: the keys of vLLM's ``kv_connector_extra_config``."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvferry import sizes
from kvferry.errors import ConfigError
from kvferry.sizes import format_size

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

BACKENDS = ("auto", "host")
_LINK_ORDERS = ("fifo", "shuffled")
_LINK_FIGURES = ("bandwidth_gb_s", "h2d_gb_s", "d2h_gb_s", "latency_us", "jitter_us")
_LINK_COUNTS = ("fail_nth", "seed")
_LINK_KEYS = (*_LINK_FIGURES, *_LINK_COUNTS, "order", "fail_probability")
_MAX_COUNT = 2**64 - 1
_MAX_BYTES = 2**63 - 1

HostLink = dict[str, float | int | str]


@dataclass(frozen=True, kw_only=True)
class KvFerryConfig:
    """The validated configuration of one connector.

    Attributes
    ----------
    cpu_bytes_to_use
        Host memory of the tier on one node, in bytes, split evenly over the node's ranks.
    cpu_bytes_to_use_per_rank
        Bytes of one rank; takes the place of the even split.
    staging_bytes
        Device memory of one rank's staging ring, in bytes. None: one full step of KV, at most 1 GiB.
    max_in_flight_bytes
        Bytes that may be under way on the link at once, per rank and direction.
    transfer_timeout_s
        Seconds after which a transfer that has not ended is a fatal error of its worker.
    backend
        ``"auto"``: by the device of the KV cache; else the name of a back end.
    host_link
        The simulated link of the host back end: ``h2d_gb_s``, ``d2h_gb_s`` (1e9 bytes per second), ``latency_us``,
        ``jitter_us``, ``order``, ``fail_nth``, ``fail_probability``, ``seed``. None: copies run at memory speed.

    """

    cpu_bytes_to_use: int = 8 * GIB
    cpu_bytes_to_use_per_rank: int | None = None
    staging_bytes: int | None = None
    max_in_flight_bytes: int = 32 * MIB
    transfer_timeout_s: float = 300.0
    backend: str = "auto"
    host_link: HostLink | None = None

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, object]) -> "KvFerryConfig":
        """Read and check ``kv_connector_extra_config``.

        Raises
        ------
        ConfigError
            An unknown key, or a value that is not allowed; the message names the key, the value, what is allowed and
            what to do.

        """
        known = tuple(field.name for field in fields(cls))
        _refuse_unknown_keys("kv_connector_extra_config", extra_config, known)
        readers = {
            "cpu_bytes_to_use": _read_size,
            "cpu_bytes_to_use_per_rank": _read_size,
            "staging_bytes": _read_size,
            "max_in_flight_bytes": _read_size,
            "transfer_timeout_s": _read_seconds,
            "backend": _read_backend,
            "host_link": _read_host_link,
        }
        return cls(**{key: readers[key](key, value) for key, value in extra_config.items()})  # type: ignore[arg-type]

    def bytes_per_rank(self, num_local_ranks: int) -> int:
        """Bytes of the tier that one rank of a node with `num_local_ranks` ranks holds."""
        if self.cpu_bytes_to_use_per_rank is not None:
            return self.cpu_bytes_to_use_per_rank
        return self.cpu_bytes_to_use // num_local_ranks

    def num_slots(self, slot_bytes: int, num_local_ranks: int) -> int:
        """Slots of one rank's tier.

        Parameters
        ----------
        slot_bytes
            Bytes of one block on this rank, all layers packed.
        num_local_ranks
            Ranks among which the node's budget is divided.

        Raises
        ------
        ConfigError
            The budget holds not even one block.

        """
        budget = self.bytes_per_rank(num_local_ranks)
        if budget >= slot_bytes:
            return budget // slot_bytes
        if self.cpu_bytes_to_use_per_rank is not None:
            raise _bad_value(
                "cpu_bytes_to_use_per_rank",
                budget,
                f"at least one block of the KV cache, {slot_bytes} bytes ({format_size(slot_bytes)}) on this rank",
                f"set it to {slot_bytes} or more, or leave it out and set cpu_bytes_to_use",
            )
        raise _bad_value(
            "cpu_bytes_to_use",
            self.cpu_bytes_to_use,
            f"at least one block of the KV cache per rank, {slot_bytes} bytes ({format_size(slot_bytes)}) for each of "
            f"{num_local_ranks} local ranks",
            f"set it to {slot_bytes * num_local_ranks} or more",
        )

    def ring_bytes(self, slot_bytes: int, block_tokens: int, max_num_batched_tokens: int) -> int:
        """Bytes of one rank's staging ring.

        Parameters
        ----------
        slot_bytes
            Bytes of one block on this rank, all layers packed.
        block_tokens
            Tokens of a block.
        max_num_batched_tokens
            Tokens that one step of the engine computes at most.

        Raises
        ------
        ConfigError
            `staging_bytes` is set and holds not even one block.

        """
        if self.staging_bytes is None:
            step_blocks = -(-max_num_batched_tokens // block_tokens)
            return max(slot_bytes, min(step_blocks * slot_bytes, GIB))
        if self.staging_bytes < slot_bytes:
            raise _bad_value(
                "staging_bytes",
                self.staging_bytes,
                f"at least one block of the KV cache, {slot_bytes} bytes ({format_size(slot_bytes)}) on this rank",
                "raise it, or leave it out for one full step of KV",
            )
        return self.staging_bytes


def _bad_value(key: str, value: object, allowed: str, remedy: str) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config: {key} is {value!r}; allowed is {allowed}; {remedy}")


def _refuse_unknown_keys(where: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            remedy = f"did you mean {nearest[0]!r}?" if nearest else "remove it"
            raise ConfigError(f"{where}: unknown key {key!r}; valid keys are {', '.join(known)}; {remedy}")


def _read_size(key: str, value: object) -> int:
    num_bytes = sizes.parse_size(value)
    if num_bytes is None or not 0 < num_bytes <= _MAX_BYTES:
        raise _bad_value(key, value, f"{sizes.ALLOWED}, more than zero", f"write for example {key!r}: '8GiB'")
    return num_bytes


def _read_seconds(key: str, value: object) -> float:
    if not _is_figure(value) or float(value) == 0.0:  # type: ignore[arg-type]
        raise _bad_value(key, value, "a finite number of seconds, more than zero", f"write for example {key!r}: 300")
    return float(value)  # type: ignore[arg-type]


def _read_backend(key: str, value: object) -> str:
    if value not in BACKENDS:
        raise _bad_value(
            key, value, " or ".join(map(repr, BACKENDS)), "this build has back ends: host; leave the key out"
        )
    return str(value)


def _read_host_link(key: str, value: object) -> HostLink:
    """Check the simulated link; ``bandwidth_gb_s`` becomes the figure of each direction that has none of its own."""
    if not isinstance(value, Mapping):
        raise _bad_value(key, value, f"an object with keys among {', '.join(_LINK_KEYS)}", "leave it out for no link")
    _refuse_unknown_keys(f"kv_connector_extra_config: {key}", value, _LINK_KEYS)
    for figure in _LINK_FIGURES:
        if figure in value and not _is_figure(value[figure]):
            raise _bad_value(
                f"{key}.{figure}", value[figure], "a finite number, zero or more", "zero means unlimited or none"
            )
    for count in _LINK_COUNTS:
        if count in value and not (_is_int(value[count]) and 0 <= value[count] <= _MAX_COUNT):
            raise _bad_value(f"{key}.{count}", value[count], "a whole number from 0 to 2**64 - 1", "leave it out for 0")
    probability = value.get("fail_probability", 0)
    if not _is_figure(probability) or probability > 1:
        raise _bad_value(f"{key}.fail_probability", probability, "a number from 0 to 1", "leave it out for 0")
    if value.get("order", _LINK_ORDERS[0]) not in _LINK_ORDERS:
        raise _bad_value(
            f"{key}.order", value["order"], " or ".join(map(repr, _LINK_ORDERS)), "leave it out for 'fifo'"
        )
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
