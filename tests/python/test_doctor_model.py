# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor --model``: vLLM's own planning of a model that is not loaded, and what kvferry says to it."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvferry.cli import main
from kvferry.errors import ConfigError
from kvferry.vllm.model_report import ModelReport, report_on
from model_configs import DEEPSEEK_V3, GEMMA3, LLAMA, QWEN3_NEXT, SPARSE, write_model

TIER = {"cpu_bytes_to_use": "64MiB", "retention": "engine"}


def doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process, which has imported vLLM; return how it ends."""
    monkeypatch.setattr(sys, "argv", ["kvferry", "doctor", *arguments])
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def groups_of(report: ModelReport) -> list[tuple[str, int, str, int, int]]:
    assert not report.refusal
    assert report.costs is not None
    return [
        (group.kind, group.num_layers, group.reach, group.block_tokens, group.block_bytes)
        for group in report.costs.groups
    ]


@pytest.mark.parametrize(("options", "kv_heads"), [([], 2), (["--tensor-parallel-size", "2"], 1)])
def test_blocks_of_a_rank_are_those_of_its_heads(tmp_path: Path, options: list[str], kv_heads: int) -> None:
    report = report_on(write_model(tmp_path, LLAMA), ["--block-size=32", *options], TIER)
    # Keys and values of 64 elements of 2 bytes.
    assert groups_of(report) == [("FullAttentionSpec", 6, "all", 32, 6 * 32 * kv_heads * 2 * 64 * 2)]
    assert report.num_ranks == report.num_local_ranks == 2 // kv_heads
    assert report.costs is not None
    assert report.costs.prompt_tokens == 2048
    (group,) = report.costs.groups
    assert report.costs.tokens_in_tier == 2048 * ((64 << 20) // report.num_ranks // group.block_bytes) // 64
    assert group.stock_bytes == group.block_bytes


def test_windows_have_groups_of_their_own(tmp_path: Path) -> None:
    model = write_model(tmp_path, GEMMA3)
    block_bytes = 32 * 2 * 2 * 64 * 2
    found = groups_of(report_on(model, ["--block-size", "32"], TIER))
    assert found == [("SlidingWindowSpec", 1, "window", 32, block_bytes)] * 5 + [
        ("FullAttentionSpec", 1, "all", 32, block_bytes)
    ]
    # What is asked of vLLM counts.
    whole = groups_of(report_on(model, ["--block-size", "32", "--disable-hybrid-kv-cache-manager"], TIER))
    assert whole == [("FullAttentionSpec", 6, "all", 32, 6 * block_bytes)]
    longer = report_on(model, ["--block-size", "32", "--max-model-len", "1024"], TIER)
    assert longer.costs is not None
    assert longer.costs.prompt_tokens == 1024


def test_states_lie_in_pages_of_attention_and_are_stored_without_the_rest(tmp_path: Path) -> None:
    options = ["--enable-prefix-caching", "--mamba-cache-mode", "align"]
    report = report_on(write_model(tmp_path, QWEN3_NEXT), options, TIER)
    states, attention = {group[0]: group for group in groups_of(report)}.values()
    assert (states[:3], attention[:3]) == (("MambaSpec", 2, "state"), ("FullAttentionSpec", 2, "all"))
    assert states[3] == attention[3]
    assert 0 < states[4] < attention[4]
    assert report.costs is not None
    assert {group.stock_bytes for group in report.costs.groups} == {attention[4]}


def test_ranks_of_latent_attention_keep_one_copy(tmp_path: Path) -> None:
    model = write_model(tmp_path, DEEPSEEK_V3)
    one, two = (report_on(model, ["--tensor-parallel-size", number], TIER) for number in "12")
    assert groups_of(one) == groups_of(two)
    assert one.costs is not None
    assert two.costs is not None
    assert one.costs.tokens_in_tier == two.costs.tokens_in_tier


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK_V3])
def test_ranks_that_divide_a_block_keep_more_tokens(tmp_path: Path, model: dict[str, Any]) -> None:
    options = ["--tensor-parallel-size=4", "--block-size=64"]
    folder = write_model(tmp_path, model)
    whole = report_on(folder, options, TIER | {"share_replicated_kv": False})
    halves = report_on(folder, [*options, "--decode-context-parallel-size=2"], TIER)
    ((*of_whole, tokens, num_bytes),) = groups_of(whole)
    assert groups_of(halves) == [(*of_whole, 2 * tokens, num_bytes)]
    assert whole.costs is not None
    assert halves.costs is not None
    assert halves.costs.tokens_in_tier == 2 * whole.costs.tokens_in_tier
    assert halves.costs.groups[0].stock_tokens == 2 * whole.costs.groups[0].stock_tokens


def test_prefill_ranks_are_ranks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM has them with model runner v2 only, which asks for Triton; no kernel runs here.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)
    folder = write_model(tmp_path, DEEPSEEK_V3)
    options = ["--tensor-parallel-size=2"]
    plain = report_on(folder, options, TIER)
    report = report_on(folder, [*options, "--prefill-context-parallel-size=2"], TIER)
    assert groups_of(report) == groups_of(plain)
    assert report.num_ranks == 4
    assert report.costs is not None
    assert plain.costs is not None
    assert report.costs.tokens_in_tier == plain.costs.tokens_in_tier  # one copy for all


def test_first_stage_of_a_pipeline_is_shown_and_all_stages_are_planned(tmp_path: Path) -> None:
    report = report_on(write_model(tmp_path, LLAMA, num_hidden_layers=5), ["--pipeline-parallel-size", "2"], TIER)
    ((_, num_layers, _, tokens, block_bytes),) = groups_of(report)
    assert (num_layers, report.num_ranks) == (3, 2)
    assert block_bytes == 3 * tokens * 2 * 2 * 64 * 2


def test_layers_of_a_drafter_count(tmp_path: Path) -> None:
    drafter = write_model(tmp_path / "drafter", LLAMA, num_hidden_layers=2)
    speculative = {"method": "draft_model", "model": drafter, "num_speculative_tokens": 2}
    options = ["--block-size", "32", "--speculative-config", json.dumps(speculative)]
    report = report_on(write_model(tmp_path / "model", LLAMA), options, TIER)
    assert groups_of(report) == [("FullAttentionSpec", 8, "all", 32, 8 * 32 * 2 * 2 * 64 * 2)]


@pytest.mark.parametrize(
    ("transfer", "refusal"),
    [
        ({"cpu_bytes_to_use": 4096}, "at least one block of the KV cache per rank"),
        ({"cpu_bytes": 4096}, "unknown key 'cpu_bytes'"),
        ({"kv_connector": "KvFerryConnector", "kv_role": "kv_consumer"}, "kv_role is 'kv_consumer'"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_in_its_words(
    tmp_path: Path, transfer: dict[str, Any], refusal: str
) -> None:
    report = report_on(write_model(tmp_path, LLAMA), [], transfer)
    assert re.search(refusal, report.refusal)
    assert report.costs is None


def test_engine_without_prefix_caching_gets_a_note(tmp_path: Path) -> None:
    model = write_model(tmp_path, GEMMA3)
    report = report_on(model, ["--no-enable-prefix-caching"], TIER)
    assert "prefix caching is disabled, and kvferry does nothing" in report.notes[0]
    with_it = report_on(model, [], TIER)
    assert with_it.notes == []
    assert with_it.costs == report.costs


def test_what_the_engine_would_warn_of_is_a_note_however_little_vllm_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("vllm.kvferry")
    before = (logger.level, logger.propagate, list(logger.handlers))
    monkeypatch.setattr(logging.getLogger("vllm"), "level", logging.ERROR)
    report = report_on(write_model(tmp_path, LLAMA), ["--max-model-len", "2048"], {"cpu_bytes_to_use": "2MiB"})
    [note] = report.notes
    assert "less than one request of max_model_len 2048 tokens" in note
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({"architectures": ["NoSuchModel"], "model_type": "no_such"}, [], "cannot make an engine with the model"),
        ({}, ["--tensor-parallel-size", "3"], "cannot make an engine with .*divisible by tensor parallel size"),
        ({}, ["--port", "80"], "unrecognized arguments: --port 80; allowed are options of `vllm serve`"),
        ({}, ["--kv-transfer-config", "{}"], "takes it as --config"),
        (SPARSE, [], "cannot make the layers of the model .*Sparse Attention is not supported on CPU"),
    ],
)
def test_model_that_cannot_be_examined_is_an_error_that_says_what_to_do(
    tmp_path: Path, changes: dict[str, Any], options: list[str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        report_on(write_model(tmp_path, LLAMA, **changes), options, {})
    assert "\n" not in str(caught.value)
    assert "; allowed " in str(caught.value) or expected == "takes it as --config"


def test_planning_leaves_no_ranks_behind(tmp_path: Path) -> None:
    from vllm.distributed import parallel_state

    before = (parallel_state._TP, parallel_state._WORLD, parallel_state._PP)
    report_on(write_model(tmp_path, LLAMA), ["--tensor-parallel-size", "2"], TIER)
    after = (parallel_state._TP, parallel_state._WORLD, parallel_state._PP)
    assert after == before


def test_command_tells_programs_nothing_but_the_answer(tmp_path: Path) -> None:
    model = write_model(tmp_path, GEMMA3)
    arguments = ("--json", "--model", model, "--tensor-parallel-size", "2", "--config", json.dumps(TIER))
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "doctor", *arguments]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["model"]["model"] == model
    assert found["model"]["num_ranks"] == 2
    assert len(found["model"]["costs"]["groups"]) == 6
    # The ranks of the model are those that the memory is divided among.
    assert found["verdict"]["bytes_per_rank"] == 32 << 20


def test_command_tells_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--model", write_model(tmp_path, GEMMA3), "--block-size", "32") == 0
    shown = capsys.readouterr().out
    assert "OK what the KV cache costs" in shown
    assert "  5 groups of 1 layers, SlidingWindowSpec, window of 128 tokens: " in shown


def test_command_ends_with_1_if_refused_and_2_if_it_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--model", write_model(tmp_path, LLAMA), "--config", '{"cpu_bytes_to_use": 4096}') == 1
    assert capsys.readouterr().out.count("REFUSED ") == 1
    assert doctor(monkeypatch, "--model", str(tmp_path / "nothing")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("kvferry: vLLM ")
    assert "a directory with config.json" in told.err
    assert doctor(monkeypatch, "--tensor-parallel-size", "2") == 2
    assert "needs --model" in capsys.readouterr().err
