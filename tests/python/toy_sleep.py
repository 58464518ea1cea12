# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake of the toy engine: vLLM's own code of the engine core, the executor and the worker, on toy memory.

What stands in is the memory: the KV cache is taken away and comes back elsewhere, with other bytes in it.
"""

import contextlib
import ctypes
import queue
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import ToyEngine
from stand_in import StandIn
from toy_worker import ToyWorker
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.executor.abstract import Executor
from vllm.v1.worker.gpu_worker import Worker

PAGE = 4096
TOTAL_BYTES = 1 << 40
PROT_NONE = 0
# Never given out again: who touches it ends the process.
_GONE: list[torch.UntypedStorage] = []


class ToyMemory:
    """The KV cache of a rank, as a `SleepModeBackend` of vLLM has it.

    Parameters
    ----------
    worker
        Of the rank.
    stand_in
        The driver that takes the KV cache for device memory, if there is one.

    """

    def __init__(self, worker: ToyWorker, stand_in: StandIn | None) -> None:
        self._worker = worker
        self._stand_in = stand_in
        self._is_mapped = True

    @property
    def num_bytes(self) -> int:
        """Of the KV cache, as long as it is there."""
        return sum(storage.nbytes() for storage in self._storages()) if self._is_mapped else 0

    def suspend(self, level: int = 1) -> None:
        assert level in (1, 2)
        self.discard(("kv_cache",))

    def discard(self, tags: tuple[str, ...]) -> None:
        assert tags == ("kv_cache",)
        if not self._is_mapped:
            return
        self._is_mapped = False
        for storage in self._storages():
            _protect(storage, PROT_NONE)
            if self._stand_in is not None:
                self._stand_in.disown(storage.data_ptr(), storage.nbytes())

    def resume(self, tags: list[str] | None = None) -> None:
        if self._is_mapped or (tags is not None and "kv_cache" not in tags):
            return
        self._is_mapped = True
        tensors = list(self._worker.kv_caches.values())
        for old in self._storages():
            new = torch.full((old.nbytes(),), 0xEE, dtype=torch.uint8).untyped_storage()
            for tensor in [each for each in tensors if each.untyped_storage().data_ptr() == old.data_ptr()]:
                tensor.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())
            _GONE.append(old)
        self._worker.model.take_kv_caches(self._worker.kv_caches)

    def _storages(self) -> list[torch.UntypedStorage]:
        storages = [tensor.untyped_storage() for tensor in self._worker.kv_caches.values()]
        return list({storage.data_ptr(): storage for storage in storages}.values())


def _protect(storage: torch.UntypedStorage, access: int) -> None:
    """Let a touch of its whole pages end the process."""
    first = -(-storage.data_ptr() // PAGE) * PAGE
    end = (storage.data_ptr() + storage.nbytes()) // PAGE * PAGE
    if first < end and ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(end - first), access):
        raise OSError("mprotect")


class ToySleeper:
    """vLLM's worker of a rank, as far as it sleeps."""

    sleep, wake_up, discard = Worker.sleep, Worker.wake_up, Worker.discard

    def __init__(self, worker: ToyWorker, stand_in: StandIn | None) -> None:
        self.worker = worker
        self.memory = self.sleep_mode_backend = ToyMemory(worker, stand_in)
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_nccl_comm_suspend=False))
        self.model_runner = SimpleNamespace(model=torch.nn.Linear(1, 1))
        self._sleep_saved_parameters: dict[str, torch.Tensor] = {}
        self._sleep_saved_buffers: dict[str, torch.Tensor] = {}
        self._sleep_saved_draft_buffers: dict[str, torch.Tensor] = {}

    def _save_sleep_parameters(self, model: torch.nn.Module) -> None:
        """Keep nothing: no parameter is asked for."""

    def get_draft_model(self) -> None:
        return None

    def synchronize_device(self) -> None:
        """Do nothing: the toy computes before it returns."""

    def reset_mm_cache(self) -> None:
        """Do nothing: there is none."""

    reset_encoder_cache = reset_mm_cache

    def get_kv_connector_handshake_metadata(self) -> None:
        return None


class ToyExecutor:
    """vLLM's executor, as far as it sleeps."""

    sleep, wake_up, discard = Executor.sleep, Executor.wake_up, Executor.discard
    reset_mm_cache, reset_encoder_cache = Executor.reset_mm_cache, Executor.reset_encoder_cache
    get_kv_connector_handshake_metadata = Executor.get_kv_connector_handshake_metadata
    is_sleeping = Executor.is_sleeping

    def __init__(self, sleepers: Sequence[ToySleeper]) -> None:
        self.sleepers = sleepers
        self.sleeping_tags: set[str] = set()

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        answers = []
        for sleeper in self.sleepers:
            kv_transfer_state._KV_CONNECTOR_AGENT = sleeper.worker.connector
            try:
                answers.append(getattr(sleeper, method)(*args, **(kwargs or {})))
            finally:
                kv_transfer_state._KV_CONNECTOR_AGENT = None
        return answers


class ToyCore(EngineCoreProc):
    """vLLM's engine core around the toy's scheduler and ranks.

    Parameters
    ----------
    engine
        The toy.
    stand_in
        The driver that takes the KV cache for device memory, if there is one.

    """

    def __init__(self, engine: ToyEngine, stand_in: StandIn | None = None) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self.model_executor: Any = ToyExecutor([ToySleeper(worker, stand_in) for worker in engine.workers])
        self.batch_queue: Any = None
        self.engines_running = False
        self.reject_new_requests = False
        self.mm_receiver_cache = None
        self.output_queue: Any = queue.Queue()
        self.process_input_queue_block = False
        self._idle_state_callbacks: list[Any] = []
        self._stand_in = stand_in

    def has_work(self) -> bool:
        return self.engine.scheduler.has_requests() or self.engine.has_outputs_in_flight

    @property
    def device_bytes(self) -> int:
        """Device memory in use: the KV cache, and what kvferry has on a stand-in."""
        kv_caches = sum(sleeper.memory.num_bytes for sleeper in self.model_executor.sleepers)
        return kv_caches + (self._stand_in.allocated_bytes if self._stand_in is not None else 0)

    def put_to_sleep(self, level: int = 1, mode: Any = "abort") -> None:
        """Do as `sleep`, and step as long as vLLM waits for its requests."""
        with self.as_device():
            future = self.sleep(level, mode)
            if future is not None:
                self.engine.run_until(lambda: not self.has_work())
                self.engine.drain_outputs()
                self._notify_idle_state_callbacks()
                future.result(timeout=60)
        self.engine._note_finished()

    def wake(self, tags: list[str] | None = None) -> bool:
        """Do as `wake_up`."""
        with self.as_device():
            return self.wake_up(tags)

    @contextlib.contextmanager
    def as_device(self) -> Iterator[None]:
        """Let vLLM's worker find the toy's memory where it asks for the accelerator's."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.accelerator, "synchronize", lambda: None)
            info = lambda: (TOTAL_BYTES - self.device_bytes, TOTAL_BYTES)  # noqa: E731
            patch.setattr(torch.accelerator, "get_memory_info", info)
            yield
