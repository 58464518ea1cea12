# SPDX-License-Identifier: Apache-2.0
"""What files other than `preflight` refuse when an engine starts: each names a remedy, with which it is accepted."""

import ast
import dataclasses
import inspect
import os
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from harness import ToySpec, make_kv_cache_configs, make_vllm_config
from kv_cache_plans import FULL, MLA, WINDOW, kv_cache
from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError, ResourceError
from kvferry.vllm import (
    fingerprint,
    kv_device,
    layout,
    rank_tier,
    replicas,
    ring_room,
    shared_tier,
    topology,
    versions,
    weights_versions,
    worker_side,
)
from kvferry.vllm.connector import KvFerryConnector
from test_core_options import SCHEDULER_OPTIONS
from test_refusals import WITHOUT
from toy_pipeline import ToyPipeline
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.utils import allocate_kv_cache

NUM_BLOCKS = 8
MIB = 2**20
# Those that start with an engine. `model_report` answers questions about one that does not run.
MODULES: list[ModuleType] = [
    fingerprint, kv_device, layout, rank_tier, replicas, ring_room, shared_tier, topology, versions, weights_versions,
    worker_side,
]  # fmt: skip
# What makes them.
REFUSALS = {"ConfigError", "_bad_layout"}
# What needs room that the machine has or has not, and is no question of the engine's kind.
OF_THE_MACHINE = {"ring_room": "ResourceError"}


@dataclasses.dataclass
class Start:
    """Where an engine starts."""

    folder: Path
    patch: pytest.MonkeyPatch

    def config(self, **spec: Any) -> Any:
        config = make_vllm_config(self.folder, ToySpec(**spec))
        config.parallel_config.distributed_executor_backend = "mp"
        return config


Attempt = Callable[[Start], object]


@dataclasses.dataclass
class Case:
    """A refusal.

    Attributes
    ----------
    refused
        What is tried.
    remedies
        A part of the refusal's text, and the same with what it says done; None: it says to do without kvferry.

    """

    refused: Attempt
    remedies: dict[str, Attempt | None]


def pages(number: int) -> torch.Tensor:
    return torch.zeros(number, 4, 8)


def layers(groups: list[list[str]], kv_caches: dict[str, Any]) -> Attempt:
    return lambda start: layout.fragments_of_groups(groups, kv_caches, NUM_BLOCKS)


def shared_seed(seed: str | None) -> Attempt:
    def attempt(start: Start) -> object:
        config = start.config()
        config.cache_config.prefix_caching_hash_algo = "xxhash"
        start.patch.delenv("PYTHONHASHSEED", raising=False)
        if seed is not None:
            start.patch.setenv("PYTHONHASHSEED", seed)
        return fingerprint.hash_seed(config)

    return attempt


def device(where: str, wanted: str) -> Attempt:
    return lambda start: kv_device.find([torch.zeros(1, device=where)], wanted)


def gpu_without_driver(start: Start) -> object:
    start.patch.setattr(_core, "backends", lambda: {"cuda": "libcuda.so.1: cannot open", "hip": "", "host": ""})
    tensor: Any = SimpleNamespace(device=torch.device("cuda:0"))
    return kv_device.find([tensor], "auto")


def stages(*caches: Any, replicas_of_second: int = 2, **keys: Any) -> Attempt:
    """Let two stages of two ranks divide their tiers; vLLM says how many ranks hold the same KV cache."""

    def attempt(start: Start) -> object:
        engine, config = start.config(stages=(1, 2), world_size=2), KvFerryConfig.from_extra_config(keys)
        told = {id(cache): 2 for cache in caches} | {id(caches[-1]): replicas_of_second}
        start.patch.setattr(versions, "kv_tp_replicas", lambda cache: told.get(id(cache), told[id(caches[0])]))
        start.patch.setattr(rank_tier.preflight, "kept_part", lambda cache: cache)
        first = rank_tier.divide(config, engine, caches[0])
        return [rank_tier.divide_as(first, 1, config, engine, cache) for cache in caches[1:]]

    return attempt


def first_stage_refuses(cache: Any) -> Attempt:
    def attempt(start: Start) -> object:
        spec, config = ToySpec(stages=(1, 2)), KvFerryConfig.from_extra_config({})
        engine, pipeline = start.config(stages=(1, 2)), ToyPipeline(spec)
        with pipeline.as_rank(0):
            is_accepted = bool(cache.kv_cache_groups[0].layer_names)
            with nullcontext() if is_accepted else pytest.raises(ConfigError, match="--pipeline-parallel-size"):
                rank_tier.tier_of_rank(config, engine, cache)
        with pipeline.as_rank(1):
            return rank_tier.tier_of_rank(config, engine, kv_cache(FULL))

    return attempt


