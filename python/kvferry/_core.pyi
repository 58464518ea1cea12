# SPDX-License-Identifier: Apache-2.0
# Made by `make stubs` from the built extension; `make lint` compares.
"""
The C++ core of kvferry.
"""

from __future__ import annotations
import collections.abc
import typing

__all__: list[str] = [
    "ConfigError",
    "DeviceError",
    "Error",
    "ProtocolError",
    "ResourceError",
    "SchedulerEngine",
    "TimeoutError",
    "TopologyError",
    "WorkerEngine",
]

class Error(RuntimeError):
    pass

class ConfigError(Error):
    pass

class ResourceError(Error):
    pass

class TopologyError(Error):
    pass

class ProtocolError(Error):
    pass

class DeviceError(Error):
    pass

class TimeoutError(Error):
    pass

class SchedulerEngine:
    """
    The scheduler side: decides what is stored, loaded, evicted and reported. One per engine, called by its scheduler's thread.
    """
    def __init__(
        self,
        *,
        world_size: typing.SupportsInt | typing.SupportsIndex,
        block_tokens: typing.SupportsInt | typing.SupportsIndex,
        num_blocks: typing.SupportsInt | typing.SupportsIndex,
        slot_bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        max_slots: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        `block_tokens`: tokens of a block and of a hash. `num_blocks`: of the GPU pool. `slot_bytes`: packed bytes of a block, by rank. `max_slots`: of the tier. Raises ConfigError.
        """
    def bind_pool(self, blocks: list[typing.Any]) -> None:
        """
        The engine's KVCacheBlock objects by block id, by which the backlog is checked.
        """
    def build_plan(self, scheduler_output: typing.Any) -> bytes:
        """
        Ends the step: the encoded plan for every rank. Reads the vLLM SchedulerOutput, keeps nothing of it.
        """
    def close(self) -> None:
        """
        Drops everything. Idempotent.
        """
    def fold(self, reports: list[bytes]) -> list[str]:
        """
        Applies the ranks' encoded reports. Returns the request ids whose load report is stale. Raises ProtocolError or TopologyError.
        """
    def lookup(
        self,
        request_id: str,
        block_hashes: list[bytes],
        num_local_tokens: typing.SupportsInt | typing.SupportsIndex,
        num_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> int:
        """
        Tokens that can be loaded beyond the local ones, a multiple of the block. Holds nothing.
        """
    def on_allocated(
        self,
        request_id: str,
        block_hashes: list[bytes],
        blocks: typing.Any,
        num_external_tokens: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        The engine allocated `blocks` (all KVCacheBlock objects of the request) and waits for the load.
        """
    def on_finished(self, request_id: str) -> None:
        """
        Releases everything of the request. Idempotent.
        """
    def on_request(self, request_id: str, block_hashes: list[bytes]) -> None:
        """
        A request arrives, or its id is used again. The list is kept and read as the engine extends it.
        """
    def reset_cache(self) -> None:
        """
        Empties the tier.
        """
    def snapshot(self) -> dict[str, int]:
        """
        All levels and counters, in blocks unless the name says otherwise.
        """

class WorkerEngine:
    """
    The worker side of one rank: executes plans and reports. Called by the engine's worker thread.
    """
    def __init__(
        self,
        *,
        backend: str,
        rank: typing.SupportsInt | typing.SupportsIndex,
        world_size: typing.SupportsInt | typing.SupportsIndex,
        num_blocks: typing.SupportsInt | typing.SupportsIndex,
        fragments: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
            ]
        ],
        num_slots: typing.SupportsInt | typing.SupportsIndex,
        staging_bytes: typing.SupportsInt | typing.SupportsIndex,
        max_in_flight_bytes: typing.SupportsInt | typing.SupportsIndex,
        transfer_timeout_s: typing.SupportsFloat | typing.SupportsIndex,
        host_link: typing.Any = None,
    ) -> None:
        """
        `fragments`: (address, block stride in bytes, bytes) in layer order; their memory outlives this. `num_slots`: of this rank's arena, which is pinned here. Raises ConfigError, ResourceError or DeviceError.
        """
    def bind(self, plan: bytes, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Takes the step's plan over, before the forward. `stream`: the compute stream's native handle. Raises ProtocolError.
        """
    def close(self) -> None:
        """
        Refuses new work and waits for what runs. Idempotent. Raises TimeoutError.
        """
    def collect(self) -> tuple[list[str], list[str]]:
        """
        (request ids whose load ended, those of them that failed), each load once. Raises TimeoutError.
        """
    def pump(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers what is ready and did not fit before.
        """
    def save(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Gathers what the step completed, behind the forward.
        """
    def stats(self) -> dict[str, int]:
        """
        Counters since the start and levels of now.
        """
    def take_report(self) -> bytes:
        """
        The encoded report of everything since the last call; empty when there is nothing to say.
        """
    def unsafe_copy_slot(
        self, source: typing.SupportsInt | typing.SupportsIndex, to: typing.SupportsInt | typing.SupportsIndex
    ) -> None:
        """
        For tests: overwrites the bytes of slot `to`, so that a wrong byte can be shown to be noticed.
        """
    @property
    def num_slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...

__version__: str
