# SPDX-License-Identifier: Apache-2.0
"""Run real vLLM engines on this machine's GPU, one after the other, and compare them.

    python3 tests/gpu/engine/engines.py --out DIR
    python3 tests/gpu/engine/engines.py --out DIR --engines kvferry,kvferry:copy_path=staged,OffloadingConnector

Each engine is a process with a model of the shape of Llama 3.1 8B and random weights. It computes prompts that do not
all fit into the GPU's cache, and is asked them again: from the GPU's own cache, from the tier, and all at once.
vLLM is imported once, because that takes half a minute on a machine that has just started; the engines are forked.

``DIR`` gets, for each engine, its log, a JSON file, and for kvferry its recording (``kvferry dump --file``, gzip). The
exit status is 0 if every engine answered from the tier with the tokens and log probabilities of the GPU's own cache.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

BLOCK_TOKENS = 16
CPU_BLOCK_TOKENS = 32
STOCK = ("OffloadingConnector", "SimpleCPUOffloadConnector")
#: Prompts that are asked again at once, so that the GPU's own cache answers.
NUM_ASKED_TWICE = 3
ANSWER_TOKENS = 4
#: The crowd: every prompt returns twice, with new tokens behind it, and gets a longer answer.
CROWD_TURNS, CROWD_TOKENS, CROWD_ANSWER_TOKENS = 2, 64, 48
#: Matrices are drawn with this deviation: attention then looks at many tokens, and a wrong block changes the answer.
STD = 0.03
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
#: For a try on a CPU.
TINY = {**LLAMA_8B, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an existing directory for logs and results")
    parser.add_argument(
        "--engines", default=",".join(("none", "kvferry", *STOCK)),
        help="none, kvferry, kvferry:KEY=VALUE for a key of its configuration, or a connector of vLLM's (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--prompts", type=int, default=8, help="prompts (%(default)s)")
    parser.add_argument("--tokens", type=int, default=8005, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--fitting", type=int, default=6, help="prompts that fit into the GPU's cache (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="an engine is ended after this time (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    return parser.parse_args()


def write_model(directory: Path, shape: dict[str, int]) -> None:
    """Write the configuration of a Llama model, without weights."""
    directory.mkdir(exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "head_dim": 128,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        **shape,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))


def register_random_weights() -> None:
    """Make the load format "random_on_device", which draws all weights where they lie."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader("random_on_device")
    class RandomLoader(BaseModelLoader):  # type: ignore[misc]
        """The same weights for the same shape."""

        def download_model(self, model_config: Any) -> None:
            """There is nothing to download."""

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            """Draw all weights."""
            generator: torch.Generator | None = None
            for name, weights in model.state_dict().items():
                if not weights.is_floating_point():
                    continue
                generator = generator or torch.Generator(device=weights.device).manual_seed(0)
                is_scale = weights.dim() == 1 and "norm" in name
                weights.normal_(float(is_scale), STD, generator=generator)


def kv_transfer_config(name: str, tier_bytes: int) -> dict[str, Any] | None:
    """Return the configuration of an engine's connector."""
    connector, _, pairs = name.partition(":")
    if connector == "none":
        return None
    extra: dict[str, Any] = {"cpu_bytes_to_use": tier_bytes}
    extra.update(pair.split("=", 1) for pair in pairs.split(":") if pair)
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    if connector == "kvferry":
        config |= {"kv_connector": "KvFerryConnector", "kv_connector_module_path": "kvferry.vllm",
                   "kv_load_failure_policy": "recompute"}  # fmt: skip
    return config


