# SPDX-License-Identifier: Apache-2.0
"""What a test may change in the vLLM of its engine's processes, before the engine is made."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
from typing import Any

# "1": the engine's processes are forked from one that has imported vLLM.
FORK_VARIABLE = "KVFERRY_E2E_FORK"


def fork_processes() -> None:
    """Let vLLM fork its workers, as it does on a GPU; ``platforms/cpu.py`` asks for processes that import it anew."""
    get_context: Any = multiprocessing.get_context

    def forking(method: str | None = None) -> Any:
        return get_context("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking


def read_logging_level() -> None:
    """Log what VLLM_LOGGING_LEVEL says now: vLLM has read it in the process that this one was forked from."""
    logger = logging.getLogger("vllm")
    level = os.environ.get("VLLM_LOGGING_LEVEL", "INFO")
    logger.setLevel(level)
    for handler in logger.handlers:
        handler.setLevel(level)


def look_for_kernels_past_llvmlite() -> None:
    """Let vLLM's search of all modules for Triton kernels pass an object of llvmlite, which LMCache imports.

    The object has any attribute that it is asked for, a ``__dict__`` that is none among them, and stops vLLM 0.32.
    """
    from vllm.triton_utils import dispatcher

    def vars_of(value: Any) -> dict[str, Any]:
        found = vars(value)
        return found if hasattr(found, "get") else {}

    dispatcher.vars = vars_of


def inspect_models_here() -> None:
    """Let vLLM ask a model's class what it can do without a process that imports all of vLLM for that."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()


def keep_async_scheduling_on() -> None:
    """Undo what ``platforms/cpu.py`` forces: two batches in flight, block frees deferred, as on a GPU."""
    import torch
    from vllm.platforms.cpu import CpuPlatform

    force_off = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        force_off(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    class Nothing:
        """Stands for a CUDA event where the runner copies a CPU tensor to the CPU."""

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def record(self, *args: Any) -> None: ...

        def synchronize(self) -> None: ...

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    torch.cuda.Event = Nothing
    torch.cuda.current_stream = lambda *args: Nothing()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()


def support_layouts(names: list[str]) -> None:
    """Let the CPU attention back end say that it supports these layouts: it reads any whose pages are head-major."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layouts = tuple(KVCacheLayout[name] for name in names)
    CPUAttentionBackend.supported_kv_cache_layouts = classmethod(lambda cls: layouts)


def run_every_stage_once() -> None:
    """Do at start-up what the CPU worker leaves out in eager mode: stages behind the first make their inputs then."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    determine_available_memory = CPUWorker.determine_available_memory

    def with_a_run(worker: Any) -> int:
        worker.model_runner.profile_run()
        return int(determine_available_memory(worker))

    CPUWorker.determine_available_memory = with_a_run


def give_ranks_failures_of_their_own() -> None:
    """Let every rank draw from another seed, so that copies fail on one and succeed on the other."""
    from kvferry import _core

    make = _core.WorkerEngine

    def make_worker_engine(*, rank: int, host_link: dict[str, Any] | None, **arguments: Any) -> Any:
        if host_link is not None:
            host_link = {**host_link, "seed": host_link.get("seed", 0) + rank}
        return make(rank=rank, host_link=host_link, **arguments)

    _core.WorkerEngine = make_worker_engine  # type: ignore[assignment,misc]
