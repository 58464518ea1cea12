# SPDX-License-Identifier: Apache-2.0
"""The ways of vLLM's model runners through one step, with vLLM's own code around the connector's hooks."""

import contextlib
import enum
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.forward_context import set_forward_context
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin


class Way(enum.Enum):
    """How a model runner goes through a step that has tokens. Without tokens v1 and v2 have one way each.

    vLLM 0.32's model runner v2 has no way of its own with drafts.
    """

    V1 = "v1"
    # With speculative decoding the save comes last, behind the report.
    V1_DRAFTS = "v1-drafts"
    # The same on a pipeline stage that is not the last: the step ends without the save. kvferry refuses such engines.
    V1_DRAFTS_STAGE = "v1-drafts-stage"
    V2 = "v2"
    V2_DRAFTS = "v2-drafts"


class ToyRunner:
    """Calls the hooks of one rank's connector as vLLM's model runners do; registers its KV cache."""

    def __init__(self, connector: KVConnectorBase_V1, config: VllmConfig, kv_caches: dict[str, torch.Tensor]) -> None:
        self._connector = connector
        self._config = config
        # Where connectors that load by themselves find the KV cache.
        layers = {name: SimpleNamespace(kv_cache=tensor) for name, tensor in kv_caches.items()}
        config.compilation_config.static_forward_context = layers
        self._attention = dict.fromkeys(kv_caches)
        with self._as_group():
            self._v2 = ActiveKVConnector(config, kv_caches)

    def step(self, way: Way, output: SchedulerOutput, forward: Callable[[], None]) -> KVConnectorOutput:
        """Go through one step; `forward` is not called if it has no tokens."""
        with self._as_group():
            result = (self._step_v2 if way in (Way.V2, Way.V2_DRAFTS) else self._step_v1)(way, output, forward)
        assert result is not None
        return result

    def _step_v1(self, way: Way, output: SchedulerOutput, forward: Callable[[], None]) -> KVConnectorOutput | None:
        runner = KVConnectorModelRunnerMixin
        self._connector.handle_preemptions(output.kv_connector_metadata)
        if output.total_num_scheduled_tokens == 0:
            empty = runner.kv_connector_no_forward(output, self._config).kv_connector_output
            return empty if empty is not None else KVConnectorOutput()
        with (
            set_forward_context(self._attention, self._config),
            runner.maybe_get_kv_connector_output(output, defer_finalize=way != Way.V1) as result,
        ):
            forward()
        if way == Way.V1_DRAFTS:
            runner.finalize_kv_connector()
        return result

    def _step_v2(self, way: Way, output: SchedulerOutput, forward: Callable[[], None]) -> KVConnectorOutput | None:
        v2 = self._v2
        if output.total_num_scheduled_tokens == 0:
            empty = v2.no_forward(output).kv_connector_output
            return empty if empty is not None else KVConnectorOutput()
        num_tokens = output.total_num_scheduled_tokens
        batch = SimpleNamespace(idx_mapping=None, req_ids=list(output.num_scheduled_tokens), num_tokens=num_tokens)
        with set_forward_context(self._attention, self._config):
            if "input_batch" in inspect.signature(v2.pre_forward).parameters:
                v2.pre_forward(output, batch)
            else:  # before 0.32
                v2.pre_forward(output)
            forward()
        v2.finish_forward()
        if way == Way.V2 or not hasattr(v2, "finalize_step"):
            return v2.post_forward(output.finished_req_ids)
        result = v2.post_forward(output.finished_req_ids, defer_finalize=True)
        v2.finalize_step()
        return result

    @contextlib.contextmanager
    def _as_group(self) -> Iterator[None]:
        """Be the process's connector, which is how vLLM's code finds it."""
        kv_transfer_state._KV_CONNECTOR_AGENT = self._connector
        try:
            yield
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = None
