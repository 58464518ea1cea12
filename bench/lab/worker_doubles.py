# SPDX-License-Identifier: Apache-2.0
"""The worker side of each connector, as far as the scheduler side sees it.

All of them report a transfer one step after the step that planned it, like a GPU whose copies take less time than a
forward pass. kvferry's is its real worker side with a tiny KV cache. Those of the stock connectors need a GPU, so their
messages are made here, and their blocks are not copied.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata
from vllm.v1.worker.utils import allocate_kv_cache

_SETTLE_TIMEOUT_S = 60.0


class WorkerDouble(ABC):
    """One rank's worker side.

    Attributes
    ----------
    hold
        While True, transfers are accepted and none ends.

    """

    def __init__(self) -> None:
        self.hold = False
        self._held: list[SchedulerOutput] = []

    def execute(self, output: SchedulerOutput) -> KVConnectorOutput | None:
        """Run one step; return the rank's report, or None."""
        self._held.append(output)
        if self.hold:
            return None
        steps, self._held = self._held, []
        report = self._run(steps)
        return None if report.is_empty() else report

    @abstractmethod
    def _run(self, steps: list[SchedulerOutput]) -> KVConnectorOutput:
        """Run steps; usually it is one."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether transfers are under way, or have ended and are not reported."""

    def close(self) -> None:  # noqa: B027
        """Release what the worker holds; by default nothing."""


class KvFerryWorker(WorkerDouble):
    """kvferry's own worker side."""

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, layout: KVCacheLayout) -> None:
        super().__init__()
        self._kv_caches = allocate_kv_cache(kv_cache_config, torch.device("cpu"), layout)
        self._connector: Any = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache_config)
        self._connector.register_kv_caches(self._kv_caches)
        self._transfers = self._connector.worker_side.engine
        self._num_blocks_planned = 0
        self._is_quiet = False

    def _run(self, steps: list[SchedulerOutput]) -> KVConnectorOutput:
        connector = self._connector
        finished: set[str] = set()
        for output in steps:
            connector.handle_preemptions(output.kv_connector_metadata)
            connector.bind_connector_metadata(output.kv_connector_metadata)
            connector.start_load_kv(None)
            connector.wait_for_save()
            finished |= output.finished_req_ids
        results = connector.get_transfer_results(finished)
        metadata = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        # The following work stands for a forward pass, so copies never run during a hook.
        self._is_quiet = metadata is None and not results.finished_recving
        self._settle()
        return KVConnectorOutput(
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=metadata,
        )

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while self._num_under_way():
            if time.monotonic() > deadline:
                raise TimeoutError(f"kvferry's copies do not end: {self._transfers.stats()}")
            time.sleep(0.0002)

    def _num_under_way(self) -> int:
        stats = self._transfers.stats()
        return int(stats["ring_used_bytes"] + stats["queued_bytes"] + stats["in_flight_bytes"])

    @property
    def is_busy(self) -> bool:
        """Whether transfers are under way, or have ended and are not reported."""
        return not self._is_quiet

    def close(self) -> None:
        """Shut kvferry's worker side down."""
        self._connector.shutdown()


class SimpleWorker(WorkerDouble):
    """Makes the reports of SimpleCPUOffloadConnector's worker."""

    def __init__(self) -> None:
        super().__init__()
        self._stores: list[int] = []
        self._loads: set[str] = set()

    def _run(self, steps: list[SchedulerOutput]) -> KVConnectorOutput:
        stores, self._stores = self._stores, []
        loads, self._loads = self._loads, set()
        for output in steps:
            metadata: Any = output.kv_connector_metadata
            if metadata.store_event >= 0:
                self._stores.append(metadata.store_event)
            if metadata.load_event >= 0:
                self._loads.update(metadata.load_event_to_reqs[metadata.load_event])
        return KVConnectorOutput(
            finished_recving=loads or None,
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(dict.fromkeys(stores, 1)) if stores else None,
        )

    @property
    def is_busy(self) -> bool:
        """Whether transfers are under way, or have ended and are not reported."""
        return bool(self._held or self._stores or self._loads)


class OffloadingWorker(WorkerDouble):
    """Makes the reports of OffloadingConnector's worker."""

    def __init__(self, block_bytes: int) -> None:
        super().__init__()
        self._block_bytes = block_bytes
        self._jobs: dict[int, tuple[Any, bool]] = {}

    def _run(self, steps: list[SchedulerOutput]) -> KVConnectorOutput:
        ended, self._jobs = self._jobs, {}
        for output in steps:
            metadata: Any = output.kv_connector_metadata
            self._jobs.update((job_id, (job, True)) for job_id, job in metadata.load_jobs.items())
            self._jobs.update((job_id, (job, False)) for job_id, job in metadata.store_jobs.items())
            for job_id in metadata.jobs_to_flush or ():  # Their blocks are about to be reused: no later wait.
                if job_id in self._jobs:
                    ended[job_id] = self._jobs.pop(job_id)
        if not ended:
            return KVConnectorOutput()
        report = OffloadingWorkerMetadata()
        loaded: set[str] = set()
        for job_id, (job, is_load) in ended.items():
            stats = report.transfer_stats.load if is_load else report.transfer_stats.store
            gpu_side = job.dst_spec if is_load else job.src_spec
            stats.record(len(gpu_side.block_ids) * self._block_bytes, 1e-3)
            report.mark_completed(job_id)
            if is_load:
                loaded.add(job.req_id)
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=report)

    @property
    def is_busy(self) -> bool:
        """Whether transfers are under way, or have ended and are not reported."""
        return bool(self._held or self._jobs)
