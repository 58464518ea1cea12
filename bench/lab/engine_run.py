# SPDX-License-Identifier: Apache-2.0
"""Runs one engine of `engine.py` in a separate process: runs a workload, and writes the times.

python bench/lab/engine_run.py SPEC.json REPORT.json
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from workloads import BLOCK_TOKENS, MAX_TOKENS, WORKLOADS, Outcome, serve


def wait_until_idle() -> None:
    """Wait for the engine's background work at its start, for example until host memory is resident.

    Some connectors do this work before they serve, others meanwhile. After the wait a workload costs the same for all.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        process_s = time.process_time()
        # Longer than the pauses in which kvferry leaves the machine to a serving engine.
        time.sleep(4)
        # vLLM polls its own sockets, which takes some percent of a core.
        if time.process_time() - process_s < 0.2:
            return
    raise TimeoutError("the engine's background work has not ended for a minute")


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the workload of `spec` on a fresh, warm engine."""
    from vllm import LLM

    llm = LLM(
        model=spec["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
        seed=0,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=spec["num_blocks"] + 1,  # and vLLM's null block
        max_model_len=MAX_TOKENS,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=6,
        kv_transfer_config=spec["kv_transfer_config"],
    )
    serve(llm, [[7] * (2 * BLOCK_TOKENS)] * 2, 4, 1, Outcome())
    assert llm.reset_prefix_cache()
    wait_until_idle()
    thread_s, process_s, wall_s = time.thread_time(), time.process_time(), time.perf_counter()
    outcome = WORKLOADS[spec["workload"]](llm)
    took = {
        "engine_thread_s": time.thread_time() - thread_s,
        "all_threads_s": time.process_time() - process_s,
        "wall_s": time.perf_counter() - wall_s,
    }
    sources = {}
    preemptions = 0
    for metric in llm.get_metrics():
        if metric.name == "vllm:prompt_tokens_by_source":
            sources[metric.labels["source"]] = metric.value
        elif metric.name == "vllm:num_preemptions":
            preemptions += metric.value
    return {
        **took,
        "first_token_s": outcome.first_token_s,
        "tokens": outcome.tokens,
        "prompt_tokens_by_source": sources,
        "num_preemptions": preemptions,
    }


if __name__ == "__main__":
    report = run(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(report))
