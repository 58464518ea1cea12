# SPDX-License-Identifier: Apache-2.0
"""The KV caches of model families, as they are and so small that a toy model computes them.

``shared/tools/model_specs`` beside the repository makes the specifications of their layers with vLLM's own code.
"""

import importlib.util
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ToyEngine, Way
from kvferry.vllm import preflight, topology
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

FAMILIES = Path(__file__).resolve().parents[3] / "shared/tools/model_specs/families.py"
NEEDS_FAMILIES = pytest.mark.skipif(not FAMILIES.exists(), reason=f"{FAMILIES.name} is not beside the repository")

# Tokens of a block, where nothing keeps it from being scaled; blocks of a window; bytes of a cell.
_BLOCK, _MOST_WINDOW_BLOCKS, _CELL = 16, 16, 4


def load(path: Path) -> Any:
    """Load a module that makes families; it changes vLLM a little for the whole process."""
    spec = importlib.util.spec_from_file_location("families", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def families() -> Any:
    """Load the module, and take back what it changes for the whole process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_utils, "get_kv_connector_cache_layout", backend_utils.get_kv_connector_cache_layout)
        module = load(FAMILIES)
    logging.disable(logging.NOTSET)
    module.FAMILIES |= {make.__name__: partial(make, module) for make in _MORE}
    return module


# Of kinds, and of kinds side by side, that no family there has: as it makes them, with that module.


def deepseek_v41_replay(module: Any) -> Any:
    """The windows are not in the cache; the engine computes the last one of a hit again."""
    return module.deepseek_v41(bounded_replay=True)


def deepseek_v41_wide_rings(module: Any) -> Any:
    """Circular buffers of more tokens than a block, at multiples of which the engine's hits end."""
    config, specs, layouts = module.deepseek_v41()
    rings = {name: spec for name, spec in specs.items() if not spec.prefix_cacheable}
    wide = {name: replace(ring, block_size=64, head_size=ring.head_size // 8) for name, ring in rings.items()}
    return config, specs | wide, layouts


def llama4(module: Any) -> Any:
    """Three of four layers see the tokens since the last multiple of 8,192."""
    chunk = ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=128, dtype=torch.bfloat16, attention_chunk_size=8192
    )
    config = module.config()
    full = module.attention(config, 1, 128)
    return config, module.layers(48, lambda i: full if i % 4 == 3 else chunk), module.ALL_LAYOUTS


def kimi_linear(module: Any) -> Any:
    """Recurrent state beside latent attention."""
    config = module.config(block_size=1920, use_mla=True)
    latent = module.mla(config)
    state = MambaSpec(
        block_size=1920,
        shapes=((12288, 3), (32, 128, 128)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=latent.page_size_bytes,
        mamba_cache_mode="align",
    )
    return config, module.layers(27, lambda i: latent if i % 4 == 3 else state), module.ALL_LAYOUTS


def gpt_oss_mtp(module: Any) -> Any:
    """A drafter with the layers of the model, beside windows."""
    config = module.config(drafts=2)
    _, layers, layouts = module.gpt_oss()
    return config, layers | {"mtp.0": module.attention(config, 8, 64)}, layouts


def mimo_v2_modules(module: Any) -> Any:
    """A drafter of three modules, for which vLLM keeps more of all windows than a token sees."""
    config = module.config(drafts=3)
    config.num_prefill_lookahead_tokens = 3
    config.speculative_config.use_multi_module_mtp = lambda: True  # vLLM 0.30
    _, layers, layouts = module.mimo_v2_flash()
    modules = {f"mtp.{i}": module.attention(config, 8, 192, 128, window=128) for i in range(3)}
    return config, layers | modules, layouts


def scales_inside(module: Any) -> Any:
    """Keys and values of eight bits, with their scales beside them."""
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=8,
        head_size=128,
        dtype=torch.int8,
        kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
        state_content_bytes=2 * (128 + 4),
    )
    return module.config(), module.layers(32, lambda i: spec), module.ALL_LAYOUTS


_MORE = (deepseek_v41_replay, deepseek_v41_wide_rings, llama4, kimi_linear, gpt_oss_mtp, mimo_v2_modules, scales_inside)


def family_names() -> list[str]:
    """All of them."""
    return list(families().FAMILIES) if FAMILIES.exists() else []


@contextmanager
def made_by_families(name: str) -> Iterator[None]:
    """Make something of a family as its module does, or skip one that this vLLM does not know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_utils, "get_kv_connector_cache_layout", lambda vllm_config: None)
        try:
            yield
        except (ImportError, AttributeError) as error:
            pytest.skip(f"this vLLM does not know {name}: {error}")


def plan(name: str) -> tuple[KVCacheConfig, KVCacheConfig]:
    """The worker's and the scheduler's KV cache configuration of a family, as it is."""
    with made_by_families(name):
        worker, scheduler, _ = families().plan(name)
    return worker, scheduler


@dataclass(frozen=True)
class ScaledFamily:
    """A family with fewer tokens in a block and a window, and fewer bytes for a token; its layers are all there.

    Attributes
    ----------
    layers
        Layer name to specification, each of vLLM's class.
    layout
        Of the tensors: the first that vLLM can have for all of the layers.
    block_size, num_drafts, draft_method, num_draft_modules, hybrid_manager, num_context_ranks
        The engine's.

    """

    layers: dict[str, KVCacheSpec]
    layout: KVCacheLayout
    block_size: int
    num_drafts: int
    draft_method: str
    num_draft_modules: int
    hybrid_manager: bool
    num_context_ranks: int

    @property
    def longest_window(self) -> int:
        """Tokens of the longest window, or chunk, or 0."""
        reaches = ("sliding_window", "attention_chunk_size")
        return max(int(getattr(spec, reach, None) or 0) for spec in self.layers.values() for reach in reaches)

    def engine_spec(self) -> dict[str, Any]:
        """What of it to give to ``ToySpec``."""
        return {
            "layers": self.layers,
            "layout": self.layout,
            "block_size": self.block_size,
            "hybrid_manager": self.hybrid_manager,
            "num_drafts": self.num_drafts,
            "draft_method": self.draft_method,
            "num_draft_modules": self.num_draft_modules,
            "num_context_ranks": self.num_context_ranks,
            "world_size": self.num_context_ranks,
        }


def scaled(name: str) -> ScaledFamily:
    """Make a family small: all tokens by one factor, and all bytes by another."""
    with made_by_families(name):
        _, specs, _ = families().FAMILIES[name]()
        return _scaled(name, specs, _Scale.of(specs))


def light(name: str) -> ScaledFamily:
    """Make a family's blocks light, and leave its tokens as they are: a layer of each kind in each of its groups."""
    with made_by_families(name):
        _, specs, _ = families().FAMILIES[name]()
        worker, _, _ = families().plan(name)
        layers = [
            layer
            for group in worker.kv_cache_groups
            for layer in {specs[layer]: layer for layer in reversed(group.layer_names)}.values()
        ]
        chosen = {layer: spec for layer, spec in specs.items() if layer in layers}
        return _scaled(name, chosen, replace(_Scale.of(chosen), tokens=1, most_window_blocks=None))


def _scaled(name: str, specs: dict[str, KVCacheSpec], scale: "_Scale") -> ScaledFamily:
    config, _, layouts = families().FAMILIES[name]()
    layers = {layer: scale.spec(spec) for layer, spec in specs.items()}
    layout = backend_utils.resolve_kv_cache_layout(config, [layouts], list(layers.values()))
    return ScaledFamily(
        layers=layers,
        layout=layout,
        block_size=config.cache_config.block_size // scale.tokens,
        num_drafts=config.num_speculative_tokens,
        draft_method=config.speculative_config.method if config.speculative_config else "ngram",
        num_draft_modules=config.num_prefill_lookahead_tokens,
        hybrid_manager=not config.scheduler_config.disable_hybrid_kv_cache_manager,
        num_context_ranks=config.parallel_config.decode_context_parallel_size,
    )


def scaled_plan(name: str, small: ScaledFamily | None = None) -> tuple[KVCacheConfig, KVCacheConfig]:
    """As `plan`, of the family made small; None: as `scaled` makes it."""
    config, _, layouts = families().FAMILIES[name]()
    small = small or scaled(name)
    config.cache_config.block_size = small.block_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(families().FAMILIES, name, lambda: (config, dict(small.layers), layouts))
        return plan(name)


@dataclass(frozen=True)
class _Scale:
    """By what tokens and bytes are divided, and blocks of the longest window; None: as it is."""

    tokens: int
    num_bytes: Fraction
    most_window_blocks: int | None = _MOST_WINDOW_BLOCKS

    @classmethod
    def of(cls, specs: dict[str, KVCacheSpec]) -> "_Scale":
        """Leave blocks of 16 tokens, and in the layers with the fewest bytes one cell for each head and token."""
        sizes = math.gcd(*(spec.block_size for spec in specs.values()))
        # Layers that keep a state for several tokens have few of them in a block as it is.
        is_plain = all(spec.tokens_per_state in (1, -1) for spec in specs.values())
        tokens = sizes // _BLOCK if is_plain and sizes % _BLOCK == 0 else 1
        cells = [
            Fraction(spec.state_content_size_bytes, _unit(spec))
            for spec in specs.values()
            if isinstance(spec, AttentionSpec)
        ]
        return cls(tokens, max(Fraction(1), min(cells)))

    def spec(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Make one layer small."""
        if isinstance(spec, MambaSpec):
            return self._state(spec)
        unit = _unit(spec)
        content = unit * max(1, round(spec.state_content_size_bytes / unit / self.num_bytes))
        small = replace(
            spec,
            block_size=spec.block_size // self.tokens,
            page_size_padded=None,
            **self._content(spec, content),
            **self._reach(spec),
        )
        page = small.unpadded_page_size_bytes
        if spec.page_size_bytes > spec.unpadded_page_size_bytes:
            page = max(page, self._page(spec))
        if getattr(spec, "alignment", None) is not None:
            return replace(small, page_size_padded=None, alignment=page)
        return replace(small, page_size_padded=page) if page > small.unpadded_page_size_bytes else small

    def _page(self, spec: KVCacheSpec) -> int:
        return _CELL * -int(-spec.page_size_bytes / self.tokens / self.num_bytes // _CELL)

    def _content(self, spec: AttentionSpec, num_bytes: int) -> dict[str, int]:
        if spec.state_content_bytes is not None:
            return {"state_content_bytes": num_bytes}
        num_items = num_bytes // spec.dtype.itemsize
        # Keys have at least one, and so have values if there are any.
        values = min(num_items - 1, -(-num_items * spec.head_size_v // (spec.head_size + spec.head_size_v)))
        return {"head_size": num_items - values, "head_size_v": values}

    def _reach(self, spec: AttentionSpec) -> dict[str, int]:
        block = spec.block_size // self.tokens
        reach = {}
        for name in ("sliding_window", "attention_chunk_size"):
            if (found := getattr(spec, name, None)) is not None:
                num_tokens = -(-found // self.tokens)
                longest = num_tokens if self.most_window_blocks is None else self.most_window_blocks * block
                reach[name] = num_tokens if num_tokens <= longest else longest + num_tokens % block
        return reach

    def _state(self, spec: MambaSpec) -> MambaSpec:
        by = self.tokens * self.num_bytes
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
        cells = [max(1, int(size / by / _CELL)) for size in sizes[:-1]]
        cells.append(max(1, int(sum(sizes) / by / _CELL) - sum(cells)))
        shapes = tuple((_CELL * n // dtype.itemsize,) for n, dtype in zip(cells, spec.dtypes, strict=True))
        small = replace(spec, block_size=spec.block_size // self.tokens, shapes=shapes, page_size_padded=None)
        return small if spec.page_size_padded is None else replace(small, page_size_padded=self._page(spec))


def _unit(spec: AttentionSpec) -> int:
    """The fewest bytes for a head and a token that are whole cells, with an item of keys and one of values if any."""
    return max(_CELL, int(spec.dtype.itemsize) * (2 if spec.head_size_v else 1))


@dataclass(frozen=True)
class Setting:
    """A family made small, and what is enough for it.

    Attributes
    ----------
    name, family
        Made small.
    hit_tokens
        Hits end at multiples of so many.
    unit
        Tokens by which prompts are long or short: of a hit, or an eighth of the longest window.
    token_bytes
        Of a token in the slots of all groups on each rank, if all blocks are stored.
    most_bytes
        Of the largest slot.
    alike
        Names of the layers of each group that keep as many states for their tokens.

    """

    name: str
    family: ScaledFamily
    hit_tokens: int
    unit: int
    token_bytes: int
    most_bytes: int
    alike: list[list[str]]

    @classmethod
    def of(cls, name: str, patch: pytest.MonkeyPatch) -> "Setting":
        """Plan a family that vLLM knows and kvferry takes, or skip it."""
        family, (_, scheduler) = scaled(name), scaled_plan(name)
        groups, num_ranks = scheduler.kv_cache_groups, family.num_context_ranks
        hit_tokens = math.lcm(*(resolve_dcp_kv_block_size(group.kv_cache_spec, num_ranks) for group in groups))
        unit = hit_tokens * max(1, family.longest_window // 8 // hit_tokens)
        kept = preflight.kept_part(scheduler)
        sizes = topology.group_bytes(kept)
        per_token = sum(
            size // group.kv_cache_spec.block_size for size, group in zip(sizes, kept.kv_cache_groups, strict=True)
        )
        alike: dict[tuple[int, Any], list[str]] = {}
        for number, group in enumerate(scheduler.kv_cache_groups):
            for layer in group.layer_names:
                alike.setdefault((number, family.layers[layer].tokens_per_state), []).append(layer)
        found = cls(name, family, hit_tokens, unit, per_token, max(sizes), list(alike.values()))
        if found.replay_tokens:
            # vLLM has bounded replay with model runner v2 only, which asks for Triton; the toy runs no kernel.
            patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
            patch.setattr("vllm.config.vllm.HAS_TRITON", True)
        return found

    @property
    def replay_tokens(self) -> int:
        """Tokens of a hit that the engine computes again."""
        return max(int(spec.prefix_replay_tokens) for spec in self.family.layers.values())

    @property
    def has_scratch(self) -> bool:
        """Whether the engine does not cache some of the groups."""
        return not all(spec.prefix_cacheable for spec in self.family.layers.values())

    @property
    def num_tokens(self) -> int:
        """Of the longest request."""
        return 12 * self.unit + 24

    def prepare(self, engine: ToyEngine) -> None:
        """Let an engine go through its steps as one that serves the family does."""
        if self.replay_tokens:
            for worker in engine.workers:
                worker.way = Way.V2

    def spec(self, **more: Any) -> dict[str, Any]:
        """What to give to ``ToySpec``."""
        return {**self.family.engine_spec(), "max_model_len": self.num_tokens, **more}