def ranks_that_share(cache: Any, **keys: Any) -> Attempt:
    """Ask as a rank does; vLLM 0.30 does not say how many hold the same, and an MLA model is told by its flag."""

    def attempt(start: Start) -> object:
        engine, config = start.config(world_size=2), KvFerryConfig.from_extra_config(keys)
        engine.model_config = SimpleNamespace(use_mla=True)
        start.patch.setattr(versions, "kv_tp_replicas", lambda cache: None)
        start.patch.setattr(replicas.topology, "first_spec", lambda spec: MLA)
        places = replicas.replicas_of(config, engine, cache).places
        if places[0][0] > 1:
            replicas.refuse_own_layers(cache)
        return places

    return attempt


def ring(load_ring_mib: int, requested_mib: int) -> Attempt:
    """On a device of 1,000 MiB, of which the engine has taken what it asks for."""
    taken = requested_mib * MIB
    memory = ring_room.DeviceMemory(
        total_bytes=1000 * MIB, free_bytes=1000 * MIB - taken, own_bytes=taken, requested_bytes=taken
    )
    return lambda start: ring_room.choose_ring(memory, 10 * MIB, MIB, load_ring_mib * MIB)


def rank_on_a_full_device(**keys: Any) -> Attempt:
    """Register a KV cache on a device of which the engine and other processes leave nothing."""

    def attempt(start: Start) -> object:
        full = ring_room.DeviceMemory(
            total_bytes=1000 * MIB, free_bytes=0, own_bytes=900 * MIB, requested_bytes=900 * MIB
        )
        start.patch.setattr(kv_device.KvDevice, "memory", lambda *asked: full)
        engine = ToySpec(extra_config={"cpu_bytes_to_use": MIB, **keys})
        config = make_vllm_config(start.folder, engine)
        cache = make_kv_cache_configs(config, engine)[0]
        connector = KvFerryConnector(config, KVConnectorRole.WORKER, cache)
        try:
            connector.register_kv_caches(allocate_kv_cache(cache, torch.device("cpu"), engine.layout))
        finally:
            connector.shutdown()
        return connector

    return attempt


def sharing(
    change: Callable[[Any], object] = lambda config: None, path: str | None = "/dev/shm/kvferry-none"
) -> Attempt:
    def attempt(start: Start) -> object:
        config = start.config()
        change(config)
        keys = {} if path is None else {"shared_path": path}
        return shared_tier.check_engine(KvFerryConfig.from_extra_config(keys), config)

    return attempt


def shared_blocks(num_bytes: int, **keys: Any) -> Attempt:
    def attempt(start: Start) -> object:
        path = f"/dev/shm/kvferry-never-made-{os.getpid()}"
        keys_of_all = {"shared_path": path, "cpu_bytes_to_use": 16 * MIB, **keys}
        return shared_tier.shared_tier_of(KvFerryConfig.from_extra_config(keys_of_all), start.config(), [num_bytes])

    return attempt


def layer_without_place(start: Start) -> object:
    config = kv_cache(FULL)
    config.kv_cache_tensors[0].layers.pop()
    return topology.group_bytes(config)


def weights_run(run: str | None) -> Attempt:
    return lambda start: weights_versions.follow_engine(lambda version: None) if run is not None else None


def core_that_makes_it(start: Start) -> object:
    class Core(EngineCore):
        def __init__(self) -> None:
            weights_versions.follow_engine(lambda version: None)

    return Core()


def memory_of_each_layer(**spec: Any) -> Attempt:
    """Register layers of which each has memory of its own, whatever groups they are in."""

    def attempt(start: Start) -> object:
        engine = ToySpec(layer_pattern="fw", num_layers=4, max_model_len=200, **spec)
        config = make_vllm_config(start.folder, engine)
        cache = make_kv_cache_configs(config, engine)[0]
        connector = KvFerryConnector(config, KVConnectorRole.WORKER, cache)
        shape = (cache.num_blocks, FULL.block_size, 2, 16)
        try:
            connector.register_kv_caches({name: torch.zeros(shape) for name in engine.layer_specs()})
        finally:
            connector.shutdown()
        return connector

    return attempt


def chunks_of(tokens: int, block_size: int) -> Attempt:
    told = {**SCHEDULER_OPTIONS, "hash_tokens": block_size, "group_reaches": [("chunk", tokens)]}
    return lambda start: _core.SchedulerEngine(**told)


