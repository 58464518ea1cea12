# SPDX-License-Identifier: Apache-2.0
"""Every engine mode that kvferry refuses gets one line at start-up: what was found, what is allowed, what to do."""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from harness import ToyEngine, ToySpec, make_kv_cache_configs, make_vllm_config
from kv_cache_plans import CHUNK, FULL, MLA, STATE, WINDOW, kv_cache
from kvferry import _core
from kvferry.errors import ConfigError, ProtocolError, TopologyError
from kvferry.vllm import preflight, tier_plan, topology
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheSpec,
    KVQuantMode,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

INDEXER = dataclasses.replace(MLA, head_size=132)


@pytest.fixture
def config(folder: Path) -> Any:
    """A configuration that kvferry accepts."""
    vllm_config = make_vllm_config(folder, ToySpec())
    preflight.check_engine(vllm_config)
    return vllm_config


def refusal(check: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        check()
    text = str(caught.value)
    assert text.startswith("kvferry cannot start: ")
    assert "; allowed: " in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_one_sided_role_is_refused(config: Any, role: str) -> None:
    config.kv_transfer_config.kv_role = role
    assert f"kv_role is '{role}'; allowed: 'kv_both'" in refusal(lambda: preflight.check_engine(config))


def test_encoder_decoder_is_refused(config: Any) -> None:
    # Read from the model's configuration by vLLM; nothing else of it matters here.
    model = SimpleNamespace(is_encoder_decoder=True, enable_sleep_mode=False)
    fake = SimpleNamespace(kv_transfer_config=config.kv_transfer_config, model_config=model)
    assert "encoder-decoder" in refusal(lambda: preflight.check_engine(fake))


@pytest.mark.parametrize(("version", "is_refused"), [("0.30.1", True), ("0.31.0+cpu", False), ("0.33.0", False)])
def test_adapters_are_refused_where_hashes_do_not_cover_their_path(
    config: Any, monkeypatch: pytest.MonkeyPatch, version: str, is_refused: bool
) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    config.lora_config = SimpleNamespace()
    if is_refused:
        text = refusal(lambda: preflight.check_engine(config))
        assert f"vLLM {version} name an adapter without its path" in text
        assert "allowed: LoRA with vLLM 0.31 or newer; upgrade vLLM or remove --enable-lora" in text
    else:
        preflight.check_engine(config)


@pytest.mark.parametrize(
    ("enabled", "is_installed", "is_async", "num_stages", "is_refused"),
    [
        ("true", True, False, 1, True),
        ("1", True, False, 1, True),
        ("true", True, True, 1, False),
        ("true", True, False, 2, False),
        ("false", True, False, 1, False),
        ("true", False, False, 1, False),
    ],
)
def test_kvcached_is_refused_where_it_takes_memory_away_unfenced(
    config: Any,
    monkeypatch: pytest.MonkeyPatch,
    enabled: str,
    is_installed: bool,
    is_async: bool,
    num_stages: int,
    is_refused: bool,
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", enabled)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_installed else None)
    config.scheduler_config.async_scheduling = is_async
    config.parallel_config.pipeline_parallel_size = num_stages
    if is_refused:
        text = refusal(lambda: preflight.check_engine(config))
        assert "kvcached is enabled (ENABLE_KVCACHED) without asynchronous scheduling" in text
        assert "set --async-scheduling, or unset ENABLE_KVCACHED" in text
    else:
        preflight.check_engine(config)


@pytest.mark.parametrize(("version", "is_refused"), [("0.32.0+cpu", True), ("0.33.0", False), ("0.34.0", False)])
def test_sleep_mode_is_refused_before_vllm_tells_of_it(
    config: Any, monkeypatch: pytest.MonkeyPatch, version: str, is_refused: bool
) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    config.model_config.enable_sleep_mode = True
    if is_refused:
        text = refusal(lambda: preflight.check_engine(config))
        assert f"enable_sleep_mode is True and vLLM {version} does not tell a connector" in text
        assert "allowed: sleep mode with vLLM 0.33 or newer; upgrade vLLM or remove --enable-sleep-mode" in text
    else:
        preflight.check_engine(config)


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([FULL], (32, [1])),
        ([MLA], (32, [1])),
        ([UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"g0.l0": MLA, "g0.l1": INDEXER})], (32, [1])),
        # Each rank has the whole of a state.
        ([FULL, STATE], (16, [2, 1])),
    ],
)
def test_block_has_the_tokens_of_all_ranks_that_divide_it(
    config: Any, specs: list[KVCacheSpec], expected: tuple[int, list[int]]
) -> None:
    config.parallel_config.decode_context_parallel_size = 2
    preflight.check_engine(config)
    sizes = preflight.block_sizes(config, kv_cache(*specs))
    assert sizes == expected
    assert sizes.hit_tokens == 32


