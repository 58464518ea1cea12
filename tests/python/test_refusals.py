# SPDX-License-Identifier: Apache-2.0
"""Every refusal of `preflight` names a remedy, with which the engine is accepted, and is a row of the reference."""

import ast
import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from documents import section
from harness import ToySpec, make_vllm_config
from kv_cache_plans import FULL, STATE, WINDOW, kv_cache
from kvferry.errors import ConfigError
from kvferry.vllm import preflight
from vllm.config import set_current_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    SinkFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

REFERENCE = "python/kvferry/vllm/reference.md"
WITHOUT = "start vLLM without KvFerryConnector"
RING = CircularBufferSpec(block_size=24, num_kv_heads=1, head_size=16, dtype=torch.float32)
SINK = SinkFullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sink_len=4)


@dataclasses.dataclass
class Engine:
    """What kvferry is told of an engine when it starts."""

    config: Any
    patch: pytest.MonkeyPatch
    kv_cache: KVCacheConfig = dataclasses.field(default_factory=lambda: kv_cache(FULL))
    wanted_layout: str = "engine"

    def check(self) -> None:
        """Ask `preflight` all that both sides ask it."""
        preflight.check_engine(self.config)
        preflight.check_layout(self.wanted_layout, self.config)
        for group in preflight.check_kv_cache(self.kv_cache):
            preflight.reach_of_group(group, num_drafts=0)
        preflight.block_sizes(self.config, self.kv_cache)

    def refusal(self) -> str:
        with pytest.raises(ConfigError) as caught:
            self.check()
        return str(caught.value)


Change = Callable[[Engine], object]


@dataclasses.dataclass
class Case:
    """A refusal.

    Attributes
    ----------
    make
        Makes an accepted engine one that is refused.
    remedies
        A part of the refusal's text, and what it says, done.

    """

    make: Change
    remedies: dict[str, Change]


def put(path: str, value: object) -> Change:
    """Set an attribute below the engine's configuration."""
    *names, last = path.split(".")

    def change(engine: Engine) -> None:
        owner = engine.config
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, value)

    return change


def variable(name: str, value: str | None) -> Change:
    def change(engine: Engine) -> None:
        engine.patch.delenv(name, raising=False) if value is None else engine.patch.setenv(name, value)

    return change


def cache_of(*specs: KVCacheSpec, host_blocks: int | None = None) -> Change:
    def change(engine: Engine) -> None:
        engine.kv_cache = kv_cache(*specs)
        engine.kv_cache.hisparse_host_num_blocks = host_blocks

    return change


def resolved(requested: str | None) -> Change:
    """Let vLLM choose the layout of a back end that can have all, with its variable set or not."""

    def change(engine: Engine) -> None:
        variable("VLLM_KV_CACHE_LAYOUT", requested)(engine)
        engine.wanted_layout = "BLHNC"
        engine.config.kv_transfer_config.kv_connector_extra_config["kv_cache_layout"] = engine.wanted_layout
        engine.config.cache_config.kv_cache_layout = None
        resolve_kv_cache_layout(engine.config, [["LBHNC", "BLHNC"]], [FULL])

    return change


def layout(wanted: str) -> Change:
    def change(engine: Engine) -> None:
        engine.wanted_layout = wanted

    return change


def all_of(*changes: Change) -> Change:
    return lambda engine: [change(engine) for change in changes]


def version(text: str) -> Change:
    return lambda engine: engine.patch.setattr(vllm, "__version__", text)


def kvcached(engine: Engine) -> None:
    engine.patch.setenv("ENABLE_KVCACHED", "true")
    engine.patch.setattr(importlib.util, "find_spec", lambda name: object())
    engine.config.scheduler_config.async_scheduling = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OtherSpec(KVCacheSpec):
    """Of no kind that kvferry knows."""

    @property
    def page_size_bytes(self) -> int:
        return 2048


