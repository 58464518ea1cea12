# SPDX-License-Identifier: Apache-2.0
"""The answers that are right."""

from __future__ import annotations

from typing import Any

from e2e.engine_runs import EngineRunner
from e2e.storm_checks import storm


def reference_of(runner: EngineRunner, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What the requests bring one by one in an engine of the same release without a connector."""
    return runner.run_named(
        {"alone": storm(requests, window=1)},
        None,
        num_gpu_blocks=400,
        max_model_len=2048,
        max_num_seqs=1,
    )["alone"]
