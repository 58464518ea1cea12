# SPDX-License-Identifier: Apache-2.0
"""Offline inference with kvferry: several questions about several documents, which are more than the GPU can keep.

    python examples/offline.py [--model NAME] [--tier-size 64GiB] [--documents FILE ...]

Each round asks one question about every document. By the next round the engine has lost the documents' KV cache and
would compute it again. With kvferry it comes back from host memory. Without ``--model`` this runs a tiny model on a
CPU, whose answers are noise.
"""

from __future__ import annotations

import argparse
import os
import random
import string
import time
from pathlib import Path
from typing import Any

from tiny_model import ensure_tiny_model

QUESTIONS = ("\n\nSummarise this.", "\n\nWho is named in it?", "\n\nWhat is to be done next?")
# vLLM's names for where the tokens of a prompt came from.
SOURCES = {"local_compute": "computed", "local_cache_hit": "still on the GPU", "external_kv_transfer": "from the tier"}
# The tiny model gets a pool that holds two documents, so that the tier has something to do.
TINY_ENGINE = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "block_size": 32, "num_gpu_blocks_override": 100,
}  # fmt: skip


def make_documents(count: int, num_characters: int) -> list[str]:
    """Return made-up texts that have nothing in common."""
    rng = random.Random(0)
    return ["".join(rng.choices(string.ascii_lowercase + " ", k=num_characters)) for _ in range(count)]


def make_llm(model: str | None, tier_size: str) -> Any:
    """Return an engine with its tier; kvferry itself needs only the argument ``kv_transfer_config``."""
    if model is None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    from vllm import LLM

    return LLM(
        model=model or str(ensure_tiny_model()),
        enable_prefix_caching=True,
        disable_log_stats=False,  # for tokens_by_source()
        kv_transfer_config={
            "kv_connector": "KvFerryConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"cpu_bytes_to_use": tier_size},
        },
        **(TINY_ENGINE if model is None else {}),
    )


def tokens_by_source(llm: Any) -> dict[str, int]:
    """Count the prompt tokens since the engine started, by where they came from."""
    return {
        metric.labels["source"]: metric.value
        for metric in llm.get_metrics()
        if metric.name == "vllm:prompt_tokens_by_source"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model that vLLM can serve [a tiny one with random weights]")
    parser.add_argument("--tier-size", default="256MiB", help="host memory for KV cache [%(default)s]")
    parser.add_argument("--documents", type=Path, nargs="+", help="text files [made-up ones]")
    parser.add_argument("--max-tokens", type=int, default=16, help="tokens of an answer [%(default)s]")
    options = parser.parse_args()
    documents = [path.read_text() for path in options.documents or ()] or make_documents(6, 1400)

    llm = make_llm(options.model, options.tier_size)
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    for number, question in enumerate(QUESTIONS, 1):
        before = tokens_by_source(llm)
        began = time.perf_counter()
        # The document comes first, because prompts can share only their beginning.
        outputs = llm.generate([document + question for document in documents], sampling, use_tqdm=False)
        took = time.perf_counter() - began
        after = tokens_by_source(llm)
        told = ", ".join(f"{after[source] - before[source]:,} {words}" for source, words in SOURCES.items())
        print(f"round {number}: {took:.2f} s; prompt tokens: {told}", flush=True)
        if options.model is not None:
            for output in outputs:
                print(f"  {output.outputs[0].text.strip()!r}")


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
