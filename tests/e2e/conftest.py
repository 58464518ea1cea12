# SPDX-License-Identifier: Apache-2.0
"""The tiny model and the runner that every end-to-end test uses."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, REPOSITORY, EngineRunner
from .storm_checks import MAX_MODEL_LEN, NUM_REQUESTS, NUM_REQUESTS_ALONE, SEEDS, make_requests, storm

# Another connector's name and module: what is not specific to kvferry then runs against that one.
CONNECTOR_VARIABLE = "KVFERRY_E2E_CONNECTOR"
CONNECTOR = "KvFerryConnector:kvferry.vllm"
# What killed engines of these tests recorded is no dump of a user's.
os.environ["KVFERRY_DUMPS"] = str(REPOSITORY / ".cache" / "dumps")


def make_model(name: str, *options: str) -> Path:
    """Directory of a model with real random weights."""
    directory = REPOSITORY / ".cache" / name
    command = [sys.executable, str(REPOSITORY / "examples" / "tiny_model.py"), str(directory), *options]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{name}.lock").open("w") as lock:  # pytest's processes may come at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


def make_runner(model: Path) -> EngineRunner:
    name, module_path = os.environ.get(CONNECTOR_VARIABLE, CONNECTOR).split(":")
    return EngineRunner(model, name, module_path)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The one that the demo uses too."""
    return make_model("tiny-llama")


@pytest.fixture(scope="session")
def runner() -> EngineRunner:
    """Runs scripts on fresh engines with the connector under test; the model has half of the layers of `tiny_model`."""
    return make_runner(make_model("tiny-llama-3-layers", "--layers", "3"))


@pytest.fixture(scope="session")
def tiny_runner(tiny_model: Path) -> EngineRunner:
    """The same with the model that servers have."""
    return make_runner(tiny_model)


@pytest.fixture(scope="session")
def hybrid_runner() -> EngineRunner:
    """The same for five layers of two kinds, of which vLLM makes groups of two, two and one."""
    options = ("--layers", "5", "--layer-pattern", "fww", "--sliding-window", "100")
    return make_runner(make_model("tiny-hybrid", *options))


@dataclasses.dataclass
class StormReference:
    """The requests of storms, and what they bring without a connector and without an abort."""

    seed: int
    crowd: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    results: dict[str, dict[str, Any]]


@pytest.fixture(scope="session", params=SEEDS)
def storm_reference(
    runner: EngineRunner, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StormReference:
    """Requests for a crowd, and requests to run alone; one chunk of a prompt is one block."""
    seed = request.param
    crowd = make_requests(2 * seed, NUM_REQUESTS)
    alone = make_requests(2 * seed + 1, NUM_REQUESTS_ALONE)

    def run_without_connector() -> dict[str, Any]:
        return runner.run_named(
            {"crowd": storm(crowd, window=16), "alone": storm(alone, window=1)},
            None,
            num_gpu_blocks=400,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=BLOCK_TOKENS,
            max_num_seqs=BLOCK_TOKENS,
        )

    results = once_per_run(tmp_path_factory, f"storm-reference-{seed}", run_without_connector)
    return StormReference(seed, crowd, alone, results)


def once_per_run(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` returns, as JSON keeps it; of the processes of one pytest run only the first one calls it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # Each process has a folder below that of the run.
    file = folder / f"{name}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(make()))
    return json.loads(file.read_text())
