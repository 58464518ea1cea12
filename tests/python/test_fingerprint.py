# SPDX-License-Identifier: Apache-2.0
"""Engines that differ in one fact share no block, and engines that differ in none share all: fact by fact.

What a name space is for is shown in ``test_shared_tier.py``; here it is looked at as a number.
"""

import dataclasses
import enum
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.config
from fingerprint_engine import Engine
from kvferry.vllm import fingerprint
from kvferry.vllm.fingerprint import canonical, environment
from kvferry.vllm.fingerprint_fields import BY_CLASS
from scenarios import HYBRID
from vllm import envs
from vllm.v1.core import kv_cache_utils

SCRIPT_OF_ANOTHER_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fingerprint_engine import Engine
engine = Engine(Path(sys.argv[2]))
print(engine.name_space().number, engine.probe())
"""


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


# These are read as what they are, and have rows of their own in FACTS.
READ = {
    "ModelConfig": {"model", "hf_config", "multimodal_config", "seed", "hf_config_path"},
    "MultiModalConfig": {"mm_encoder_fp8_scale_path"},
    "SpeculativeConfig": {"draft_model_config", "draft_load_config"},
    "VllmConfig": {"model_config", "cache_config", "parallel_config", "load_config", "speculative_config"},
}
CLASSES = sorted(BY_CLASS)


def fields_of(of: str) -> set[str]:
    return {field.name for field in dataclasses.fields(getattr(vllm.config, of))}


COUNTED = [(of, name) for of in CLASSES for name in sorted(BY_CLASS[of].counted & fields_of(of) - READ.get(of, set()))]
FREE = [
    (of, name) for of in CLASSES for name in sorted(BY_CLASS[of].free.keys() & fields_of(of) - {"kv_transfer_config"})
]


@pytest.mark.parametrize("of", CLASSES)
def test_every_field_of_vllms_configuration_is_classified(of: str) -> None:
    unknown = sorted(fields_of(of) - BY_CLASS[of].classified())
    assert not unknown, (
        f"vLLM {vllm.__version__} has new fields of {of}: {unknown}. Each belongs in fingerprint_fields.py: "
        "counted if a block's bytes or its hash may depend on it, else free, with the reason"
    )
    assert not BY_CLASS[of].counted & BY_CLASS[of].free.keys()
    assert all(BY_CLASS[of].free.values())


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Engine]:
    """An engine without and with drafts: making one for each field would take minutes."""
    folder = tmp_path_factory.mktemp("engines")
    return {False: Engine(folder / "plain"), True: Engine(folder / "drafts", num_drafts=1)}


def changed(engines: dict[bool, Engine], of: str, name: str) -> tuple[int, int]:
    """The name space of an engine, and of one that differs in this field alone."""
    engine = engines[of == "SpeculativeConfig"]
    configuration, before = engine.configuration(of), engine.name_space().number
    value = getattr(configuration, name)
    object.__setattr__(configuration, name, "another value")
    try:
        return before, engine.name_space().number
    finally:
        object.__setattr__(configuration, name, value)


@pytest.mark.parametrize(("of", "name"), COUNTED)
def test_a_field_that_counts_keeps_engines_apart(engines: dict[bool, Engine], of: str, name: str) -> None:
    one, other = changed(engines, of, name)
    assert one != other


@pytest.mark.parametrize(("of", "name"), FREE)
def test_a_field_that_changes_no_block_does_not(engines: dict[bool, Engine], of: str, name: str) -> None:
    one, other = changed(engines, of, name)
    assert one == other


def test_a_field_that_nobody_has_looked_at_counts() -> None:
    @dataclasses.dataclass
    class CacheConfig:
        block_size: int
        num_gpu_blocks: int
        new_in_some_release: int

    assert canonical(CacheConfig(1, 2, 3)) == canonical(CacheConfig(1, 99, 3))
    assert canonical(CacheConfig(1, 2, 3)) != canonical(CacheConfig(1, 2, 4))


def replace_weights(engine: Engine) -> None:
    Path(engine.config.model_config.model, "model.safetensors").write_bytes(b"others")


def set_hf_config(**values: Any) -> Callable[[Engine], None]:
    return lambda engine: engine.config.model_config.hf_config.update(values)


def set_of(path: str, value: Any) -> Callable[[Engine], None]:
    *parents, name = path.split(".")

    def change(engine: Engine) -> None:
        found: Any = engine
        for parent in parents:
            found = getattr(found, parent)
        object.__setattr__(found, name, value)

    return change


def change_spec(**values: Any) -> Callable[[Engine], None]:
    """The first group's specification has other values."""

    def change(engine: Engine) -> None:
        group = engine.kv.kv_cache_groups[0]
        group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, **values)

    return change