UNEVEN_WINDOWS = UniformTypeKVCacheSpecs(
    block_size=16,
    kv_cache_specs={"g0.l0": WINDOW, "g0.l1": dataclasses.replace(WINDOW, sliding_window=2 * WINDOW.sliding_window)},
)
EVERY_STATE = dataclasses.replace(STATE, mamba_cache_mode="all")
QUANTIZED = dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.NVFP4)
PARALLEL = "parallel_config."
# By the first cell of its row in the reference, and what tells several of one row apart.
CASES = {
    "`kv_role` other than `kv_both`": Case(
        put("kv_transfer_config.kv_role", "kv_producer"), {"set kv_both": put("kv_transfer_config.kv_role", "kv_both")}
    ),
    "an encoder-decoder": Case(
        all_of(put("model_config", SimpleNamespace(is_encoder_decoder=True, enable_sleep_mode=False))), {WITHOUT: None}
    ),
    "sleep mode with vLLM before 0.33": Case(
        all_of(version("0.32.0"), put("model_config.enable_sleep_mode", True)),
        {
            "upgrade vLLM": version("0.33.0"),
            "remove --enable-sleep-mode": put("model_config.enable_sleep_mode", False),
        },
    ),
    "LoRA with vLLM 0.30": Case(
        all_of(put("lora_config", SimpleNamespace()), version("0.30.1")),
        {"upgrade vLLM": version("0.31.0"), "remove --enable-lora": put("lora_config", None)},
    ),
    "kvcached without asynchronous scheduling": Case(
        kvcached,
        {
            "set --async-scheduling": put("scheduler_config.async_scheduling", True),
            "unset ENABLE_KVCACHED": variable("ENABLE_KVCACHED", None),
        },
    ),
    "decode context parallel beside layers that it does not divide": Case(
        all_of(cache_of(FULL, WINDOW), put(PARALLEL + "decode_context_parallel_size", 2)),
        {"set --decode-context-parallel-size 1": put(PARALLEL + "decode_context_parallel_size", 1)},
    ),
    "`--enable-fault-tolerance`": Case(
        put(PARALLEL + "enable_fault_tolerance", True),
        {"remove --enable-fault-tolerance": put(PARALLEL + "enable_fault_tolerance", False)},
    ),
    "`external_launcher` with several ranks": Case(
        all_of(put(PARALLEL + "distributed_executor_backend", "external_launcher"), put(PARALLEL + "world_size", 2)),
        {
            "use 'mp'": put(PARALLEL + "distributed_executor_backend", "mp"),
            "or 'ray'": put(PARALLEL + "distributed_executor_backend", "ray"),
        },
    ),
    "speculative decoding with pipeline parallel on model runner v1": Case(
        all_of(
            variable("VLLM_USE_V2_MODEL_RUNNER", "0"),
            put("speculative_config", SimpleNamespace()),
            put(PARALLEL + "pipeline_parallel_size", 2),
        ),
        {
            "set --pipeline-parallel-size 1": put(PARALLEL + "pipeline_parallel_size", 1),
            "VLLM_USE_V2_MODEL_RUNNER=1": variable("VLLM_USE_V2_MODEL_RUNNER", "1"),
        },
    ),
    "another layout than the key `kv_cache_layout` asks for": Case(
        all_of(put("cache_config.kv_cache_layout", "LBHNC"), layout("BLHNC")),
        {
            "leave kv_cache_layout out": layout("engine"),
            "choose another --attention-backend": put("cache_config.kv_cache_layout", "BLHNC"),
        },
    ),
    "another layout than the key `kv_cache_layout` asks for (by a variable)": Case(
        resolved("LBHNC"), {"unset VLLM_KV_CACHE_LAYOUT": resolved(None)}
    ),
    "HiSparse": Case(cache_of(FULL, host_blocks=4), {WITHOUT: None}),
    "no KV cache": Case(cache_of(), {WITHOUT: None}),
    "no group that vLLM caches": Case(cache_of(RING), {WITHOUT: None}),
    "blocks that cannot be restored from their bytes alone": Case(cache_of(SINK), {WITHOUT: None}),
    "a kind of KV cache that is not known": Case(cache_of(_OtherSpec(block_size=16)), {WITHOUT: None}),
    "recurrent state of no block boundary": Case(
        cache_of(FULL, dataclasses.replace(STATE, mamba_cache_mode="none")),
        {"set --mamba-cache-mode align": cache_of(FULL, STATE)},
    ),
    "recurrent state of every block with drafts": Case(
        cache_of(FULL, dataclasses.replace(STATE, mamba_cache_mode="all", num_speculative_blocks=2)),
        {
            "set --mamba-cache-mode align": cache_of(FULL, dataclasses.replace(STATE, num_speculative_blocks=2)),
            "or leave --speculative-config out": cache_of(FULL, EVERY_STATE),
        },
    ),
    "KV quantization with scales outside the blocks": Case(
        cache_of(QUANTIZED),
        {
            "choose another --kv-cache-dtype": cache_of(
                dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)
            ),
            "or --attention-backend": cache_of(dataclasses.replace(QUANTIZED, state_content_bytes=24)),
        },
    ),
    "layers of one group that see different tokens": Case(cache_of(UNEVEN_WINDOWS), {WITHOUT: None}),
    "blocks that end where no hash does": Case(
        all_of(cache_of(FULL), put("cache_config.block_size", 32)),
        {"set --block-size to the size of a block": put("cache_config.block_size", 16)},
    ),
    "blocks that end where no hash does (states of every block)": Case(
        cache_of(FULL, dataclasses.replace(EVERY_STATE, block_size=64, page_size_padded=8192)),
        {
            "set --block-size to the size of a block": cache_of(
                dataclasses.replace(FULL, block_size=64),
                dataclasses.replace(EVERY_STATE, block_size=64, page_size_padded=8192),
            ),
            "or --mamba-cache-mode align": cache_of(
                FULL, dataclasses.replace(STATE, block_size=64, page_size_padded=8192)
            ),
        },
    ),
    "hits that end inside a block": Case(all_of(cache_of(FULL), put("cache_config.block_size", 8)), {WITHOUT: None}),
}


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """One that kvferry accepts."""
    made = Engine(make_vllm_config(folder, ToySpec()), monkeypatch)
    made.check()
    return made


