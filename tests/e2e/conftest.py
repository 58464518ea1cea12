# SPDX-License-Identifier: Apache-2.0
"""The tiny model and the runner that every end-to-end test uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .engine_runs import REPOSITORY, EngineRunner

# Another connector's name and module: what is not specific to kvferry then runs against that one.
CONNECTOR_VARIABLE = "KVFERRY_E2E_CONNECTOR"
CONNECTOR = "KvFerryConnector:kvferry.vllm"


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Directory of the model with real random weights that the demo uses too."""
    directory = REPOSITORY / ".cache" / "tiny-llama"
    command = [sys.executable, str(REPOSITORY / "examples" / "tiny_model.py"), str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


@pytest.fixture(scope="session")
def runner(tiny_model: Path) -> EngineRunner:
    """Runs scripts on fresh engines with the connector under test."""
    name, module_path = os.environ.get(CONNECTOR_VARIABLE, CONNECTOR).split(":")
    return EngineRunner(tiny_model, name, module_path)
