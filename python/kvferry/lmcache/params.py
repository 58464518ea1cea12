# SPDX-License-Identifier: Apache-2.0
"""What a user can set: LMCache's ``adapter_params``."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry import settings, sizes
from kvferry.config import EVICTIONS, PAGES
from kvferry.errors import ConfigError
from kvferry.settings import (
    absolute_path,
    bad_value,
    key,
    known_keys,
    one_of,
    read_values,
    refuse_shared_contradictions,
    refuse_unknown_keys,
    whole_number,
)

_WHERE = "adapter_params"
_MAX_BYTES = 2**50
_MAX_WORKERS = 256
# What LMCache passes to the constructor of a class of its deprecated in-process interface.
_IN_PROCESS_KEYS = frozenset({"config", "metadata", "dst_device", "local_cpu_backend", "loop", "l1_memory_desc"})

IN_PROCESS = (
    "kvferry.lmcache serves LMCache's multi-process server, not its deprecated in-process interface nor its L2 "
    'adapters of type \'plugin\'; run `lmcache server --l2-adapter \'{"type": "native_plugin", "module_path": '
    '"kvferry.lmcache", "class_name": "KvFerryClient", "adapter_params": {"capacity": "8GiB"}}\'` and vLLM with '
    "LMCacheMPConnector"
)


def _read_bytes(key: str, value: object) -> int:
    num_bytes = sizes.parse_size(value)
    if num_bytes is None or not 2**20 <= num_bytes <= _MAX_BYTES:
        raise bad_value(_WHERE, key, value, f"{sizes.ALLOWED}, from 1MiB on", f"write for example {key!r}: '8GiB'")
    return num_bytes


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
        The policy by which objects leave a full store, one of `EVICTIONS`; ``"adaptive"``: the rule that would have hit
        most.
    shared_path
        File in shared memory, such as ``/dev/shm/kvferry/lmcache``, of a tier that all servers (and engines) of this
        node share that name it; the first one makes it. `capacity` is the size of it then, for all together, and the
        same for all of them. None: the memory is this server's own, and goes with it.
    shared_keep
        Whether the file stays behind when the last one has ended, for the next one to find its values in.
    shared_weight
        Part of the shared tier that is this server's when there is not enough for all, in proportion to the others'.
    shared_bytes_limit
        Most bytes of the shared tier that this server takes. None: all of it.
    shared_chunk_bytes
        Bytes that change hands at a time, and the most that an object may have; the same for all of them. None: as a
        file that is there is divided; of a new one, by `capacity`.

    """

    capacity: int = key(_read_bytes)
    numa_node: int | None = key(settings.numa_node(_WHERE, "leave it out for any; numactl -H lists them"), default=None)
    huge_pages: str = key(one_of(_WHERE, PAGES, "leave it out for the best there are"), default="auto")
    num_workers: int | None = key(
        whole_number(
            _WHERE, f"a number of threads from 1 to {_MAX_WORKERS}", 1, _MAX_WORKERS, "leave it out for all that pay"
        ),
        default=None,
    )
    eviction: str = key(one_of(_WHERE, EVICTIONS, "leave it out for 'adaptive'"), default="adaptive")
    shared_path: str | None = key(
        absolute_path(
            _WHERE,
            "the absolute path of a file on a tmpfs or hugetlbfs",
            "'/dev/shm/kvferry/lmcache', or leave it out to keep nothing",
        ),
        default=None,
    )
    shared_keep: bool = key(settings.flag(_WHERE, "leave it out for true"), default=True)
    shared_weight: int = key(settings.weight(_WHERE), default=1)
    shared_bytes_limit: int | None = key(_read_bytes, default=None)
    shared_chunk_bytes: int | None = key(_read_bytes, default=None)

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
        refuse_unknown_keys(_WHERE, params, known_keys(cls))
        refuse_shared_contradictions(_WHERE, params, "huge_pages")
        if "capacity" not in params:
            raise ConfigError(f"{_WHERE}: capacity is missing; write for example {{'capacity': '8GiB'}}")
        return cls(**read_values(cls, params))
