# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share."""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

# The toy's tensors are small, and several runs share a machine.
torch.set_num_threads(1)

# Tests are imported by path, so that the folder is not on Python's: the harness is a module of it.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")]

from harness import ToyEngine, ToySpec, expected_tokens  # noqa: E402
from kvferry import recordings  # noqa: E402
from scenarios import PROMPTS, Make  # noqa: E402
from seeds import is_played  # noqa: E402

# What is imported is no garbage: vLLM's modules are a million objects, and lives collect often.
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the random lives that only long runs play."""
    items[:] = [item for item in items if not hasattr(item, "callspec") or is_played(item.name, item.callspec.params)]


@pytest.fixture(scope="session", autouse=True)
def own_recordings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Engines of these tests record in a folder of this process: one that starts takes what dead ones left in it."""
    recordings.DIRECTORY = str(tmp_path_factory.mktemp("recordings"))
    os.environ["KVFERRY_DUMPS"] = str(tmp_path_factory.mktemp("dumps"))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undo what a test changed in the process's environment: vLLM writes choices there (`vllm/platforms/cpu.py`)."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder for a toy model's configuration."""
    return tmp_path / "model"


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Collect what kvferry logs through vLLM; vLLM's loggers do not propagate to pytest's own handler."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    logger = logging.getLogger("vllm.kvferry")
    handler, level = Collector(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Whether vLLM schedules a step before it has the output of the last one."""
    return bool(request.param)


@pytest.fixture
def own_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test a directory of dumps of its own."""
    monkeypatch.setenv("KVFERRY_DUMPS", str(tmp_path / "dumps"))
    return tmp_path / "dumps"


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    """Make engines with `extra` as connector configuration and `spec` for `ToySpec`, and close them."""
    engines: list[ToyEngine] = []

    def make_engine(extra: dict[str, Any] | None = None, **spec: Any) -> ToyEngine:
        # What a load takes here says nothing: all are done unless a test asks.
        config = {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0, "recorder_bytes": "1MiB", **(extra or {})}
        config = {key: value for key, value in config.items() if value is not None}
        engine = ToyEngine(folder, ToySpec(extra_config=config, **spec))
        engines.append(engine)
        return engine

    yield make_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def expected(folder: Path) -> dict[str, list[int]]:
    """What the prompts give in an engine without connector."""
    return expected_tokens(folder, PROMPTS)
