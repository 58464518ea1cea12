# SPDX-License-Identifier: Apache-2.0
"""The entry point by which vLLM knows the connector by its name, and what it costs engines that have another one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kvferry.doctor.plugin import examine_plugin
from kvferry.vllm import KvFerryConnector
from kvferry.vllm.plugin import register_connector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

BY_NAME = {"kv_connector": "KvFerryConnector", "kv_role": "kv_both"}
BY_PATH = BY_NAME | {"kv_connector_module_path": "kvferry.vllm"}
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"

ENTRY_POINT_ALONE = """
import importlib.metadata, json, sys
[entry] = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvferry")
entry.load()
print(json.dumps(sorted({"vllm", "torch", "numpy", "kvferry._core", "kvferry.errors"} & set(sys.modules))))
"""

# As a process of vLLM does it: the engine is imported, then come the plugins, then a connector may be looked up.
PROCESS_OF_VLLM = f"""
import importlib.metadata, json, sys
import vllm.plugins
from vllm.config import KVTransferConfig
from {FACTORY} import KVConnectorFactory
before = set(sys.modules)
vllm.plugins.load_general_plugins()
loaded = {{name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}}

def found(config):
    try:
        connector = KVConnectorFactory.get_connector_class(KVTransferConfig(**config))
    except ValueError as error:
        return str(error)
    return f"{{connector.__module__}}.{{connector.__name__}}"

def of_multi_connector(child):
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
    return MultiConnector.all_children_support_hma(KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={{"connectors": [child]}}))

told = {{"loaded": sorted(loaded), "by name": found({BY_NAME}), "by path": found({BY_PATH})}}
told["child"] = of_multi_connector({BY_NAME})
print(json.dumps(told))
"""


def run(program: str, **variables: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """vLLM's connectors by name, in a process that knows nothing of kvferry."""
    others = {name: load for name, load in KVConnectorFactory._registry.items() if name != "KvFerryConnector"}
    monkeypatch.setattr(KVConnectorFactory, "_registry", others)
    register_connector.cache_clear()
    yield others
    register_connector.cache_clear()


def test_entry_point_loads_neither_engine_nor_torch_nor_core() -> None:
    assert run(ENTRY_POINT_ALONE) == []


@pytest.mark.parametrize("variables", [{}, {"VLLM_PLUGINS": "another,kvferry"}], ids=["all", "named"])
def test_process_of_vllm_finds_the_connector_by_name_and_has_loaded_nothing_for_it(variables: dict[str, str]) -> None:
    told = run(PROCESS_OF_VLLM, **variables)
    if not variables:  # vLLM has plugins of its own
        told["loaded"] = [name for name in told["loaded"] if not name.startswith("vllm.")]
    assert told == {
        "loaded": ["kvferry", "kvferry.vllm", "kvferry.vllm.plugin"],
        "by name": "kvferry.vllm.connector.KvFerryConnector",
        "by path": "kvferry.vllm.connector.KvFerryConnector",
        "child": True,
    }


def test_module_path_works_where_plugins_are_left_out_and_the_doctor_says_what_the_name_gives() -> None:
    variables = {"VLLM_PLUGINS": "another"}
    # The child is asked for last: the module has told of the name by then.
    told = run(PROCESS_OF_VLLM, **variables)
    assert told == {
        "loaded": [],
        "by name": "Unsupported connector type: KvFerryConnector",
        "by path": "kvferry.vllm.connector.KvFerryConnector",
        "child": True,
    }
    fact = examine_plugin(variables)
    assert fact.verdict == "problem"
    assert f"'{told['by name']}'" in fact.detail
    assert "add kvferry to VLLM_PLUGINS" in fact.detail


@pytest.mark.parametrize("variables", [{}, {"VLLM_PLUGINS": "kvferry"}, {"VLLM_PLUGINS": "another,kvferry"}])
def test_doctor_finds_the_plugin_in_order(variables: dict[str, str]) -> None:
    assert examine_plugin(variables).verdict == "ok"


@pytest.mark.parametrize("wanted", ["", "another", "kvferry2", "another, kvferry"])
def test_doctor_reads_the_variable_as_vllm_does(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.plugins import load_plugins_by_group

    monkeypatch.setenv("VLLM_PLUGINS", wanted)
    assert "kvferry" not in load_plugins_by_group("vllm.general_plugins")
    assert examine_plugin(os.environ).verdict == "problem"


def test_registering_is_idempotent(registry: dict[str, Any], log_lines: list[str]) -> None:
    for _ in range(3):
        register_connector()
    assert registry["KvFerryConnector"]() is KvFerryConnector
    assert KVConnectorFactory.get_connector_class(KVTransferConfig(**BY_NAME)) is KvFerryConnector
    assert log_lines == []


def test_another_connector_of_the_name_stays_with_a_warning(registry: dict[str, Any], log_lines: list[str]) -> None:
    KVConnectorFactory.register_connector(
        "KvFerryConnector", "vllm.distributed.kv_transfer.kv_connector.v1.example_connector", "ExampleConnector"
    )
    register_connector()
    register_connector()
    [line] = log_lines
    assert line.startswith("WARNING vLLM already has another connector named KvFerryConnector")
    assert 'add "kv_connector_module_path": "kvferry.vllm"' in line
    assert KVConnectorFactory.get_connector_class(KVTransferConfig(**BY_NAME)).__name__ == "ExampleConnector"
    assert KVConnectorFactory.get_connector_class(KVTransferConfig(**BY_PATH)) is KvFerryConnector


def test_vllm_without_the_factory_gets_a_warning_and_no_error(
    registry: dict[str, Any], log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, FACTORY, None)
    register_connector()
    [line] = log_lines
    assert line.startswith("WARNING kvferry cannot register the connector KvFerryConnector with this vLLM")
    assert "KvFerryConnector" not in registry


def test_vllm_with_another_factory_gets_a_warning_and_no_error(
    registry: dict[str, Any], log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(KVConnectorFactory, "register_connector")
    register_connector()
    [line] = log_lines
    assert "no KVConnectorFactory.register_connector where vLLM 0.30 to 0.33 have it" in line