def rename_layer(engine: Engine) -> None:
    engine.kv.kv_cache_groups[0].layer_names[0] += ".other"


def write_config_of_other_folder(engine: Engine) -> None:
    folder = Path(engine.config.model_config.model).with_name("configuration")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    engine.config.model_config.hf_config_path = str(folder)


FACTS: dict[str, Callable[[Engine], None]] = {
    "weights in the model's folder": replace_weights,
    "path of the model": set_of("config.model_config.model", "/models/of another name"),
    "rope scaling": set_hf_config(rope_parameters={"rope_type": "yarn", "factor": 4.0}),
    "heads of the model": set_hf_config(num_key_value_heads=16),
    "hf_overrides": set_of("config.model_config.hf_overrides", {"rope_theta": 1.0}),
    "seed of weights that are made up": set_of("config.model_config.seed", 7),
    "folder of the configuration": write_config_of_other_folder,
    "resolved layout": set_of("kv.kv_cache_layout", "LBNHC"),
    "layout of the cache": set_of("config.cache_config.kv_cache_layout", "LBNHC"),
    "KV dtype of some layers": set_of("config.cache_config.kv_cache_dtype_skip_layers", ["0", "1"]),
    "bytes of a block": set_of("slot_bytes", [[6145]]),
    "padding of a page": change_spec(page_size_padded=8192),
    "heads on a rank": change_spec(num_kv_heads=4),
    "dtype of a group": change_spec(dtype=torch.int32),
    "layers of a group": rename_layer,
    "tensors' source": set_of("config.load_config.model_loader_extra_config", {"tensorizer_uri": "elsewhere"}),
    "pruned videos": set_of("config.model_config.multimodal_config.video_pruning_rate", 0.5),
    "arguments of the processor": set_of("config.model_config.multimodal_config.mm_processor_kwargs", {"size": 1}),
}


@pytest.mark.parametrize("fact", FACTS)
def test_engines_that_differ_in_one_fact_share_nothing(folder: Path, fact: str) -> None:
    engine = Engine(folder)
    expected = engine.name_space()
    assert expected.why_alone == ""
    assert engine.name_space() == expected
    FACTS[fact](engine)
    assert engine.name_space().number != expected.number


def test_engines_that_differ_in_no_fact_share_all(folder: Path) -> None:
    one, other = Engine(folder), Engine(folder)
    other.config.instance_id = "another start"
    other.config.kv_transfer_config.engine_id = "another engine"
    assert one.name_space() == other.name_space()
    assert one.probe() == other.probe()


SPECS: list[dict[str, Any]] = [
    {},
    {"block_size": 32},
    {"world_size": 2},
    {"num_layers": 4},
    {"max_model_len": 256},
    HYBRID,
    HYBRID | {"sliding_window": 48},
    {"num_drafts": 1},
    {"num_drafts": 2},
]


def test_engines_of_different_models_blocks_ranks_and_drafts_share_nothing(folder: Path) -> None:
    found = {Engine(folder, **spec).name_space().number for spec in SPECS}
    assert len(found) == len(SPECS)


def test_how_many_blocks_an_engine_has_is_its_own_affair(folder: Path) -> None:
    one, other = Engine(folder), Engine(folder, num_blocks=77)
    assert one.name_space() == other.name_space()
    assert one.probe() == other.probe()


