# SPDX-License-Identifier: Apache-2.0
"""Run the demo's prompts on a real vLLM engine; `demo.py` starts this once for each engine.

    python demo_engine.py SPEC.json EVENT_FD

Events go to the file descriptor, as one JSON object per line. The output of vLLM goes to stdout and stderr.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# vLLM's names for where the tokens of a prompt came from.
COMPUTED, ENGINE_HIT, TIER_HIT = "local_compute", "local_cache_hit", "external_kv_transfer"


def tokens_by_source(llm: Any) -> dict[str, int]:
    """Count the prompt tokens since the engine started, by where they came from."""
    return {
        metric.labels["source"]: metric.value
        for metric in llm.get_metrics()
        if metric.name == "vllm:prompt_tokens_by_source"
    }


def run_request(llm: Any, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Run one prompt on an idle engine.

    Returns
    -------
    dict
        ``tokens``; ``prompt_tokens`` and how many of them were ``computed``, an ``engine_hit`` or a
        ``tier_hit``; ``ttft_s``; ``load_s``: from being queued to being scheduled, which for a request
        whose blocks come from the tier is the load with everything around it.
    """
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=max_tokens)
    before = tokens_by_source(llm)
    output = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
    after = tokens_by_source(llm)
    return {
        "tokens": list(output.outputs[0].token_ids),
        "prompt_tokens": len(prompt),
        "computed": after[COMPUTED] - before[COMPUTED],
        "engine_hit": after[ENGINE_HIT] - before[ENGINE_HIT],
        "tier_hit": after[TIER_HIT] - before[TIER_HIT],
        "ttft_s": output.metrics.first_token_latency,
        "load_s": output.metrics.scheduled_ts - output.metrics.queued_ts,
    }


def main(spec_file: Path, event_fd: int) -> None:
    """Start the engine and run every phase."""
    spec = json.loads(spec_file.read_text())
    with os.fdopen(event_fd, "w", buffering=1) as events:

        def emit(event: str, **fields: Any) -> None:
            print(json.dumps({"event": event, **fields}), file=events)

        from vllm import LLM

        llm = LLM(kv_transfer_config=spec["kv_transfer_config"], **spec["engine"])
        emit("ready")
        for phase, prompts in spec["phases"].items():
            for prompt in prompts:
                emit("request", phase=phase, **run_request(llm, prompt, spec["max_tokens"]))
        emit("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
