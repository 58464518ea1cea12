# SPDX-License-Identifier: Apache-2.0
"""The script that compares engines on a GPU, here on vLLM's CPU build with a tiny model."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

from .engine_runs import REPOSITORY, cores


def test_engines_of_the_gpu_check_answer_from_the_tier_with_the_same_bits(tmp_path: Path) -> None:
    script = REPOSITORY / "tests/gpu/engine/engines.py"
    command = [sys.executable, str(script), "--out", str(tmp_path), "--tiny", "--engines", "none,kvferry"]
    command += ["--prompts", "5", "--fitting", "3", "--tokens", "300"]
    variables = {
        "KVFERRY_DUMPS": str(tmp_path), "OMP_WAIT_POLICY": "passive", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(cores(1)[0]),
    }  # fmt: skip
    ended = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )
    logs = "".join(file.read_text()[-3000:] for file in tmp_path.glob("*.log"))
    assert ended.returncode == 0, ended.stdout + ended.stderr + logs
    result = json.loads((tmp_path / "kvferry.json").read_text())
    assert result["same"] == [True, True, True]
    assert all(cached >= 256 for cached in result["cached"])
    assert result["sources_before_the_crowd"]["external_kv_transfer"] > 5 * 256
    assert max(json.loads((tmp_path / "none.json").read_text())["cached"]) < 128, "the GPU's cache held a prompt"
    with gzip.open(tmp_path / "kvferry.recording.gz") as recording:
        assert len(recording.read()) > 1 << 20
