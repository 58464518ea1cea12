# SPDX-License-Identifier: Apache-2.0
"""What a user can set: LMCache's ``adapter_params``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from kvferry import sizes
from kvferry.config import EVICTIONS, PAGES
from kvferry.errors import ConfigError
from kvferry.settings import bad_value, one_of, refuse_unknown_keys

_WHERE = "adapter_params"
_MAX_BYTES = 2**50
_MAX_WORKERS = 256
# Of the largest kernels: 2^CONFIG_NODES_SHIFT.
_MAX_NODES = 1024
# What LMCache passes to the constructor of a class of its deprecated in-process interface.
_IN_PROCESS_KEYS = frozenset({"config", "metadata", "dst_device", "local_cpu_backend", "loop", "l1_memory_desc"})

IN_PROCESS = (
    "kvferry.lmcache serves LMCache's multi-process server, not its deprecated in-process interface nor its L2 "
    'adapters of type \'plugin\'; run `lmcache server --l2-adapter \'{"type": "native_plugin", "module_path": '
    '"kvferry.lmcache", "class_name": "KvFerryClient", "adapter_params": {"capacity": "8GiB"}}\'` and vLLM with '
    "LMCacheMPConnector"
)


@dataclass(frozen=True, kw_only=True)
class AdapterParams:
    """The validated parameters of one client.

    Attributes
    ----------
    capacity
        Host memory that it takes, in bytes: a hard limit.
    numa_node
        Where that is to lie. None: wherever the kernel puts it.
    huge_pages
        ``"huge"``: of the machine's pool of huge pages; ``"transparent"``, ``"normal"``; ``"auto"``: the best one.
    num_workers
        Threads that copy. None: as many as the process may run at once, at most 16.
    eviction
        What leaves when it is full: ``"lru"``, ``"arc"``, or ``"adaptive"``: whatever would have hit most lately.
    shared_path
        A file on a tmpfs or hugetlbfs that keeps the values when the process ends. Empty: nothing is kept.

    """

    capacity: int
    numa_node: int | None = None
    huge_pages: str = "auto"
    num_workers: int | None = None
    eviction: str = "adaptive"
    shared_path: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, object]) -> "AdapterParams":
        """Read and check ``adapter_params``.

        Raises
        ------
        ConfigError
            An unknown key, no capacity, or a value that is not allowed; the message names the key, the value, what is
            allowed and what to do.

        """
        if _IN_PROCESS_KEYS & params.keys():
            raise ConfigError(IN_PROCESS)
        known = tuple(field.name for field in fields(cls))
        refuse_unknown_keys(_WHERE, params, known)
        if "capacity" not in params:
            raise ConfigError(f"{_WHERE}: capacity is missing; write for example {{'capacity': '8GiB'}}")
        readers: dict[str, Callable[[str, object], object]] = {
            "capacity": _read_capacity,
            "numa_node": _whole_number(
                "the number of a NUMA node", 0, _MAX_NODES - 1, "leave it out for any; numactl -H lists them"
            ),
            "huge_pages": one_of(_WHERE, PAGES, "leave it out for the best there are"),
            "num_workers": _whole_number(
                f"a number of threads from 1 to {_MAX_WORKERS}", 1, _MAX_WORKERS, "leave it out for all that pay"
            ),
            "eviction": one_of(_WHERE, EVICTIONS, "leave it out for 'adaptive'"),
            "shared_path": _read_path,
        }
        return cls(**{key: readers[key](key, value) for key, value in params.items()})  # type: ignore[arg-type]


def _bad_value(key: str, value: object, allowed: str, remedy: str) -> ConfigError:
    return bad_value(_WHERE, key, value, allowed, remedy)


def _read_capacity(key: str, value: object) -> int:
    num_bytes = sizes.parse_size(value)
    if num_bytes is None or not 2**20 <= num_bytes <= _MAX_BYTES:
        raise _bad_value(key, value, f"{sizes.ALLOWED}, from 1MiB on", f"write for example {key!r}: '8GiB'")
    return num_bytes


def _read_path(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or value.endswith("/") or "\0" in value:
        raise _bad_value(
            key,
            value,
            "the absolute path of a file on a tmpfs or hugetlbfs",
            f"write for example {key!r}: '/dev/shm/kvferry-lmcache', or leave it out to keep nothing",
        )
    return value


def _whole_number(allowed: str, least: int, most: int, remedy: str) -> Callable[[str, object], int]:
    def read(key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _bad_value(key, value, allowed, remedy)
        return value

    return read
