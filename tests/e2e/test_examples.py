# SPDX-License-Identifier: Apache-2.0
"""The examples that a user copies, run as they stand; serve.sh is in test_server.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from .engine_runs import REPOSITORY, cores

ROUND = re.compile(r"^round (\d): .*?tokens: ([\d,]+) computed, ([\d,]+) still on the GPU, ([\d,]+) from the tier$")


def run_example(path: str, options: list[str], timeout_s: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an example on one core; it has to succeed."""
    variables["VLLM_CPU_OMP_THREADS_BIND"] = str(cores(1)[0])
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / path), *options],
        env=os.environ | variables, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def test_offline_inference_asks_again_and_the_documents_come_from_the_tier() -> None:
    ended = run_example("examples/offline.py", ["--max-tokens", "4"], 300, OMP_WAIT_POLICY="passive")
    rounds = [
        [int(figure.replace(",", "")) for figure in found.groups()]
        for line in ended.stdout.splitlines()
        if (found := ROUND.match(line))
    ]
    assert [number for number, *_ in rounds] == [1, 2, 3], ended.stdout
    [_, computed_first, *_], *_, [_, computed, _, from_tier] = rounds
    assert computed_first > 8000
    # On a busy machine some blocks are not stored in the first round; their turn comes in the next.
    assert from_tier > computed_first / 2
    assert computed < computed_first / 2


def test_the_demo_finds_its_tokens_in_the_tier(tiny_model: Path, tmp_path: Path) -> None:
    """`make demo` runs this program, which is the first command of README.md."""
    figures = tmp_path / "figures.json"
    ended = run_example(
        "examples/demo.py", ["--model-dir", str(tiny_model), "--json", str(figures)], 500,
        TORCHINDUCTOR_CACHE_DIR=str(REPOSITORY / ".cache" / "torchinductor"),
    )  # fmt: skip
    assert "every token is the same" in " ".join(ended.stdout.split())
    report = json.loads(figures.read_text())
    assert report["succeeded"]
    rows = {(row["engine"], row["phase"]): row for row in report["rows"]}
    assert rows["vLLM + kvferry", "return"]["tier_hit_tokens"] > 0
    assert rows["vLLM alone", "return"]["tier_hit_tokens"] == 0