def test_layers_that_every_rank_has_whole_have_blocks_of_their_own_size(config: Any) -> None:
    if not hasattr(FULL, "dcp_sharded"):
        pytest.skip("this vLLM does not know such layers")
    config.parallel_config.decode_context_parallel_size = 4
    draft = dataclasses.replace(WINDOW, dcp_sharded=False)
    assert preflight.block_sizes(config, kv_cache(FULL, draft)) == (16, [4, 1])


@pytest.mark.parametrize("spec", [WINDOW, CHUNK])
def test_layers_whose_tokens_vllm_cannot_divide_are_refused(config: Any, spec: KVCacheSpec) -> None:
    config.parallel_config.decode_context_parallel_size = 2
    text = refusal(lambda: preflight.block_sizes(config, kv_cache(FULL, spec)))
    assert f"decode_context_parallel_size is 2 and a KV cache group has layers of {type(spec).__name__}" in text
    assert "set --decode-context-parallel-size 1" in text


def test_prefill_context_parallel_changes_no_block(config: Any) -> None:
    config.parallel_config.prefill_context_parallel_size = 2
    preflight.check_engine(config)
    assert preflight.block_sizes(config, kv_cache(MLA)) == (16, [1])


def test_schedulers_that_see_only_their_own_rank_are_refused(config: Any) -> None:
    config.parallel_config.distributed_executor_backend = "external_launcher"
    config.parallel_config.world_size = 2
    assert "'external_launcher' with 2 ranks" in refusal(lambda: preflight.check_engine(config))


def test_an_engine_that_runs_on_after_a_failed_step_is_refused(config: Any) -> None:
    config.parallel_config.enable_fault_tolerance = True
    assert "enable_fault_tolerance is True" in refusal(lambda: preflight.check_engine(config))


def test_speculative_decoding_with_pipeline_stages_on_runner_v1_is_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    config.speculative_config = SimpleNamespace()
    config.parallel_config.pipeline_parallel_size = 2
    assert "pipeline_parallel_size 2 on model runner v1" in refusal(lambda: preflight.check_engine(config))


@pytest.mark.parametrize(
    "spec",
    [
        FULL,
        MLA,
        dataclasses.replace(FULL, sliding_window=64),
        dataclasses.replace(FULL, page_size_padded=4096),
        dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
        dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD, state_content_bytes=24),
        # As FlashInfer has it: K and V in head slots of their own, scales after the data.
        dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.NVFP4, num_head_slots=4, state_content_bytes=6),
        dataclasses.replace(FULL, kv_quant_mode=KVQuantMode.TURBOQUANT_4BIT_NC, state_content_bytes=20),
        dataclasses.replace(MLA, kv_quant_mode=KVQuantMode.NVFP4_DS_MLA),
        UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"g0.l0": FULL, "g0.l1": FULL}),
    ],
)
def test_full_attention_is_accepted(spec: KVCacheSpec) -> None:
    (group,) = preflight.check_kv_cache(kv_cache(spec))
    assert group.kv_cache_spec == spec
    assert preflight.reach_of_group(group, num_drafts=0) == ("all", 0)


def test_groups_of_a_shorter_reach_are_accepted() -> None:
    groups = preflight.check_kv_cache(kv_cache(FULL, WINDOW, CHUNK, STATE))
    reaches = [("all", 0), ("window", WINDOW.sliding_window), ("chunk", CHUNK.attention_chunk_size), ("state", 2)]
    assert [preflight.reach_of_group(group, num_drafts=2) for group in groups] == reaches


@pytest.mark.parametrize(
    "spec", [STATE, UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"g0.l0": STATE, "g0.l1": STATE})]
)
def test_recurrent_state_is_accepted_alone(spec: KVCacheSpec) -> None:
    (group,) = preflight.check_kv_cache(kv_cache(spec))
    assert preflight.reach_of_group(group, num_drafts=0) == ("state", 0)
    assert topology.content_bytes(topology.first_spec(spec)) == 2 * 8 * 4 + 3 * 2


def test_recurrent_state_that_is_of_no_boundary_is_refused() -> None:
    text = refusal(
        lambda: preflight.check_kv_cache(kv_cache(FULL, dataclasses.replace(STATE, mamba_cache_mode="none")))
    )
    assert "mamba_cache_mode is 'none'" in text
    assert "set --mamba-cache-mode align" in text