class Engine:
    """One engine, and its answers."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        register_random_weights()
        shape = TINY if options.tiny else LLAMA_8B
        model = options.out / "model"
        write_model(model, shape)
        block_tokens = CPU_BLOCK_TOKENS if current_platform.is_cpu() else BLOCK_TOKENS
        longest = options.tokens + CROWD_TOKENS + CROWD_ANSWER_TOKENS
        num_blocks = options.fitting * -(-longest // block_tokens) + 1
        # Of K and V, in bfloat16.
        token_bytes = 2 * 2 * 128 * shape["num_key_value_heads"] * shape["num_hidden_layers"]
        tier_bytes = 7 * options.prompts * options.tokens * token_bytes // 4
        self.llm = LLM(
            model=str(model), load_format="random_on_device", skip_tokenizer_init=True, dtype="bfloat16",
            enforce_eager=True, seed=0, disable_log_stats=False, block_size=block_tokens,
            num_gpu_blocks_override=num_blocks, gpu_memory_utilization=0.6, max_model_len=longest + block_tokens,
            max_num_batched_tokens=max(longest, 2048), max_num_seqs=32,
            kv_transfer_config=kv_transfer_config(name, tier_bytes),
        )  # fmt: skip
        self.tokens = random.Random(1)
        self.vocabulary = shape["vocab_size"]

    def draw(self, count: int) -> list[int]:
        """Draw new tokens."""
        return [self.tokens.randrange(3, self.vocabulary) for _ in range(count)]

    def ask(self, prompts: list[list[int]], max_tokens: int, logprobs: int | None = None) -> list[Any]:
        """Generate greedily; the requests come all at once."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        return list(self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False))

    def answer(self, prompt: list[int]) -> dict[str, Any]:
        """Ask one prompt on an idle engine."""
        output = self.ask([prompt], ANSWER_TOKENS, logprobs=5)[0]
        chosen = output.outputs[0]
        return {
            "ttft_s": output.metrics.first_token_latency,
            "cached": output.num_cached_tokens or 0,
            "tokens": list(chosen.token_ids),
            "logprobs": [sorted((token, one.logprob) for token, one in step.items()) for step in chosen.logprobs],
        }

    def sources(self) -> dict[str, int]:
        """Count the prompt tokens since the start, by where they came from."""
        return {
            metric.labels["source"]: metric.value
            for metric in self.llm.get_metrics()
            if metric.name == "vllm:prompt_tokens_by_source"
        }

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        """Ask everything; return times in seconds, and whether the answers are the same."""
        prompts = [self.draw(options.tokens) for _ in range(options.prompts)]
        for _ in range(2):
            self.answer(self.draw(options.tokens // 4))
        self.answer(self.draw(options.tokens))
        self.llm.reset_prefix_cache()
        cold, again = [], []
        for index, prompt in enumerate(prompts):
            cold.append(self.answer(prompt))
            if index < NUM_ASKED_TWICE:
                again.append(self.answer(prompt))
        tier = [[self.answer(prompt) for prompt in prompts] for _ in range(2)]
        crowd = [prompt + self.draw(CROWD_TOKENS) for prompt in prompts for _ in range(CROWD_TURNS)]
        before, began = self.sources(), time.perf_counter()
        outputs = self.ask(crowd, CROWD_ANSWER_TOKENS)
        took = time.perf_counter() - began
        first_tokens = [output.metrics.first_token_latency for output in outputs]

        def times(answers: list[dict[str, Any]]) -> list[float]:
            return [answer["ttft_s"] for answer in answers]

        return {
            "cold_s": times(cold),
            "gpu_cache_s": times(again),
            "tier_s": times(tier[0]),
            "tier_again_s": times(tier[1]),
            "crowd_s": took,
            "crowd_ttft_s": first_tokens,
            "cached": [answer["cached"] for answer in tier[0]],
            "same": [
                all(one[key] == other[key] for key in ("cached", "tokens", "logprobs"))
                for one, other in zip(again, tier[0], strict=False)
            ],
            "sources_of_all": self.sources(),
            "sources_before_the_crowd": before,
        }


def keep_recording(stem: Path) -> None:
    """Keep what this process has recorded, compressed: most of it is empty."""
    file = stem.with_name(f"{stem.name}.recording")
    program = "import sys; from kvferry.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "dump", str(file), "--engine", str(os.getpid())]
    if subprocess.run(command, check=False).returncode == 0:
        with file.open("rb") as recording, gzip.open(f"{file}.gz", "wb", compresslevel=1) as compressed:
            shutil.copyfileobj(recording, compressed)
        file.unlink()


def stem_of(options: argparse.Namespace, name: str) -> Path:
    """Return the beginning of the names of an engine's files."""
    return Path(options.out / re.sub(r"[^A-Za-z0-9-]", "_", name))


def run_engine(options: argparse.Namespace, name: str) -> None:
    """Run one engine in this process, which ends."""
    stem = stem_of(options, name)
    log = os.open(f"{stem}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        began = time.monotonic()
        engine = Engine(options, name)
        ready = time.monotonic() - began
        result = {"ready_s": ready, **engine.measure(options)}
        Path(f"{stem}.json").write_text(json.dumps(result, indent=1))
        if name.startswith("kvferry"):
            keep_recording(stem)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        # Without the engine's own shutdown, which takes seconds.
        os._exit(status)


def wait_for(process: int, seconds: float) -> int:
    """Wait for a child, and kill it after this time; return its exit status."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(process, 9)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print one line for each engine, in milliseconds."""
    columns = ("cold_s", "gpu_cache_s", "tier_s", "tier_again_s", "crowd_s", "crowd_ttft_s")
    print(f"{'ms, medians':28s}" + "".join(f"{column.removesuffix('_s'):>12s}" for column in ("ready_s", *columns)))
    for name, result in results.items():
        values = [result[column] for column in ("ready_s", *columns)]
        medians = [statistics.median(value) if isinstance(value, list) else value for value in values]
        print(f"{name:28s}" + "".join(f"{1000 * value:12.0f}" for value in medians))


def main() -> int:
    """Run the engines; return the exit status."""
    options = parse()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core
    import vllm.v1.worker.gpu_worker  # noqa: F401

    results: dict[str, dict[str, Any]] = {}
    status = 0
    for name in options.engines.split(","):
        process = os.fork()
        if process == 0:
            run_engine(options, name)
        ended = wait_for(process, options.seconds)
        stem = stem_of(options, name)
        print(f"{name}: ended with {ended}, log {stem}.log", flush=True)
        if ended != 0:
            status = 1
            continue
        results[name] = json.loads(Path(f"{stem}.json").read_text())
        # Without a tier the prompts are computed again, in other chunks than those from the GPU's cache.
        if name != "none" and not all(results[name]["same"]):
            print(f"{name}: an answer from the tier is not that of the GPU's own cache: {results[name]['same']}")
            status = 1
    show(results)
    return status


if __name__ == "__main__":
    sys.exit(main())