@pytest.mark.parametrize(
    ("name", "value", "is_counted"),
    [
        ("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1", True),
        ("VLLM_SSM_CONV_STATE_LAYOUT", "DS", True),
        ("VLLM_KV_CACHE_LAYOUT", "LBNHC", True),
        ("VLLM_MLA_DISABLE", "1", True),
        ("VLLM_VIDEO_LOADER_BACKEND", "other", True),
        ("VLLM_MODEL_REDIRECT_PATH", "/redirects", True),
        ("VLLM_DIST_IDENT", "of one start", False),
        ("S3_ENDPOINT_URL", "http://elsewhere", True),
        ("VLLM_PORT", "1", False),
        ("VLLM_DP_RANK", "1", False),
        ("VLLM_DP_MASTER_PORT", "1", False),
        ("VLLM_HOST_IP", "::1", False),
        ("VLLM_CACHE_ROOT", "/cache", False),
        ("VLLM_LOGGING_LEVEL", "DEBUG", False),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-1", False),
        ("VLLM_CPU_KVCACHE_SPACE", "7", False),
        ("HOME", "/elsewhere", False),
    ],
)
def test_variables_that_may_change_content_count_on_both_sides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_counted: bool
) -> None:
    if is_counted and name.startswith("VLLM_") and name not in envs.environment_variables:
        pytest.skip(f"vLLM {vllm.__version__} has no {name}")
    engine = Engine(folder)
    before = (engine.name_space().number, engine.probe())
    monkeypatch.setenv(name, value)
    assert (name in environment()) == is_counted
    after = (engine.name_space().number, engine.probe())
    assert (before[0] != after[0], before[1] != after[1]) == (is_counted, is_counted)


def test_another_seed_of_the_hashes_is_another_name_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Engine(folder).name_space()
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert Engine(folder).name_space().number != first.number


def test_another_process_finds_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED"):
        monkeypatch.delenv("PYTHONHASHSEED")  # Sets and dictionaries are in another order there.
    engine = Engine(folder)
    command = [sys.executable, "-c", SCRIPT_OF_ANOTHER_PROCESS, str(Path(__file__).parent), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split()[-2:] == [str(engine.name_space().number), str(engine.probe())]


# What makes two engines of one configuration differ without a sign of it.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_of("config.weight_transfer_config", SimpleNamespace()), "replaced while it serves"),
        (set_of("config.cache_config.calculate_kv_scales", True), "scales are those of the first prompt"),
        (set_of("config.load_config.load_format", "ipc_cache"), "load_format 'ipc_cache'"),
        (set_of("config.model_config.model_weights", "s3://bucket/model"), "can change"),
        (set_of("config.model_config.model", "some/model"), "the commit of some/model is not known"),
    ],
)
def test_engine_whose_content_is_not_known_is_alone_and_says_why(
    folder: Path, change: Callable[[Engine], None], said: str
) -> None:
    numbers = set()
    for instance in ("one", "two"):
        engine = Engine(folder)
        change(engine)
        engine.config.instance_id = instance
        numbers.add(engine.name_space().number)
        assert said in engine.name_space().why_alone
    assert len(numbers) == 2


def test_code_of_another_repository_is_not_known(folder: Path) -> None:
    engine = Engine(folder)
    engine.config.model_config.hf_config.auto_map = {"AutoModel": "other/repository--modeling.Model"}
    assert engine.name_space().why_alone == ""
    engine.config.model_config.trust_remote_code = True
    assert "other/repository--modeling.Model" in engine.name_space().why_alone


def test_values_are_written_alike_in_every_process() -> None:
    class Colour(enum.Enum):
        RED = 1

    assert canonical({"b": Path("/x"), "a": {3, 1, 2}}) == {"b": "/x", "a": [1, 2, 3]}
    assert canonical([Colour.RED, b"\x01", torch.float16]) == ["Colour.RED", "01", ["dtype", "torch.float16"]]
    assert canonical(object()) == canonical(object()), "no address"
    assert canonical(canonical) == "kvferry.vllm.fingerprint.canonical"
    json.dumps(canonical([1.5, float("inf"), None, torch.ones(2), Engine, lambda: 0]))
    assert fingerprint._FINGERPRINT_VERSION == 2
