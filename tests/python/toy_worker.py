# SPDX-License-Identifier: Apache-2.0
"""One rank of the toy engine: KV cache tensors, the model, and the worker side of the connector."""

import pickle
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from toy_config import ToySpec
from toy_layers import Share
from toy_model import ToyModel
from toy_pipeline import ToyPipeline
from toy_runner import ToyRunner, Way
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.worker.utils import allocate_kv_cache


def kvferry_of(connector: Any) -> Any:
    """The engine's connector, or the first of a ``MultiConnector``'s that is kvferry's."""
    children = getattr(connector, "sub_connectors", [connector])
    return next(child for child in children if hasattr(child, "worker_side"))


class ToyWorker:
    """One rank.

    Attributes
    ----------
    model
        The rank's shard of the toy model.
    way
        How its model runner goes through a step; may be changed between steps.
    report_delay
        Steps by which the engine hears later of what this rank says.

    """

    def __init__(
        self,
        config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        rank: int,
        spec: ToySpec,
        pipeline: ToyPipeline | None = None,
    ) -> None:
        self.way = Way.V1
        self.report_delay = 0
        self._delayed: deque[KVConnectorOutput] = deque()
        self._rank = rank
        self._spec = spec
        self._config = pickle.loads(pickle.dumps(config))
        self._config.parallel_config.rank = rank
        tensors = allocate_kv_cache(kv_cache_config, torch.device("cpu"), spec.layout)
        self.kv_caches = {name: tensors[name] for name in spec.layers_of_rank(rank)}
        prefill_rank, tensor_rank = divmod(rank % spec.world_size, spec.num_tensor_ranks)
        # vLLM's order: neighbours divide a block, and if there are several prefill ranks those before others.
        place = (tensor_rank * spec.num_prefill_ranks + prefill_rank) % spec.num_context_ranks
        share = Share(spec.num_context_ranks, place, spec.interleaving)
        self.model = ToyModel(self.kv_caches, kv_cache_config, tensor_rank, spec, share)
        # Any: what vLLM's class has is not all that tests look at.
        self.connector: Any = None
        self._runner: ToyRunner | None = None
        if config.kv_transfer_config is not None:
            with (pipeline or ToyPipeline(spec)).as_rank(rank):
                self.connector = KVConnectorFactory.create_connector(
                    self._config, KVConnectorRole.WORKER, kv_cache_config
                )
            self._runner = ToyRunner(self.connector, self._config, self.kv_caches)
        self._is_holding = False

    def hold_reports(self) -> None:
        """Answer the engine from here on as if this rank had not seen any copy end: it hears later."""
        if not self._is_holding:
            self._is_holding = True
            self.connector.get_transfer_results = lambda finished_req_ids: KVConnectorTransferResults()
            self.connector.build_connector_worker_meta = lambda: None

    def release_reports(self) -> None:
        """End `hold_reports`: the engine hears of everything at the end of the next step."""
        if self._is_holding:
            self._is_holding = False
            del self.connector.get_transfer_results
            del self.connector.build_connector_worker_meta

    def wait_for_copies(self, timeout_s: float = 60.0) -> None:
        """Wait until every copy that was queued has ended; nobody is told."""
        deadline = time.monotonic() + timeout_s
        while (stats := self.copy_stats())["queued_bytes"] or stats["in_flight_bytes"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {self._rank}: copies have not ended after {timeout_s} s: {stats}")
            time.sleep(50e-6)

    def copy_stats(self) -> dict[str, int]:
        """Levels and counters of the copies of this rank."""
        return dict(kvferry_of(self.connector).worker_side.engine.stats())

    def execute(self, output: SchedulerOutput, told: Mapping[str, list[int]] | None = None) -> ModelRunnerOutput:
        """Run one step as vLLM's model runner does.

        Parameters
        ----------
        output
            Of the scheduler.
        told
            The step's tokens, on a pipeline stage that is not the last and so samples none.

        """
        computed = self.model.update(output)
        self.model.told = None if told is None else {request_id: iter(tokens) for request_id, tokens in told.items()}
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []

        def forward() -> None:
            sampled.extend(self.model.forward(output, computed))
            time.sleep(self._spec.token_time_s * output.total_num_scheduled_tokens)
            self._visit_layers()

        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled
        )
        if self._runner is None:
            forward()
            return result
        self._delayed.append(self._runner.step(self.way, output, forward))
        is_due = len(self._delayed) > self.report_delay
        result.kv_connector_output = self._delayed.popleft() if is_due else KVConnectorOutput()
        return result

    def _visit_layers(self) -> None:
        """Call what an attention layer calls, and take the time that a layer takes."""
        for name, tensor in self.kv_caches.items():
            if self._spec.layer_time_s > 0:
                time.sleep(self._spec.layer_time_s)
            if self.connector is not None:
                self.connector.wait_for_layer_load(name)
                self.connector.save_kv_layer(name, tensor, None)
