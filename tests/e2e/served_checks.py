# SPDX-License-Identifier: Apache-2.0
"""What the metrics of a served engine must say when it has nothing to do."""

from __future__ import annotations

from collections.abc import Callable

from .server_process import Metrics, ServerProcess

# How often a request is made so that the engine has a step in which it hears of its stores.
NUM_TRIES = 10


def is_idle(metrics: Metrics) -> bool:
    """Whether no request is left, and no load: an engine makes steps until its loads have ended, not so for stores."""
    names = ("num_requests_running", "num_requests_waiting", "kvferry_loads_in_flight", "kv_cache_usage_perc")
    return all(metrics[f"vllm:{name}"][""] == 0 for name in names)


def has_settled(metrics: Metrics) -> bool:
    return is_idle(metrics) and metrics["vllm:kvferry_stores_in_flight"][""] == 0


def settle(server: ServerProcess, ask_something: Callable[[], None]) -> Metrics:
    """Wait until its engine is idle and knows of no store: one that ends later is seen with the next request."""
    for _ in range(NUM_TRIES):
        metrics = server.await_metrics("the server is idle", is_idle)
        if has_settled(metrics):
            break
        ask_something()
    return metrics


def assert_metrics_of_idle_agree(metrics: Metrics) -> None:
    """Nothing is under way, every slot is free or holds a block, nothing failed."""
    assert has_settled(metrics), metrics
    blocks = metrics["vllm:kvferry_tier_blocks"]
    assert {state for state, count in blocks.items() if count} <= {"free", "evictable"}, blocks
    assert metrics["vllm:kvferry_tier_ready_blocks"] == metrics["vllm:kvferry_tier_size_blocks"]
    assert metrics["vllm:kvferry_tier_awaited_blocks"][""] == 0
    for name in ("staging", "in_flight", "queued"):
        assert metrics[f"vllm:kvferry_rank_{name}_bytes"]["0"] == 0
    for name in ("failed_stores_total", "failed_loads_total"):
        assert metrics[f"vllm:kvferry_{name}"][""] == 0, metrics
    assert metrics["vllm:kv_cache_usage_perc"][""] == 0
    assert metrics["vllm:request_success_total"]["error"] == 0
