# SPDX-License-Identifier: Apache-2.0
"""The real vLLM scheduler and connector hooks around a toy model on CPU tensors.

`ToyEngine` is an engine in one process: vLLM's own `Scheduler` (or `AsyncScheduler`, with two batches in flight), its
own KV cache planning, configuration and tensors, its own order of worker hooks and its own aggregation of the ranks'
outputs; only the model is a toy. The toy writes, for every token of a prefix, cells that depend on the whole prefix,
and reads its next token out of the KV cache. So wrong, stale or missing KV gives wrong tokens; and with ``check_kv``
every cell that a step reads is compared with what it has to be.
"""

from toy_config import ToySpec, make_kv_cache_configs, make_vllm_config
from toy_engine import Finished, Hasher, PoolError, ToyEngine, expected_tokens, make_scheduler, prompt_of
from toy_runner import Way
from toy_states import WrongKvError
from toy_worker import ToyWorker

__all__ = [
    "Finished",
    "Hasher",
    "PoolError",
    "ToyEngine",
    "ToySpec",
    "ToyWorker",
    "Way",
    "WrongKvError",
    "expected_tokens",
    "make_kv_cache_configs",
    "make_scheduler",
    "make_vllm_config",
    "prompt_of",
]
