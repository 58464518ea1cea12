# SPDX-License-Identifier: Apache-2.0
"""The worker side of one rank: translates vLLM's hooks, each to one call of the core's WorkerEngine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from kvferry import _core
from kvferry.config import BACKENDS, KvFerryConfig
from kvferry.errors import ConfigError, ProtocolError, ResourceError, TopologyError
from kvferry.sizes import format_size
from kvferry.vllm import preflight, topology
from kvferry.vllm.layout import fragments_of_group
from kvferry.vllm.metadata import KvFerryMetadata, KvFerryWorkerMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvferry")

# The back end that serves a kind of torch device.
_BACKEND_OF_DEVICE = {"cpu": "host"}

# The host back end's only compute stream: the thread that calls.
_HOST_STREAM = 0


class WorkerSide:
    """Executes plans on one rank and reports; used by the worker's engine thread only.

    Nothing but `register` and `close` may be called before `register`.

    Parameters
    ----------
    config
        Of the connector.
    vllm_config, kv_cache_config
        Of the engine, as this worker has them.

    Raises
    ------
    ConfigError
        The tier or the staging ring holds no block, or the engine is one that kvferry refuses.

    """

    def __init__(self, config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        self._config = config
        self._group = preflight.check_kv_cache(kv_cache_config)
        self._num_blocks = kv_cache_config.num_blocks
        parallel = vllm_config.parallel_config
        self._rank = parallel.rank
        self._world_size = parallel.world_size
        self._slot_bytes = topology.slot_bytes_of_rank(self._group)
        self._num_slots = config.num_slots(self._slot_bytes, parallel.local_world_size)
        self._ring_bytes = config.ring_bytes(
            self._slot_bytes,
            self._group.kv_cache_spec.block_size,
            vllm_config.scheduler_config.max_num_batched_tokens,
        )
        self.engine: _core.WorkerEngine | None = None
        self._kv_caches: Mapping[str, torch.Tensor] = {}

    def register(self, kv_caches: Mapping[str, "torch.Tensor"]) -> None:
        """Take the engine's KV cache and start.

        Parameters
        ----------
        kv_caches
            Layer name to tensor; kept alive until `close`.

        Raises
        ------
        ConfigError
            Tensors on a device without back end, or laid out in an unsupported way.
        TopologyError
            They have another size than the engine's configuration says.
        ResourceError
            The machine does not have the host memory.

        """
        if self.engine is not None:
            raise ProtocolError("register_kv_caches was called twice; the tier belongs to the first KV cache")
        fragments = fragments_of_group(self._group.layer_names, kv_caches, self._num_blocks)
        found = sum(fragment.num_bytes for fragment in fragments)
        if found != self._slot_bytes:
            raise TopologyError(
                f"rank {self._rank}: a block of the registered KV cache has {found} bytes in "
                f"{len(self._group.layer_names)} layers, and {self._slot_bytes} by the engine's KV cache specification"
            )
        try:
            self.engine = engine = _core.WorkerEngine(
                backend=self._backend(kv_caches),
                rank=self._rank,
                world_size=self._world_size,
                num_blocks=self._num_blocks,
                fragments=fragments,
                num_slots=self._num_slots,
                staging_bytes=self._ring_bytes,
                max_in_flight_bytes=self._config.max_in_flight_bytes,
                transfer_timeout_s=self._config.transfer_timeout_s,
                host_link=self._config.host_link,
            )
        except ResourceError as error:
            raise ResourceError(
                f"rank {self._rank} cannot have its share of cpu_bytes_to_use, "
                f"{format_size(self._num_slots * self._slot_bytes)}: {error}"
            ) from error
        logger.info(
            "kvferry: rank %d has %d slots of %s (%s) and a staging ring of %s",
            self._rank,
            self._num_slots,
            format_size(self._slot_bytes),
            format_size(self._num_slots * self._slot_bytes),
            format_size(self._ring_bytes),
        )
        self._bind = engine.bind
        self._pump = engine.pump
        self._save = engine.save
        self._take_report = engine.take_report
        self.collect = engine.collect
        self._kv_caches = dict(kv_caches)

    def _backend(self, kv_caches: Mapping[str, "torch.Tensor"]) -> str:
        devices = {tensor.device for tensor in kv_caches.values()}
        backends = {_BACKEND_OF_DEVICE.get(device.type) for device in devices}
        backend = backends.pop()
        if backend is None or backends or self._config.backend not in ("auto", backend):
            raise ConfigError(
                f"the KV cache is on {', '.join(sorted(map(str, devices)))} and backend is {self._config.backend!r}; "
                f"this build has back ends: {', '.join(BACKENDS[1:])} (KV cache on cpu); start vLLM on its CPU "
                "platform, or without KvFerryConnector"
            )
        return backend

    def bind(self, metadata: KvFerryMetadata) -> None:
        """Begin a step: its loads wait for the compute stream as it is now."""
        self._bind(metadata.plan, _HOST_STREAM)

    def pump(self) -> None:
        """Gather what earlier steps had to leave, if there is room now."""
        self._pump(_HOST_STREAM)

    def save(self) -> None:
        """Gather what this step has to store, in compute-stream order; waits for nothing."""
        self._save(_HOST_STREAM)

    def take_metadata(self) -> KvFerryWorkerMetadata | None:
        """Take what this rank has to say; None if nothing."""
        report = self._take_report()
        return KvFerryWorkerMetadata([report]) if report else None

    def close(self) -> None:
        """End: wait until no copy touches the KV cache, then let go of it; idempotent.

        Raises
        ------
        TimeoutError
            A copy does not end; the KV cache is kept alive then.

        """
        if self.engine is not None:
            self.engine.close()
        self._kv_caches = {}
