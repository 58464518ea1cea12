# SPDX-License-Identifier: Apache-2.0
"""A digest of everything on which the bytes of a block depend. Engines with different digests share no blocks.

The scheduler side knows the configuration and the weights' files (`name_space_of`). Only a rank can see the layout of a
block's bytes, and what computes them (`probe_of_rank`). The core joins both when every rank has registered. Before
that, nothing is stored or found in a shared tier.
"""

import dataclasses
import enum
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
import vllm
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

from kvferry.errors import ConfigError
from kvferry.vllm.fingerprint_fields import BY_CLASS, COUNTED_VARIABLES, FREE_VARIABLES
from kvferry.vllm.layout import Fragment, order_of_group
from kvferry.vllm.weights_mark import WeightsMark, mark_of_weights

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

# Raise this when the content of a fingerprint changes, or the way in which blocks are packed into slots.
_FINGERPRINT_VERSION = 2

_FREE_VARIABLE = re.compile("|".join(f"(?:{pattern})" for pattern in FREE_VARIABLES))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Attributes of an attention layer: the scales by which its keys and values are divided before they are stored.
_SCALES = ("_k_scale_float", "_v_scale_float", "_k_scale", "_v_scale", "kv_cache_dtype", "kv_cache_torch_dtype")


class NameSpace(NamedTuple):
    """The name space of an engine's blocks.

    Attributes
    ----------
    number
        Equal for engines that can share blocks.
    why_alone
        Why no other engine has this number, for a message; empty if others can have it.
    weights
        If the weights have versions: a number for those of the start. `number` does not cover the weights then.
    why_weights_alone
        Why no other engine has this `weights`; empty if others can have it.

    """

    number: int
    why_alone: str = ""
    weights: int | None = None
    why_weights_alone: str = ""

    @property
    def warnings(self) -> list[str]:
        """Texts that say what is not shared, and why."""
        if self.why_alone:
            return [f"no block with other engines: {self.why_alone}"]
        if self.why_weights_alone:
            return [f"no block with other engines until vLLM is told a weight version: {self.why_weights_alone}"]
        return []


def name_space_of(
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    slot_bytes: Sequence[Sequence[int]],
    weights_run: str | None = None,
) -> NameSpace:
    """Digest everything on which a block's bytes and its hash depend, as far as the scheduler side knows it.

    Parameters
    ----------
    vllm_config, kv_cache_config
        The engine's configuration.
    slot_bytes
        Packed bytes of a block, by slab class and rank.
    weights_run
        Name of the training run, if the weights have versions.

    """
    marks = _marks_of_models(vllm_config)
    contents: object = [mark.facts for mark in marks]
    why_weights_alone = next((mark.why_unknown for mark in marks if mark.why_unknown), "")
    why_weights_alone = why_weights_alone or _why_replaced(vllm_config)
    why_alone = _why_alone(vllm_config)
    weights = None
    if weights_run is None:
        why_alone, why_weights_alone = why_weights_alone or why_alone, ""
    else:
        weights = _digest([contents, start_of(vllm_config) if why_weights_alone else None]) or 1
        contents = ["versions of", weights_run]
    facts = {
        "config": canonical(vllm_config),
        "weights": contents,
        "hash seed": hash_seed(vllm_config),
        "python": platform.python_version(),  # Some hashes are of pickles.
        "groups": [_group_facts(group) for group in kv_cache_config.kv_cache_groups],
        "layout": _layout_name(vllm_config, kv_cache_config),
        "slot_bytes": [list(sizes) for sizes in slot_bytes],
        "alone": start_of(vllm_config) if why_alone else None,
        **_facts_of_process(),
    }
    return NameSpace(_digest(facts), why_alone, weights, why_weights_alone)


