# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by path, so that the folder is not on Python's: the harness is a module of it.
sys.path.insert(0, str(Path(__file__).parent))


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