def test_what_a_window_retains_for_a_drafter_is_needed_too() -> None:
    (group,) = preflight.check_kv_cache(kv_cache(dataclasses.replace(WINDOW, extra_retained_tokens=3)))
    assert preflight.reach_of_group(group, num_drafts=0) == ("window", WINDOW.sliding_window + 3)


def test_group_that_the_engine_does_not_cache_is_left_out(config: Any) -> None:
    ring = CircularBufferSpec(block_size=8, num_kv_heads=1, head_size=16, dtype=torch.float32)
    found = kv_cache(FULL, ring, WINDOW)
    groups = preflight.check_kv_cache(found)
    assert [preflight.reach_of_group(group, num_drafts=0)[0] for group in groups] == ["all", "none", "window"]
    assert preflight.kept_part(found).kv_cache_groups == [groups[0], groups[2]]
    assert preflight.block_sizes(config, found) == (16, [1, 1, 1])
    assert "prefix-cacheable" in refusal(lambda: preflight.check_kv_cache(kv_cache(ring)))


def test_hits_end_where_blocks_of_groups_that_are_left_out_end_too(config: Any) -> None:
    ring = CircularBufferSpec(block_size=24, num_kv_heads=1, head_size=16, dtype=torch.float32)
    assert preflight.block_sizes(config, kv_cache(FULL, ring)) == (16, [1, 3])


def test_hits_that_end_elsewhere_than_blocks_are_refused(config: Any) -> None:
    config.cache_config.block_size = 8
    text = refusal(lambda: preflight.block_sizes(config, kv_cache(FULL)))
    assert "hits end at multiples of 8 tokens, and its blocks of 16" in text


def test_kind_that_was_never_tried_is_taken_for_its_base_class_with_a_warning(log_lines: list[str]) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NewWindowSpec(SlidingWindowSpec):
        pass

    spec = NewWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=32)
    (group,) = preflight.check_kv_cache(kv_cache(spec))
    assert preflight.reach_of_group(group, num_drafts=0) == ("window", 32)
    assert any("has not been tried with KV cache specs of NewWindowSpec" in line for line in log_lines)


def test_layers_of_one_group_with_different_windows_are_refused() -> None:
    layers = {"g0.l0": WINDOW, "g0.l1": dataclasses.replace(WINDOW, sliding_window=WINDOW.sliding_window * 2)}
    (group,) = preflight.check_kv_cache(kv_cache(UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=layers)))
    assert "the layers of one KV cache group see" in refusal(lambda: preflight.reach_of_group(group, num_drafts=0))


def test_engine_without_kv_cache_is_refused() -> None:
    assert "the model has no KV cache" in refusal(lambda: preflight.check_kv_cache(kv_cache()))


def test_groups_whose_blocks_differ_in_tokens_are_accepted(config: Any) -> None:
    found = kv_cache(FULL, dataclasses.replace(WINDOW, block_size=48))
    assert len(preflight.check_kv_cache(found)) == 2
    assert preflight.block_sizes(config, found) == (16, [1, 3])
    config.cache_config.prefix_match_unit = 8
    assert preflight.block_sizes(config, found) == (8, [2, 6])
    assert preflight.block_sizes(config, found).block_tokens(1) == 48


@pytest.mark.parametrize(
    "spec",
    [
        SinkFullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sink_len=4),
        UniformTypeKVCacheSpecs(
            block_size=16,
            kv_cache_specs={
                "g0.l0": SinkFullAttentionSpec(
                    block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sink_len=4
                )
            },
        ),
    ],
)
def test_other_kinds_of_state_are_refused_by_name(spec: KVCacheSpec) -> None:
    text = refusal(lambda: preflight.check_kv_cache(kv_cache(spec)))
    inner = spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    assert f"the KV cache spec is {type(inner).__name__}: its attention sinks lie outside the blocks" in text


@pytest.mark.parametrize("mode", [KVQuantMode.INT8_PER_TOKEN_HEAD, KVQuantMode.NVFP4, KVQuantMode.TURBOQUANT_4BIT_NC])
def test_quantization_that_may_keep_scales_elsewhere_is_refused(mode: KVQuantMode) -> None:
    spec = dataclasses.replace(FULL, kv_quant_mode=mode)
    text = refusal(lambda: preflight.check_kv_cache(kv_cache(spec)))
    assert mode.name in text
    assert "--kv-cache-dtype" in text


