# SPDX-License-Identifier: Apache-2.0
"""The connector that vLLM makes: once in the scheduler, once in each worker."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kvferry.config import KvFerryConfig
from kvferry.errors import ProtocolError
from kvferry.vllm import plugin, preflight, shared_tier, versions
from kvferry.vllm.metadata import KvFerryMetadata
from kvferry.vllm.scheduler_side import SchedulerSide
from kvferry.vllm.stats import KvFerryPromMetrics, KvFerryStats
from kvferry.vllm.worker_side import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.config.kv_transfer import KVTransferConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# vLLM may have found this module by its path, without the plugin. ``MultiConnector`` looks its connectors up by name
# alone when their figures are to be logged.
plugin.register_connector()


class KvFerryConnector(KVConnectorBase_V1, SupportsHMA):
    """Stores the engine's KV cache blocks in host memory and loads them back, asynchronously.

    A best-effort cache: it never holds a request or a block for the sake of a store, and a load that fails is reported
    as such, so that the engine computes the tokens again or fails the request, by its ``kv_load_failure_policy``.
    Without prefix caching it is inert.

    Parameters
    ----------
    vllm_config
        Of the engine; ``kv_transfer_config.kv_connector_extra_config`` is read as `KvFerryConfig`.
    role
        Which side this is.
    kv_cache_config
        Of the engine, as this side has it.

    Raises
    ------
    ConfigError
        A value that is not allowed, or an engine mode that kvferry refuses (see `kvferry.vllm.preflight`).

    """

    _cache_hit_source = versions.host_cache_hit_source()

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        config = KvFerryConfig.from_extra_config(self._kv_transfer_config.kv_connector_extra_config or {})
        if not preflight.has_prefix_caching(vllm_config):
            return
        preflight.check_engine(vllm_config)
        preflight.check_layout(config.kv_cache_layout, vllm_config)
        shared_tier.check_engine(config, vllm_config)
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_side = SchedulerSide(config, vllm_config, kv_cache_config)
        else:
            self.worker_side = WorkerSide(config, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a store that is dropped is a later miss, nothing else."""
        return False

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether the engine may ask for what follows its own attention blocks, although it lacks the state there.

        A load brings the states of its own end. If vLLM's cache has lost the states of a prefix and not its blocks of
        full attention, these need not be loaded again.
        """
        return self.scheduler_side is not None and self.scheduler_side.completes_divergent_hits

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: "KVTransferConfig") -> bool:
        """True: see `unregister_kv_caches`. vLLM asks from 0.33 on; earlier ones, which do not tell, are refused."""
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Answer which layout of the KV cache vLLM is to use: that of the key `kv_cache_layout`, or None.

        vLLM only warns when it cannot obey; `preflight.check_layout` refuses that.
        """
        transfer = vllm_config.kv_transfer_config
        wanted = KvFerryConfig.from_extra_config((transfer and transfer.kv_connector_extra_config) or {})
        return None if wanted.kv_cache_layout == "engine" else wanted.kv_cache_layout

    # Worker side, in the order of a step.

    def register_kv_caches(self, kv_caches: dict[str, "torch.Tensor"]) -> None:
        """Take the engine's KV cache; see `WorkerSide.register`."""
        if self.worker_side is not None:
            self.worker_side.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Let go of the engine's KV cache, which is about to lose its memory; see `WorkerSide.unregister`."""
        if self.worker_side is not None:
            self.worker_side.unregister()

    def restore_kv_caches(self) -> None:
        """Take it again: it has memory; see `WorkerSide.restore`."""
        if self.worker_side is not None:
            self.worker_side.restore()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Begin a step: queue its loads behind what the compute stream holds."""
        super().bind_connector_metadata(connector_metadata)
        if self.worker_side is not None:
            assert isinstance(connector_metadata, KvFerryMetadata)
            self.worker_side.bind(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Do nothing: loads were queued when the metadata was bound."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do not wait: no request runs before its load has ended."""
        if (side := self.worker_side) is not None and side.is_waiting:
            side.pump()

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        """Use the time: gather what earlier steps had to leave."""
        if (side := self.worker_side) is not None and side.is_waiting:
            side.pump()

    def wait_for_save(self) -> None:
        """Gather the step's stores. Nothing holds their blocks afterwards, so there is nothing to wait for."""
        if self.worker_side is not None:
            self.worker_side.save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Announce the loads that the scheduler side knows to have failed; it tells of those that succeeded itself."""
        if self.worker_side is None:
            return KVConnectorTransferResults()
        failed = self.worker_side.collect()
        if finished_req_ids:
            self.worker_side.hurry_stats()
        return KVConnectorTransferResults(finished_recving=set(failed), failed_recving=set(failed))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Take note of what has ended, for a caller that knows nothing of failures.

        Raises
        ------
        ProtocolError
            One of them failed. Its blocks hold anything, and this hook cannot say so; vLLM itself calls
            `get_transfer_results`.

        """
        results = self.get_transfer_results(finished_req_ids)
        if results.failed_recving:
            raise ProtocolError(
                f"loads failed for {sorted(results.failed_recving)} and get_finished cannot report it; call "
                "get_transfer_results"
            )
        return None, None

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Say what else this rank saw."""
        return self.worker_side.take_metadata() if self.worker_side is not None else None

    # Scheduler side, in the life of a request.

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Let the core see which hash each GPU block carries."""
        if self.scheduler_side is not None:
            self.scheduler_side.bind_pool(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        """Begin to follow a request."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_new_request(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Look a request's prefix up; see `SchedulerSide.num_new_matched_tokens`."""
        if self.scheduler_side is None:
            return 0, False
        return self.scheduler_side.num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Begin the load of `num_external_tokens` tokens."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """Plan a step."""
        if self.scheduler_side is None:
            return KvFerryMetadata()
        return self.scheduler_side.build_metadata(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Take in what the ranks saw."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_worker_output(connector_output)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Release what a request holds, at once.

        Returns
        -------
        tuple[bool, None]
            False: the engine may free the request's blocks.

        """
        if self.scheduler_side is not None:
            self.scheduler_side.on_finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Release what a request holds, at once; see `request_finished`."""
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        """Whether the engine is to step on without a request: while the tier is resized, as somebody waits for it."""
        return self.scheduler_side is not None and self.scheduler_side.wants_steps

    def take_events(self) -> Iterable["KVCacheEvent"]:
        """Take what the tier holds since the last call, and what it does not hold any more."""
        return self.scheduler_side.take_events() if self.scheduler_side is not None else ()

    def reset_cache(self) -> bool:
        """Forget every block, with transfers in flight or without; see `SchedulerSide.reset_cache`.

        Returns
        -------
        bool
            True.

        """
        if self.scheduler_side is not None:
            self.scheduler_side.reset_cache()
        return True

    # Both sides.

    def get_kv_connector_stats(self) -> KvFerryStats | None:
        """Take this side's figures since it last told them, about once a second."""
        side = self.scheduler_side or self.worker_side
        return side.take_stats() if side is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvFerryStats:
        """Make figures of what was sent to the process that logs them."""
        return KvFerryStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[type["PromMetric"], type["PromMetricT"]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvFerryPromMetrics:
        """Make what ``/metrics`` shows."""
        return KvFerryPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End, and be inert from here on; idempotent."""
        scheduler_side, self.scheduler_side = self.scheduler_side, None
        if scheduler_side is not None:
            scheduler_side.close()
        if self.worker_side is not None:
            self.worker_side.close()
            self.worker_side = None