def probe_of_rank(
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    kv_caches: Mapping[str, Any],
    packed: Sequence[Sequence[Fragment]],
) -> int:
    """Digest what only a rank sees: the layout of a block's bytes in a slot, what writes them, and their scales.

    Parameters
    ----------
    vllm_config, kv_cache_config
        The engine's configuration, as this worker has it.
    kv_caches
        Layer name to tensor.
    packed
        Fragments of a block by KV cache group, in the order of the slot.

    Returns
    -------
    int
        The digest; not 0.

    """
    num_blocks = kv_cache_config.num_blocks
    names = [list(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    layers = vllm_config.compilation_config.static_forward_context
    facts = {
        "groups": [
            order_of_group(of_group, kv_caches, num_blocks, fragments)
            for of_group, fragments in zip(names, packed, strict=True)
        ],
        "back ends": [[[name, *_writer_of(layers.get(name))] for name in of_group] for of_group in names],
        "specs": [_group_facts(group) for group in kv_cache_config.kv_cache_groups],
        "layout": _layout_name(vllm_config, kv_cache_config),
        # Together with NIXL vLLM chooses it itself; before 0.33 only in the workers.
        "interleaving": vllm_config.parallel_config.cp_kv_cache_interleave_size,
        **_facts_of_process(),
    }
    return _digest(facts) or 1


def hash_seed(vllm_config: "VllmConfig") -> str:
    """Return the seed of vLLM's block hashes.

    Raises
    ------
    ConfigError
        The seed is different in each process.

    """
    seed = os.environ.get("PYTHONHASHSEED")
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    fixed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    if seed is None and fixed is not None and algorithm.startswith("sha256"):
        seed = fixed
    if seed is None or seed == "random":
        raise ConfigError(
            f"shared_path is set and PYTHONHASHSEED is {seed or 'not set'}; with prefix_caching_hash_algo "
            f"{algorithm!r} the same block then has a different hash in each process: set PYTHONHASHSEED to "
            "the same number for all engines that share the tier, such as 0"
        )
    return seed


def canonical(value: object) -> object:
    """Convert a value to JSON's types, so that equal values give the same text in every process.

    Fields of vLLM's configuration classes that change no block are left out (`fingerprint_fields`).
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((canonical(item) for item in value), key=_text)
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.detach().cpu().tolist()]
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value):
        fields = BY_CLASS.get(type(value).__name__)
        free = fields.free if fields is not None else {}
        names = [field.name for field in dataclasses.fields(value) if field.name not in free]
        return {name: canonical(getattr(value, name, None)) for name in names}
    if callable(to_dict := getattr(value, "to_dict", None)):  # transformers' configurations
        return canonical(to_dict())
    return [type(value).__qualname__, _ADDRESS.sub("", repr(value))]


def environment() -> dict[str, str]:
    """Return the variables that can change what is computed.

    Of the variables whose names begin with ``VLLM_``, only vLLM's known settings count: its processes also use others
    to pass values to each other, with new names at every start.
    """
    settings = envs.environment_variables
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in COUNTED_VARIABLES
        or (name.startswith("VLLM_") and name in settings and not _FREE_VARIABLE.fullmatch(name))
    }


def start_of(vllm_config: "VllmConfig") -> str:
    """Name a start of an engine: different at every start, the same in all of its processes."""
    transfer = vllm_config.kv_transfer_config
    return f"{transfer.engine_id if transfer is not None else ''}/{vllm_config.instance_id}"


def _facts_of_process() -> dict[str, object]:
    return {
        "version": _FINGERPRINT_VERSION,
        "vllm": vllm.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "environment": environment(),
        "device": [
            str(current_platform.device_type),
            str(current_platform.get_device_capability()),
            bool(current_platform.is_fp8_fnuz()),
        ],
    }


def _marks_of_models(vllm_config: "VllmConfig") -> list[WeightsMark]:
    marks = [mark_of_weights(vllm_config.model_config, vllm_config.load_config)]
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    if speculative is not None and draft is not None and speculative.method not in ("ngram", "suffix"):
        marks.append(mark_of_weights(draft, speculative.draft_load_config or vllm_config.load_config))
    return marks


def _why_replaced(vllm_config: "VllmConfig") -> str:
    """Why the weights can differ from those in the files; empty if they cannot."""
    if getattr(vllm_config, "weight_transfer_config", None) is not None:
        return "weight_transfer_config is set: its weights are replaced while it serves"
    return ""


def _why_alone(vllm_config: "VllmConfig") -> str:
    """Why two engines of one configuration can have different bytes under one hash; empty if they cannot."""
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        return "calculate_kv_scales is set: its scales are those of the first prompt that it computed"
    if code := _code_of_others(vllm_config.model_config):
        return f"the model's code is from another repository, {code}, whose commit is not known"
    return ""


def _code_of_others(model: "ModelConfig") -> str:
    """Return a class of the model that is in another repository (``repository--module.class``)."""
    names = getattr(model.hf_config, "auto_map", None)
    if not model.trust_remote_code or not isinstance(names, Mapping):
        return ""
    return next((str(name) for name in names.values() if "--" in str(name)), "")


def _group_facts(group: "KVCacheGroupSpec") -> list[object]:
    return [type(group.kv_cache_spec).__name__, repr(group.kv_cache_spec), list(group.layer_names)]


def _layout_name(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> str:
    name = getattr(kv_cache_config, "kv_cache_layout", None) or vllm_config.cache_config.kv_cache_layout
    return str(getattr(name, "name", name))


def _writer_of(layer: Any) -> list[object]:
    """Describe what writes a layer's part of a block, and with which scales."""
    if layer is None:
        return []
    find = getattr(layer, "get_attn_backend", None)
    backend = find() if callable(find) else getattr(layer, "attn_backend", None)
    writers = [type(layer), backend, type(getattr(layer, "impl", None))]
    return [*(canonical(each) for each in writers), *(canonical(getattr(layer, name, None)) for name in _SCALES)]


def _text(facts: object) -> str:
    return json.dumps(facts, sort_keys=True, allow_nan=True)


def _digest(facts: object) -> int:
    digest = hashlib.sha256(_text(facts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little")