def test_host_resident_blocks_are_refused() -> None:
    config = kv_cache(FULL)
    config.hisparse_host_num_blocks = 4
    assert "HiSparse" in refusal(lambda: preflight.check_kv_cache(config))


def test_hash_of_another_length_than_a_block_is_refused(config: Any) -> None:
    config.cache_config.block_size = 32
    text = refusal(lambda: preflight.block_sizes(config, kv_cache(FULL)))
    assert "a block has 16 tokens and a block hash covers 32" in text


def test_block_size_is_that_of_the_group(config: Any) -> None:
    assert preflight.block_sizes(config, kv_cache(FULL)) == (16, [1])


def test_tier_below_one_request_of_the_maximum_length_gets_a_warning_with_both_figures(log_lines: list[str]) -> None:
    tier_plan.warn_of_small_tier(num_slots=4, block_tokens=16, max_model_len=64)
    assert log_lines == []
    tier_plan.warn_of_small_tier(num_slots=4, block_tokens=16, max_model_len=65)
    assert len(log_lines) == 1
    assert log_lines[0].startswith("WARNING")
    assert "64 tokens" in log_lines[0]
    assert "max_model_len 65" in log_lines[0]


# The same through the engine: it starts, or says why not.


def test_bad_config_stops_the_engine_before_anything_is_allocated(folder: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cpu_bytes_to_use'"):
        ToyEngine(folder, ToySpec(extra_config={"cpu_bytes": 1}))


def test_budget_below_one_block_stops_the_engine(folder: Path) -> None:
    with pytest.raises(ConfigError, match="at least one block of the KV cache per rank, 6144 bytes"):
        ToyEngine(folder, ToySpec(extra_config={"cpu_bytes_to_use": 6143}))


def test_ring_below_one_block_stops_the_engine(folder: Path) -> None:
    with pytest.raises(ConfigError, match="staging_bytes is 6143"):
        ToyEngine(folder, ToySpec(extra_config={"staging_bytes": 6143}))


def test_without_prefix_caching_the_connector_is_inert_and_says_so(folder: Path, log_lines: list[str]) -> None:
    engine = ToyEngine(folder, ToySpec(prefix_caching=False))
    [warning] = [line for line in log_lines if line.startswith("WARNING")]
    assert warning.startswith(f"WARNING kvferry {_core.__version__} does nothing: prefix caching is disabled")
    assert "--enable-prefix-caching" in warning
    assert len(engine.generate({"a": range(100)})["a"]) == 4
    connector = engine.scheduler.connector
    assert connector.scheduler_side is None
    assert engine.workers[0].connector.worker_side is None
    assert connector.reset_cache()
    assert connector.build_connector_meta(SchedulerOutput.make_empty()).plan == b""
    engine.close()


def test_second_registration_is_refused(folder: Path) -> None:
    worker = ToyEngine(folder).workers[0]
    with pytest.raises(ProtocolError, match="called twice"):
        worker.connector.register_kv_caches(worker.kv_caches)


def test_tensors_of_another_size_than_the_specification_are_refused_with_both(folder: Path) -> None:
    config = make_vllm_config(folder, ToySpec())
    kv_cache_config = make_kv_cache_configs(config, ToySpec())[0]
    from kvferry.vllm import KvFerryConnector
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    connector = KvFerryConnector(config, KVConnectorRole.WORKER, kv_cache_config)
    names = kv_cache_config.kv_cache_groups[0].layer_names
    with pytest.raises(TopologyError, match="has 192 bytes in 3 layers, and 6144 by"):
        connector.register_kv_caches({name: torch.zeros(kv_cache_config.num_blocks, 16) for name in names})


@pytest.mark.parametrize("found", ["LBHNC", "BLNHC"])
def test_engine_that_has_another_layout_than_asked_for_is_refused(config: Any, found: str) -> None:
    config.cache_config.kv_cache_layout = found
    preflight.check_layout("engine", config)
    preflight.check_layout(found, config)
    text = refusal(lambda: preflight.check_layout("BLHNC", config))
    assert "kv_cache_layout is 'BLHNC'" in text
    assert f"has the layout {found}" in text


def test_connector_asks_for_the_layout_of_the_key_and_else_for_none(config: Any) -> None:
    connector = pytest.importorskip("kvferry.vllm").KvFerryConnector
    assert connector.get_required_kvcache_layout(config) is None
    config.kv_transfer_config.kv_connector_extra_config["kv_cache_layout"] = "BLNHC"
    assert connector.get_required_kvcache_layout(config) == "BLNHC"
