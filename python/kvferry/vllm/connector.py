# SPDX-License-Identifier: Apache-2.0
"""The connector. vLLM makes one in the scheduler and one in each worker."""

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

# vLLM may have found this module by its path, without the plugin. But ``MultiConnector`` looks up its connectors by
# name alone when it logs their figures.
plugin.register_connector()


class KvFerryConnector(KVConnectorBase_V1, SupportsHMA):
    """Stores the engine's KV cache blocks in host memory and loads them back, asynchronously.

    It is a best-effort cache. It never holds a request or a block for a store. A failed load is reported as failed, so
    the engine computes the tokens again or fails the request (``kv_load_failure_policy``). Without prefix caching the
    connector does nothing.

    Parameters
    ----------
    vllm_config
        The engine's configuration; ``kv_transfer_config.kv_connector_extra_config`` is read as `KvFerryConfig`.
    role
        Which side this is.
    kv_cache_config
        The engine's KV cache, as this side knows it.

    Raises
    ------
    ConfigError
        A value is not allowed, or kvferry refuses the engine's mode (see `kvferry.vllm.preflight`).

    """

    _cache_hit_source = versions.host_cache_hit_source()

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        config = KvFerryConfig.from_extra_config(self._kv_transfer_config.kv_connector_extra_config or {})
        if not vllm_config.cache_config.enable_prefix_caching:
            if role == KVConnectorRole.SCHEDULER:  # once for all ranks
                preflight.warn_without_prefix_caching()
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
        """False: a dropped store only causes a later miss."""
        return False

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether the engine may ask for tokens after its own attention blocks, although it lacks the state there.

        A load brings the states of its own end. So if vLLM's cache has lost the states of a prefix, but still has its
        blocks of full attention, the latter need not be loaded again.
        """
        return self.scheduler_side is not None and self.scheduler_side.completes_divergent_hits

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: "KVTransferConfig") -> bool:
        """True; see `unregister_kv_caches`. vLLM asks from 0.33 on; sleep mode is refused with earlier releases."""
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Return the layout of the KV cache that vLLM should use: that of the key `kv_cache_layout`, or None.

        vLLM only warns if it cannot use that layout; `preflight.check_layout` then refuses to start.
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
        """Release the engine's KV cache, which is about to lose its memory; see `WorkerSide.unregister`."""
        if self.worker_side is not None:
            self.worker_side.unregister()

    def restore_kv_caches(self) -> None:
        """Take the engine's KV cache again, which has memory again; see `WorkerSide.restore`."""
        if self.worker_side is not None:
            self.worker_side.restore()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Begin a step: queue its loads after the work that the compute stream has now."""
        super().bind_connector_metadata(connector_metadata)
        if self.worker_side is not None:
            assert isinstance(connector_metadata, KvFerryMetadata)
            self.worker_side.bind(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Do nothing: the loads were queued when the metadata was bound."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Gather blocks for which there was no room before. Does not wait for loads: no request runs before its own."""
        if (side := self.worker_side) is not None and side.is_waiting:
            side.pump()

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        """Gather blocks for which there was no room before."""
        if (side := self.worker_side) is not None and side.is_waiting:
            side.pump()

    def wait_for_save(self) -> None:
        """Gather the step's stores. Afterwards no store holds a block, so there is nothing to wait for."""
        if self.worker_side is not None:
            self.worker_side.save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the loads that failed. The scheduler side itself reports those that succeeded."""
        if self.worker_side is None:
            return KVConnectorTransferResults()
        failed = self.worker_side.collect()
        if finished_req_ids:
            self.worker_side.hurry_stats()
        return KVConnectorTransferResults(finished_recving=set(failed), failed_recving=set(failed))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Collect the transfers that have ended, for a caller that does not know about failures.

        Raises
        ------
        ProtocolError
            A load failed, so its blocks can hold anything, and this hook cannot report it. vLLM itself calls
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
        """Return this rank's report."""
        return self.worker_side.take_metadata() if self.worker_side is not None else None

    # Scheduler side, in the order of a request's life.

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Let the core see which hash each GPU block carries."""
        if self.scheduler_side is not None:
            self.scheduler_side.bind_pool(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        """Begin to follow a request."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_new_request(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Look up a request's prefix; see `SchedulerSide.num_new_matched_tokens`."""
        if self.scheduler_side is None:
            return 0, False
        return self.scheduler_side.num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Note that a request got blocks, and begin the load of `num_external_tokens` tokens, if there are any."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """Plan a step."""
        if self.scheduler_side is None:
            return KvFerryMetadata()
        return self.scheduler_side.build_metadata(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Process the ranks' reports."""
        if self.scheduler_side is not None:
            self.scheduler_side.on_worker_output(connector_output)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Release everything that a request holds, at once.

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
        """Release everything that a request holds, at once; see `request_finished`."""
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        """Whether the engine should step without a request. True while the tier is resized."""
        return self.scheduler_side is not None and self.scheduler_side.wants_steps

    def take_events(self) -> Iterable["KVCacheEvent"]:
        """Take the events of blocks that came into the tier since the last call, or left it."""
        return self.scheduler_side.take_events() if self.scheduler_side is not None else ()

    def reset_cache(self) -> bool:
        """Forget every block, even while transfers are in flight; see `SchedulerSide.reset_cache`.

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
        """Take this side's figures since its last report, about once a second."""
        side = self.scheduler_side or self.worker_side
        return side.take_stats() if side is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvFerryStats:
        """Convert the data that the logging process received to figures."""
        return KvFerryStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[type["PromMetric"], type["PromMetricT"]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvFerryPromMetrics:
        """Make the metrics for ``/metrics``."""
        return KvFerryPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End. Afterwards the connector does nothing. Idempotent."""
        scheduler_side, self.scheduler_side = self.scheduler_side, None
        if scheduler_side is not None:
            scheduler_side.close()
        if self.worker_side is not None:
            self.worker_side.close()
            self.worker_side = None