LORA = sharing(lambda config: setattr(config, "lora_config", object()))
CASES = {
    "an old vLLM": Case(
        lambda start: versions.check("0.29.2"),
        {"upgrade vLLM": lambda start: versions.check("0.30.0"), "start it without KvFerryConnector": None},
    ),
    "hashes of each process": Case(shared_seed(None), {"set PYTHONHASHSEED": shared_seed("0")}),
    "another back end": Case(device("cpu", "cuda"), {"leave the key out": device("cpu", "auto"), WITHOUT: None}),
    "a GPU without driver": Case(gpu_without_driver, {WITHOUT: None}),
    "a layer of no group": Case(layers([["a"]], {"a": pages(8), "b": pages(8)}), {WITHOUT: None}),
    "layers at one address": Case(layers([["a", "b"]], dict.fromkeys("ab", pages(8))), {WITHOUT: None}),
    "several tensors": Case(layers([["a"]], {"a": [pages(8)]}), {WITHOUT: None}),
    "no dimension of blocks": Case(layers([["a"]], {"a": pages(7)}), {WITHOUT: None}),
    "elements apart": Case(layers([["a"]], {"a": torch.zeros(8, 4, 16)[:, :, ::2]}), {WITHOUT: None}),
    "blocks that overlap": Case(
        layers([["a"]], {"a": torch.zeros(100).as_strided((8, 4, 8), (4, 8, 1))}), {WITHOUT: None}
    ),
    "a stage without a layer of a group": Case(
        stages(kv_cache(WINDOW, FULL), kv_cache(WINDOW, FULL, layers=[2, 0])),
        {
            "set --pipeline-parallel-size to fewer stages": stages(kv_cache(WINDOW, FULL)),
            "VLLM_PP_LAYER_PARTITION to another division": stages(
                kv_cache(WINDOW, FULL), kv_cache(WINDOW, FULL, layers=[1, 1])
            ),
        },
    ),
    "a first stage that refuses": Case(
        first_stage_refuses(kv_cache(FULL, layers=0)), {"its own error says": first_stage_refuses(kv_cache(FULL))}
    ),
    "stages whose ranks share otherwise": Case(
        stages(kv_cache(MLA), kv_cache(MLA), replicas_of_second=1),
        {
            "set share_replicated_kv to false": stages(
                kv_cache(MLA), kv_cache(MLA), replicas_of_second=1, share_replicated_kv=False
            )
        },
    ),
    "layers of its own beside a shared copy": Case(
        ranks_that_share(kv_cache(MLA, FULL)),
        {"set share_replicated_kv to false": ranks_that_share(kv_cache(MLA, FULL), share_replicated_kv=False)},
    ),
    "no room for a ring": Case(
        ring(64, 700),
        {"lower --gpu-memory-utilization": ring(64, 600), "set load_staging_bytes to 0": ring(0, 700)},
    ),
    "a device without room": Case(
        rank_on_a_full_device(), {"set staging_bytes": rank_on_a_full_device(staging_bytes="64KiB")}
    ),
    "LoRA in a shared tier": Case(LORA, {"start vLLM without --enable-lora": sharing()}),
    "ranks of several nodes in a shared tier": Case(
        sharing(lambda config: setattr(config.parallel_config, "nnodes", 2)),
        {"leave shared_path out": sharing(lambda config: setattr(config.parallel_config, "nnodes", 2), path=None)},
    ),
    "pipeline parallel in a shared tier": Case(
        sharing(lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2)),
        {
            "leave shared_path out": sharing(
                lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2), path=None
            )
        },
    ),
    "blocks larger than what a shared tier is divided into": Case(
        shared_blocks(MIB),
        {
            "raise cpu_bytes_to_use": shared_blocks(MIB, cpu_bytes_to_use=1024 * MIB),
            "set shared_chunk_bytes": shared_blocks(MIB, shared_chunk_bytes=2 * MIB),
        },
    ),
    "a layer without memory": Case(layer_without_place, {WITHOUT: None}),
    "versions of weights that nobody tells": Case(
        weights_run("run"), {"use vLLM's own engine": core_that_makes_it, "leave weights_run out": weights_run(None)}
    ),
    "groups that lie elsewhere": Case(
        memory_of_each_layer(),
        {"start vLLM with --disable-hybrid-kv-cache-manager": memory_of_each_layer(hybrid_manager=False)},
    ),
}


@pytest.fixture
def start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(folder, monkeypatch)


def refusal(start: Start, name: str) -> ConfigError | ResourceError:
    with pytest.raises((ConfigError, ResourceError)) as caught:
        CASES[name].refused(start)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_engine_is_accepted_once_a_remedy_of_its_refusal_is_done(start: Start, name: str) -> None:
    told = str(refusal(start, name))
    assert "\n" not in told
    for remedy, attempt in CASES[name].remedies.items():
        assert remedy in told
        if attempt is not None:
            attempt(start)


def test_chunks_that_do_not_begin_with_a_block_are_accepted_with_another_block_size(start: Start) -> None:
    with pytest.raises(ConfigError, match="choose another --block-size"):
        chunks_of(40, 16)(start)
    chunks_of(40, 8)(start)


def places(module: ModuleType) -> list[ast.Raise]:
    """Where a module refuses."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = getattr(node.exc.func, "id", "")
            if name in REFUSALS or name == OF_THE_MACHINE.get(module.__name__.rpartition(".")[2]):
                found.append(node)
    return found


def test_every_refusal_is_tried(folder: Path) -> None:
    lines: dict[str, set[int]] = {}
    for name in CASES:
        with pytest.MonkeyPatch.context() as patch:
            error = refusal(Start(folder, patch), name)
            for frame, line in traceback.walk_tb(error.__traceback__):
                lines.setdefault(frame.f_code.co_filename, set()).add(line)
    untried = [
        f"{module.__name__}: {ast.unparse(node)}"
        for module in MODULES
        for node in places(module)
        if lines.get(str(module.__file__), set()).isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    ]
    assert not untried
