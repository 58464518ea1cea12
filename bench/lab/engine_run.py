# SPDX-License-Identifier: Apache-2.0
"""One engine of `engine.py` in a process of its own: runs a workload, and writes what it took.

python bench/lab/engine_run.py SPEC.json REPORT.json
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from workloads import BLOCK_TOKENS, MAX_TOKENS, WORKLOADS, Outcome, serve


def wait_until_idle() -> None:
    """Wait for what the engine does in the background once, when it starts: host memory becomes resident, for example.

    Some connectors do so before they serve, others meanwhile; what the workload costs is the same for all then.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        process_s = time.process_time()
        # Longer than the pauses in which kvferry lets a serving engine have the machine.
        time.sleep(4)
        # vLLM polls its own sockets for some percent of a core.
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
