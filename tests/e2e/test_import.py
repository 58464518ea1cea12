# SPDX-License-Identifier: Apache-2.0
"""The installed wheel works outside the source tree, and vLLM finds the connector in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .engine_runs import REPOSITORY


def run_isolated(program: str, directory: Path) -> str:
    """Run `program` where neither the tree nor the environment can lend it a module."""
    command = [sys.executable, "-I", "-c", program]
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]


def test_package_and_connector_module_import_outside_the_tree(tmp_path: Path) -> None:
    found = run_isolated("import kvferry, kvferry.vllm; kvferry.__version__; print(kvferry.__file__)", tmp_path)
    assert not Path(found).is_relative_to(REPOSITORY / "python"), found


@pytest.mark.parametrize("found_by", [{}, {"kv_connector_module_path": "kvferry.vllm"}], ids=["name", "module path"])
def test_vllm_finds_the_connector_by(tmp_path: Path, found_by: dict[str, str]) -> None:
    found = run_isolated(
        "from vllm.config import KVTransferConfig\n"
        "from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory\n"
        "from vllm.plugins import load_general_plugins\n"
        "load_general_plugins()\n"
        f"config = KVTransferConfig(kv_connector='KvFerryConnector', kv_role='kv_both', **{found_by})\n"
        "found = KVConnectorFactory.get_connector_class(config)\n"
        "print(found.__module__, found.__name__)",
        tmp_path,
    )
    assert found == "kvferry.vllm.connector KvFerryConnector"
