# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor --model`` says of a model that is not loaded what its engine says when it starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from .engine_runs import BLOCK_TOKENS, USUAL_VARIABLES, EngineRunner, Prompts, generate

TIER: dict[str, Any] = {"cpu_bytes_to_use": 128 << 20, "retention": "engine"}
OPTIONS = {
    "block-size": BLOCK_TOKENS,
    "max-model-len": 1024,
    "max-num-batched-tokens": 1024,
    "max-num-seqs": 64,
    "dtype": "float32",
}


# After the engine's marks in its log, and after the verdict of the doctor.
SAID = re.compile(
    r"^(?:.* kvferry: |OK )? *((?:what the KV cache costs|\d+ groups of|a group of|a prompt of) .*?) *$", re.MULTILINE
)


def test_doctor_says_what_the_engine_says(hybrid_runner: EngineRunner) -> None:
    report = hybrid_runner.run(
        [generate(Prompts(seed=4).many(1, 10))],
        hybrid_runner.kv_config(**TIER),
        environment={"VLLM_LOGGING_LEVEL": "INFO"},
        num_gpu_blocks=200,
    )
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "doctor", "--model"]
    command += [str(hybrid_runner.model), "--config", json.dumps(TIER), *options]
    variables = os.environ | USUAL_VARIABLES | {"COLUMNS": "500", "VLLM_LOGGING_LEVEL": "ERROR"}
    doctor = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    said = SAID.findall(report.log)
    # The first line, a line for each of three groups, and a prompt.
    assert len(said) == 5
    assert SAID.findall(doctor.stdout) == said
