# SPDX-License-Identifier: Apache-2.0
"""``kvferry size`` counts as the doctor and the engine count, and says where each figure comes from."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvferry.cli import main
from kvferry.cli.size import populate_rate, sizing_of
from kvferry.vllm.model_report import report_on
from model_configs import GEMMA3, LLAMA, write_model

GIB = 1 << 30


def size(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process, which has imported vLLM; return how it ends."""
    monkeypatch.setattr(sys, "argv", ["kvferry", "size", *arguments])
    # vLLM's build for CPUs takes it for the size of the engine's own cache.
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr("kvferry.cli.size.populate_rate", lambda: float(2 * GIB))
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert size(monkeypatch, *arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_tokens_are_those_of_the_doctors_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path, GEMMA3)
    found = told(monkeypatch, capsys, "--model", model, "--tp", "2", "--tier", "64Gi", "--block-size", "32")
    report = report_on(model, ["--tensor-parallel-size", "2", "--block-size", "32"], {"cpu_bytes_to_use": 64 * GIB})
    assert report.costs is not None
    assert found["num_tokens"] == report.costs.tokens_in_tier
    assert found["report"]["num_ranks"] == 2
    assert len(found["report"]["costs"]["groups"]) == 6
    assert found["gpu_tokens"] is None
    assert found["seconds_until_ready"] == 32


def test_bytes_of_a_token_count_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path, LLAMA)
    # 6 layers of 2 heads of 64 elements, keys and values, of 2 bytes each.
    token_bytes = 6 * 2 * 64 * 2 * 2
    for ranks in ("1", "2"):
        found = told(monkeypatch, capsys, "--model", model, "--tp", ranks, "--tier", "1GiB")
        assert found["bytes_per_token"] == pytest.approx(token_bytes, rel=0.01)
        [group] = found["report"]["costs"]["groups"]
        assert group["block_bytes"] / group["block_tokens"] == token_bytes / int(ranks)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--gpu-tokens", "1000"], 1000),
        (["--kv-cache-memory-bytes", "3145728"], 3 * 2**20 // (6 * 2 * 64 * 2 * 2)),
        (["--block-size", "16", "--num-gpu-blocks-override", "640"], 10_240),
    ],
)
def test_the_gpus_cache_is_known_if_somebody_says_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: int | None,
) -> None:
    model = write_model(tmp_path, LLAMA)
    assert told(monkeypatch, capsys, "--model", model, "--tier", "1GiB", *options)["gpu_tokens"] == expected
    assert size(monkeypatch, "--model", model, "--tier", "1GiB", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    [gpu] = [line for line in lines if line.startswith("GPU's cache: ")]
    tokens = GIB // (6 * 2 * 64 * 2 * 2)
    if expected is None:
        assert "--gpu-tokens" in gpu
    else:
        assert f"{expected:,} tokens" in gpu
        assert float(gpu.partition("the tier has ")[2].split()[0]) == pytest.approx(tokens / expected, rel=0.01)
    [ready] = [line for line in lines if line.startswith("ready after about ")]
    assert ready.startswith("ready after about 0.5 s, at 2.00 GiB a second: measured on this machine")
    assert any("6 layers, FullAttentionSpec" in line for line in lines)


@pytest.mark.parametrize("name", ["config.json", "some-model.json"])
def test_a_configuration_file_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_model(tmp_path, LLAMA)
    file = (tmp_path / "config.json").rename(tmp_path / name)
    found = told(monkeypatch, capsys, "--model", str(file), "--tier", "1GiB")
    assert found["report"]["model"] == str(file)
    file.write_text("{}")
    assert size(monkeypatch, "--model", str(file), "--tier", "1GiB") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path) in last
    assert f"the model {str(file)!r}" in last


@pytest.mark.parametrize("tier", ["64gigs", "0", "-1"])
def test_a_tier_that_is_no_size_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tier: str
) -> None:
    assert size(monkeypatch, "--model", "none", f"--tier={tier}") == 2
    assert f"--tier is {tier!r}; allowed is " in capsys.readouterr().err


def test_a_model_that_is_refused_ends_with_1_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size(monkeypatch, "--model", write_model(tmp_path, LLAMA), "--tier", "4096") == 1
    assert capsys.readouterr().out.startswith("REFUSED kv_connector_extra_config: cpu_bytes_to_use is 4096")


def test_without_vllm_it_says_so(tmp_path: Path) -> None:
    # As on a machine without vLLM: Python does not find it.
    program = (
        "import importlib.util as u, sys; find = u.find_spec; "
        "u.find_spec = lambda name, *of: None if name == 'vllm' else find(name, *of); "
        "from kvferry.cli import main; main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, "size", "--model", str(tmp_path), "--tier", "1GiB"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("kvferry: kvferry size asks vLLM")
    assert "install it" in run.stderr


def test_the_rate_is_measured_and_a_size_follows_it(tmp_path: Path) -> None:
    rate = populate_rate(1 << 20)
    assert rate > 0
    report = report_on(write_model(tmp_path, LLAMA), [], {"cpu_bytes_to_use": GIB})
    assert sizing_of(report, GIB, None, rate).seconds_until_ready == GIB / rate
