# SPDX-License-Identifier: Apache-2.0
"""Workload D of `engine.py`: `vllm serve` over HTTP, with vLLM's own benchmark client."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workloads import BLOCK_TOKENS

ROOT = Path(__file__).resolve().parents[2]
VLLM = str(Path(sys.executable).with_name("vllm"))
sys.path.insert(0, str(ROOT / "tests"))

from e2e.ports import free_ports  # noqa: E402
from e2e.server_process import ServerProcess  # noqa: E402

PREFIX_TOKENS, SUFFIX_TOKENS, ANSWER_TOKENS = 1024, 32, 16
NUM_PREFIXES, NUM_PROMPTS, NUM_CLIENTS = 12, 48, 2
# Blocks of the different prompts of both passes; a pool of a quarter of that is four times too small.
ALL_BLOCKS = (NUM_PREFIXES * PREFIX_TOKENS + NUM_PROMPTS * (SUFFIX_TOKENS + ANSWER_TOKENS)) // BLOCK_TOKENS
SMALL_POOL_BLOCKS = ALL_BLOCKS // 4
LARGE_POOL_BLOCKS = 4 * ALL_BLOCKS


def serve_twice(
    model: Path, kv_transfer_config: dict[str, Any] | None, is_large: bool, environment: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Run vllm bench serve twice: a thousand tokens of one of twelve prefixes and a suffix. Return the second pass."""
    [port] = free_ports(1)
    command = [
        VLLM, "serve", str(model), "--served-model-name", "bench", "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--block-size", str(BLOCK_TOKENS),
        "--num-gpu-blocks-override", str((LARGE_POOL_BLOCKS if is_large else SMALL_POOL_BLOCKS) + 1),
        "--enable-prefix-caching", "--max-num-seqs", "6", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if kv_transfer_config is not None:
        command += ["--kv-transfer-config", json.dumps(kv_transfer_config)]
    environment = environment | {"TMPDIR": str(folder)}
    server = ServerProcess(f"http://127.0.0.1:{port}", folder / "server.log", command, environment)
    try:
        server.await_answer()
        for name in ("first", "second"):
            _ask(server.url, model, folder / f"{name}.json")
        found = json.loads((folder / "second.json").read_text())
        metrics = server.metrics()
        return {
            "wall_s": found["duration"],
            "first_token_s": found["ttfts"],
            "tokens": found["generated_texts"],
            "prompt_tokens_by_source": metrics["vllm:prompt_tokens_by_source_total"],
            "num_preemptions": metrics["vllm:num_preemptions_total"][""],
        }
    finally:
        server.kill()


def _ask(url: str, model: Path, report: Path) -> None:
    """Run one pass of vLLM's client."""
    command = [
        VLLM, "bench", "serve", "--backend", "openai", "--base-url", url,
        "--model", "bench", "--tokenizer", str(model), "--dataset-name", "prefix_repetition", "--seed", "1",
        "--prefix-repetition-prefix-len", str(PREFIX_TOKENS), "--prefix-repetition-suffix-len", str(SUFFIX_TOKENS),
        "--prefix-repetition-num-prefixes", str(NUM_PREFIXES), "--prefix-repetition-output-len", str(ANSWER_TOKENS),
        "--num-prompts", str(NUM_PROMPTS), "--max-concurrency", str(NUM_CLIENTS), "--ignore-eos",
        "--temperature", "0", "--save-result", "--save-detailed", "--result-dir", str(report.parent),
        "--result-filename", report.name,
    ]  # fmt: skip
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    if ended.returncode != 0:
        sys.exit(f"vllm bench serve failed with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}")
