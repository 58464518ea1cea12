# SPDX-License-Identifier: Apache-2.0
"""Beside kvcached: its elastic pool under vLLM's scheduler."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

# kvcached reads them when it is imported. It keeps no page in reserve, and nothing of what no request holds.
os.environ |= {
    "ENABLE_KVCACHED": "true",
    "KVCACHED_IPC_NAME": f"kvferry_test_{os.getpid()}",
    "KVCACHED_MIN_RESERVED_PAGES": "0",
    "KVCACHED_MAX_RESERVED_PAGES": "0",
    "KVCACHED_PAGE_PREALLOC_ENABLED": "false",
    "KVCACHED_MAX_CACHED_TOKENS": "0",
    "KVCACHED_LOG_LEVEL": "ERROR",
}

import elastic  # noqa: E402

elastic.patch_vllm()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder for a toy model's configuration."""
    return tmp_path / "model"


@pytest.fixture(scope="session")
def device() -> elastic.StandIn:
    """What the stand-in for the device says."""
    return elastic.StandIn()
