# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifest: its pod can start with the tier that it asks for, and its parts fit each other."""

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
# For vLLM's processes beside tier and shared memory.
LEAST_FOR_PROCESSES = 16 * GIB


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Deployment")


@pytest.fixture(scope="module")
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    return deployment["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    return container


@pytest.fixture(scope="module")
def transfer_config(container: dict[str, Any]) -> KVTransferConfig:
    [text] = [value for arg in container["args"] if (value := arg.partition("--kv-transfer-config=")[2])]
    return KVTransferConfig(**json.loads(text))


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
