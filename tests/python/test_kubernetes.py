# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: their pods can start with the tier that they ask for, and their parts fit each other."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvferry.config import GIB, KvFerryConfig
from kvferry.sizes import parse_size
from kvferry.vllm import KvFerryConnector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.plugins import load_general_plugins

MANIFEST = Path(__file__).parents[2] / "examples/kubernetes/vllm-kvferry.yaml"
NODE = MANIFEST.with_name("node-with-router.yaml")
# For vLLM's processes beside tier and shared memory.
LEAST_FOR_PROCESSES = 16 * GIB


def deployment_of(manifest: Path) -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(manifest.read_text()) if one["kind"] == "Deployment")


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    return deployment_of(MANIFEST)


@pytest.fixture(scope="module")
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    return deployment["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    return container


def transfer_config_of(container: dict[str, Any]) -> KVTransferConfig:
    [text] = [value for arg in container["args"] if (value := arg.partition("--kv-transfer-config=")[2])]
    return KVTransferConfig(**json.loads(text))


@pytest.fixture(scope="module")
def transfer_config(container: dict[str, Any]) -> KVTransferConfig:
    return transfer_config_of(container)


@pytest.fixture(scope="module")
def tier_bytes(transfer_config: KVTransferConfig) -> int:
    return KvFerryConfig.from_extra_config(transfer_config.kv_connector_extra_config).cpu_bytes_to_use


def in_bytes(quantity: str) -> int:
    """Kubernetes writes Gi where we write GiB."""
    num_bytes = parse_size(f"{quantity}B")
    assert num_bytes is not None, quantity
    return num_bytes


def test_connector_is_ours(transfer_config: KVTransferConfig) -> None:
    load_general_plugins()
    assert KVConnectorFactory.get_connector_class(transfer_config) is KvFerryConnector
    assert transfer_config.kv_role == "kv_both"


def test_memory_limit_covers_tier_shared_memory_and_processes(
    pod: dict[str, Any], container: dict[str, Any], tier_bytes: int
) -> None:
    [shared] = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
    assert shared["medium"] == "Memory"
    needed = tier_bytes + in_bytes(shared["sizeLimit"]) + LEAST_FOR_PROCESSES
    assert in_bytes(container["resources"]["limits"]["memory"]) >= needed
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_lines_for_huge_pages_cover_the_same(pod: dict[str, Any], container: dict[str, Any], tier_bytes: int) -> None:
    lines = dict(re.findall(r"# (hugepages-2Mi|memory): (\w+)$", MANIFEST.read_text(), re.MULTILINE))
    assert in_bytes(lines["hugepages-2Mi"]) >= tier_bytes
    assert in_bytes(container["resources"]["limits"]["memory"]) - in_bytes(lines["memory"]) == tier_bytes


def test_probes_metrics_and_service_meet_the_servers_port(
    deployment: dict[str, Any], container: dict[str, Any]
) -> None:
    [port] = container["ports"]
    assert f"--port={port['containerPort']}" in container["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    template = deployment["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    [service] = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Service"]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port["name"]]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == template["labels"]


def test_every_mount_has_its_volume(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


# ---- a node of two engines behind a router ----


@pytest.fixture(scope="module")
def node() -> dict[str, Any]:
    """The pod with the router and both engines."""
    return deployment_of(NODE)["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def engines(node: dict[str, Any]) -> list[dict[str, Any]]:
    router, *engines = node["containers"]
    assert router["name"] == "router"
    assert len(engines) == 2
    return engines


def options_of(container: dict[str, Any]) -> dict[str, str]:
    words = [*container["command"], *container["args"]]
    return {name: value for word in words for name, _, value in [word.partition("=")] if name.startswith("--")}


def variables_of(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def test_engines_of_a_node_have_one_tier_and_room_for_all_of_it(
    node: dict[str, Any], engines: list[dict[str, Any]]
) -> None:
    configs = [transfer_config_of(one) for one in engines]
    load_general_plugins()
    assert {KVConnectorFactory.get_connector_class(one) for one in configs} == {KvFerryConnector}
    first, second = (KvFerryConfig.from_extra_config(one.kv_connector_extra_config) for one in configs)
    assert first == second
    assert first.shared_path is not None
    [volume] = [one for one in node["volumes"] if one["name"] == "shm"]
    room = in_bytes(volume["emptyDir"]["sizeLimit"])
    assert volume["emptyDir"]["medium"] == "Memory"
    assert room > first.cpu_bytes_to_use
    for engine in engines:
        mounts = {mount["name"]: mount["mountPath"] for mount in engine["volumeMounts"]}
        assert Path(first.shared_path).is_relative_to(mounts["shm"])
        assert engine["resources"]["requests"] == engine["resources"]["limits"]
        assert in_bytes(engine["resources"]["limits"]["memory"]) >= room + LEAST_FOR_PROCESSES


def test_engines_and_router_of_a_node_find_each_other(node: dict[str, Any], engines: list[dict[str, Any]]) -> None:
    router, first, second = (variables_of(one) for one in node["containers"])
    ports = [{one.pop(name) for name in ("DYN_SYSTEM_PORT", "EVENTS_PORT")} for one in (first, second)]
    assert not ports[0] & ports[1]
    assert router == first == second
    for engine in node["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in engine["volumeMounts"]}
        assert Path(router["DYN_FILE_KV"]).is_relative_to(mounts["dynamo"])
    block_tokens = {options_of(one)["--block-size"] for one in engines}
    assert block_tokens == {options_of(node["containers"][0])["--kv-cache-block-size"]}


def test_each_probe_of_a_node_asks_a_port_that_its_container_opens(engines: list[dict[str, Any]]) -> None:
    for engine in engines:
        port = int(variables_of(engine)["DYN_SYSTEM_PORT"])
        assert [one["containerPort"] for one in engine["ports"]] == [port]
        assert {engine[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")} == {port}


def test_options_of_a_node_are_those_that_dynamos_own_tests_start_it_with(node: dict[str, Any]) -> None:
    tried = (Path(__file__).parents[1] / "dynamo/cluster.py").read_text()
    for container in node["containers"]:
        for name in [*options_of(container), *variables_of(container)]:
            assert name == "EVENTS_PORT" or f'"{name}"' in tried, f"{name} is in no test of Dynamo"