@pytest.mark.parametrize("name", CASES)
def test_engine_is_accepted_once_a_remedy_of_its_refusal_is_done(engine: Engine, name: str) -> None:
    CASES[name].make(engine)
    told = engine.refusal()
    for remedy, change in CASES[name].remedies.items():
        assert remedy in told
        if change is not None:
            CASES[name].make(engine)
            change(engine)
            engine.check()


# In vLLM 0.33 a scheduler cannot be made for sinks either, nor for circular buffers alone.
@pytest.mark.parametrize("name", ["no KV cache"])
def test_engine_runs_without_the_connector(engine: Engine, name: str) -> None:
    """Where that is the remedy, vLLM's own scheduler takes the KV cache."""
    CASES[name].make(engine)
    assert WITHOUT in engine.refusal()
    config, cache = engine.config, engine.kv_cache
    config.kv_transfer_config = None
    config.cache_config.num_gpu_blocks = cache.num_blocks
    config.cache_config.enable_prefix_caching = any(map(preflight.is_kept, cache.kv_cache_groups))
    block_tokens, hash_tokens = resolve_kv_cache_block_sizes(cache, config)
    with set_current_vllm_config(config):
        scheduler: Any = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_tokens,
            hash_block_size=hash_tokens,
        )
    request = Request("a", list(range(20)), SamplingParams(max_tokens=1), None)
    scheduler.add_request(request)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 20}


def _calls() -> list[ast.Call]:
    """The places of `preflight` that refuse."""
    nodes = ast.walk(ast.parse(inspect.getsource(preflight)))
    return [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_refusal"]


def test_every_refusal_is_tried(folder: Path) -> None:
    refused: set[int] = set()
    for case in CASES.values():
        with pytest.MonkeyPatch.context() as patch:
            engine = Engine(make_vllm_config(folder, ToySpec()), patch)
            case.make(engine)
            real = preflight._refusal

            def noting(found: str, allowed: str, remedy: str, real: Any = real) -> ConfigError:
                frame = inspect.currentframe()
                assert frame is not None
                assert frame.f_back is not None
                refused.add(frame.f_back.f_lineno)
                return real(found, allowed, remedy)

            patch.setattr(preflight, "_refusal", noting)
            engine.refusal()
    untried = [
        ast.unparse(call)
        for call in _calls()
        if not any(line in range(call.lineno, (call.end_lineno or call.lineno) + 1) for line in refused)
    ]
    assert not untried


def test_every_refusal_is_a_row_of_the_reference_with_its_remedy(folder: Path) -> None:
    table = section(REFERENCE, "What is refused at start-up")
    rows = {
        cells[0]: cells[2]
        for cells in (re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines())
        if len(cells) == 3
    }
    rows = {name: remedy for name, remedy in rows.items() if name not in ("Refused", "---")}
    for case_name, case in CASES.items():
        name = case_name.partition(" (")[0]
        assert name in rows
        for remedy in case.remedies:
            if remedy != WITHOUT:
                # The option, variable or key that it names.
                (named,) = re.findall(r"--[\w-]+|[A-Z]{3}\w+|kv_\w+|'\w+'|upgrade", remedy)[:1]
                assert named.strip("'") in rows[name]
            else:
                assert rows[name].startswith("none")
