# SPDX-License-Identifier: Apache-2.0
"""The user's settings: LMCache's ``adapter_params``."""

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
_VERIFICATIONS = ("off", "all")
# LMCache's deprecated in-process interface passes these to the constructor of a class.
_IN_PROCESS_KEYS = frozenset({"config", "metadata", "dst_device", "local_cpu_backend", "loop", "l1_memory_desc"})

IN_PROCESS = (
    "kvferry.lmcache works with LMCache's multi-process server, not with its deprecated in-process interface or its L2 "
    'adapters of type \'plugin\'; run `lmcache server --l2-adapter \'{"type": "native_plugin", "module_path": '
    '"kvferry.lmcache", "class_name": "KvFerryClient", "adapter_params": {"capacity": "8GiB"}}\'` and vLLM with '
    "LMCacheMPConnector"
)


def _read_bytes(key: str, value: object) -> int:
    num_bytes = sizes.parse_size(value)
    if num_bytes is None or not 2**20 <= num_bytes <= _MAX_BYTES:
        raise bad_value(_WHERE, key, value, f"{sizes.ALLOWED}, 1MiB or more", f"write for example {key!r}: '8GiB'")
    return num_bytes


@dataclass(frozen=True, kw_only=True)
class AdapterParams:
    """The validated parameters of one client.

    Attributes
    ----------
    capacity
        Most bytes of host memory that it takes: a hard limit.
    numa_node
        The NUMA node of that memory. None: the kernel chooses.
    huge_pages
        ``"huge"``: from the machine's pool of huge pages; ``"transparent"``; ``"normal"``; ``"auto"``: the best
        available.
    num_workers
        Number of copy threads. None: as many as the process can run at once, at most 16.
    eviction
        The policy that chooses which objects leave a full store, one of `EVICTIONS`; ``"adaptive"``: the rule that
        would have hit most on recent traffic.
    verify
        Which loaded objects are checked to be what was stored: ``"all"`` or none (``"off"``).
    shared_path
        File in shared memory, such as ``/dev/shm/kvferry/lmcache``. All servers (and engines) of this node that name
        the same file share one tier; the first of them makes the file. `capacity` is then the size for all together,
        and must be the same for all. None: the memory belongs to this server, and is freed when it ends.
    shared_keep
        Whether the file is kept when the last server has ended, so that the next server finds its values.
    shared_weight
        This server's share of the shared tier when there is not enough for all, in proportion to the other weights.
    shared_bytes_limit
        Most bytes of the shared tier that this server takes. None: all of it.
    shared_chunk_bytes
        Bytes that change owner at a time, and the largest size of an object; the same for all servers. None: as an
        existing file is divided; for a new file, chosen by `capacity`.

    """

    capacity: int = key(_read_bytes)
    numa_node: int | None = key(settings.numa_node(_WHERE, "leave it out for any; numactl -H lists them"), default=None)
    huge_pages: str = key(one_of(_WHERE, PAGES, "leave it out for the best available"), default="auto")
    num_workers: int | None = key(
        whole_number(
            _WHERE, f"a number of threads from 1 to {_MAX_WORKERS}", 1, _MAX_WORKERS, "leave it out for the default"
        ),
        default=None,
    )
    eviction: str = key(one_of(_WHERE, EVICTIONS, "leave it out for 'adaptive'"), default="adaptive")
    verify: str = key(one_of(_WHERE, _VERIFICATIONS, "leave it out for 'all'"), default="all")
    shared_path: str | None = key(
        absolute_path(
            _WHERE,
            "the absolute path of a file on a tmpfs or hugetlbfs",
            "'/dev/shm/kvferry/lmcache', or leave it out to share and keep nothing",
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
