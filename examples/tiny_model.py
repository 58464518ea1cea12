# SPDX-License-Identifier: Apache-2.0
"""Write a small Llama model with random weights, so that the real engine runs without a download.

The weights are real random numbers, not vLLM's ``load_format="dummy"``: with dummy weights every block of
the KV cache looks alike, so tokens stay the same even when blocks are swapped, zeroed or stale.

    python examples/tiny_model.py .cache/tiny-llama
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

DEFAULT_DIR = Path(__file__).resolve().parent.parent / ".cache" / "tiny-llama"
_STAMP = "tiny_model.json"
_BEGIN, _END = "<|begin|>", "<|end|>"


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """Shape of the model. The defaults make prefill clearly slower than copying the same blocks back."""

    seed: int = 0
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 8192
    matrix_std: float = 0.15
    # The kinds of layers, repeated over the model: "f" attends to the whole prefix, "w" to `sliding_window` tokens.
    layer_pattern: str = "f"
    sliding_window: int = 0
    version: int = 1

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def vocab_size(self) -> int:
        """The 256 bytes and two special tokens."""
        return 258

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, in float32."""
        return self.num_hidden_layers * 2 * self.num_key_value_heads * self.head_dim * 4


def ensure_tiny_model(directory: Path | str = DEFAULT_DIR, model: TinyModel | None = None) -> Path:
    """Write the model unless `directory` already holds exactly this one.

    Parameters
    ----------
    directory
        Where ``config.json``, ``model.safetensors`` and the tokenizer go. It is replaced as a whole.
    model
        Shape and seed. The same value gives the same bytes on every x86 processor with AVX2. On other processors
        PyTorch draws the weights with other code: some differ in their last bit, and log probabilities by up to 2e-2.

    Returns
    -------
    Path
        `directory`, absolute.

    Raises
    ------
    FileExistsError
        If `directory` exists and was not written by this function.
    """
    model = model or TinyModel()
    directory = Path(directory).resolve()
    stamp = json.dumps(dataclasses.asdict(model), indent=2)
    if directory.exists():
        existing = directory / _STAMP
        if existing.is_file():
            if existing.read_text() == stamp:
                return directory
        elif any(directory.iterdir()):
            raise FileExistsError(
                f"{directory} holds something else than the tiny model: name an empty or new directory"
            )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        scratch.chmod(0o755)
        _write_config(scratch, model)
        _write_tokenizer(scratch, model)
        _write_weights(scratch, model)
        (scratch / _STAMP).write_text(stamp)
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(scratch, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _write_config(directory: Path, model: TinyModel) -> None:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "dtype": "float32",
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "mlp_bias": False,
        "num_attention_heads": model.num_attention_heads,
        "num_hidden_layers": model.num_hidden_layers,
        "num_key_value_heads": model.num_key_value_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }
    if "w" in model.layer_pattern:
        kinds = {"f": "full_attention", "w": "sliding_attention"}
        pattern = itertools.islice(itertools.cycle(model.layer_pattern), model.num_hidden_layers)
        config["layer_types"] = [kinds[kind] for kind in pattern]
        config["sliding_window"] = model.sliding_window
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def _write_tokenizer(directory: Path, model: TinyModel) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # A byte-level BPE without merges: every byte is a token, every text can be encoded.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_BEGIN, _END])
    assert tokenizer.get_vocab_size() == model.vocab_size
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BEGIN,
        "eos_token": _END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.max_position_embeddings,
        "chat_template": "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _write_weights(directory: Path, model: TinyModel) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator(device="cpu").manual_seed(model.seed)
    kv_size = model.num_key_value_heads * model.head_dim
    q_size = model.num_attention_heads * model.head_dim
    tensors: dict[str, torch.Tensor] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        values = torch.normal(0.0, model.matrix_std, (rows, columns), generator=generator)
        tensors[f"{name}.weight"] = values.to(torch.bfloat16)  # half the size of the file

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = torch.ones(model.hidden_size, dtype=torch.bfloat16)

    matrix("model.embed_tokens", model.vocab_size, model.hidden_size)
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        norm(f"{prefix}.input_layernorm")
        matrix(f"{prefix}.self_attn.q_proj", q_size, model.hidden_size)
        matrix(f"{prefix}.self_attn.k_proj", kv_size, model.hidden_size)
        matrix(f"{prefix}.self_attn.v_proj", kv_size, model.hidden_size)
        matrix(f"{prefix}.self_attn.o_proj", model.hidden_size, q_size)
        norm(f"{prefix}.post_attention_layernorm")
        matrix(f"{prefix}.mlp.gate_proj", model.intermediate_size, model.hidden_size)
        matrix(f"{prefix}.mlp.up_proj", model.intermediate_size, model.hidden_size)
        matrix(f"{prefix}.mlp.down_proj", model.hidden_size, model.intermediate_size)
    norm("model.norm")
    matrix("lm_head", model.vocab_size, model.hidden_size)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Write the model that the command line names, and print where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=DEFAULT_DIR)
    parser.add_argument("--seed", type=int, default=TinyModel.seed)
    parser.add_argument("--layers", type=int, default=TinyModel.num_hidden_layers)
    parser.add_argument("--layer-pattern", default=TinyModel.layer_pattern, help='"f": full attention, "w": a window')
    parser.add_argument("--sliding-window", type=int, default=TinyModel.sliding_window, help="tokens")
    arguments = parser.parse_args()
    model = TinyModel(
        seed=arguments.seed,
        num_hidden_layers=arguments.layers,
        layer_pattern=arguments.layer_pattern,
        sliding_window=arguments.sliding_window,
    )
    print(ensure_tiny_model(arguments.directory, model))


if __name__ == "__main__":
    main()
