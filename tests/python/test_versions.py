# SPDX-License-Identifier: Apache-2.0
"""Which vLLM the connector runs under, and that importing kvferry loads none."""

import subprocess
import sys

import pytest
from kvferry.errors import ConfigError
from kvferry.vllm import versions


@pytest.mark.parametrize("version", ["0.30.0", "0.31.1", "0.32.0+cpu", "0.33.1", "v0.33.0rc1"])
def test_tested_release_passes_silently(version: str, log_lines: list[str]) -> None:
    versions.check(version)
    assert log_lines == []


@pytest.mark.parametrize("version", ["0.29.9", "0.9.2+cu128", "0.10.0"])
def test_older_release_is_refused_with_the_oldest_allowed(version: str) -> None:
    with pytest.raises(ConfigError, match=r"vLLM is .*allowed is 0\.30 or newer .*upgrade vLLM") as caught:
        versions.check(version)
    assert version in str(caught.value)


@pytest.mark.parametrize("version", ["0.34.0", "1.0.0"])
def test_newer_release_gets_a_warning(version: str, log_lines: list[str]) -> None:
    versions.check(version)
    assert log_lines == [f"WARNING kvferry is not tested with vLLM {version}; it is tested with 0.30 to 0.33"]


def test_version_that_says_nothing_gets_a_warning(log_lines: list[str]) -> None:
    versions.check("dev")
    assert len(log_lines) == 1
    assert "cannot tell the vLLM release from 'dev'" in log_lines[0]


def test_where_vllm_asks_for_the_source_of_a_hit_it_is_told() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    asks = hasattr(KVConnectorBase_V1, "get_external_cache_hit_sources")
    assert versions.host_cache_hit_source() == ("host" if asks else None)


def test_extra_keys_of_events_have_no_tags_in_any_release() -> None:
    from vllm.v1.core import kv_cache_utils

    tags = hasattr(kv_cache_utils, "to_event_extra_keys")
    salted: tuple[object, ...] = (("cache_salt", "pepper"),) if tags else ("pepper",)
    assert versions.event_extra_keys(iter([salted, None])) == [("pepper",), None]


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_the_package_loads_neither_engine_nor_torch() -> None:
    done = run("import sys, kvferry; print(sorted({'vllm', 'torch', 'kvferry._core'} & set(sys.modules)))")
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_importing_the_connector_module_loads_no_engine_before_its_name_is_used() -> None:
    done = run("import sys, kvferry.vllm; print('vllm' in sys.modules)")
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_importing_the_connector_module_without_vllm_says_what_to_install() -> None:
    done = run("import sys; sys.modules['vllm'] = None; import kvferry.vllm")
    assert done.returncode != 0
    assert (
        done.stderr.strip().splitlines()[-1].startswith("ImportError: kvferry.vllm is the connector for vLLM, and vLLM")
    )


def test_unknown_names_are_attribute_errors() -> None:
    import kvferry
    import kvferry.vllm

    with pytest.raises(AttributeError, match="'kvferry' has no attribute 'nothing'"):
        _ = kvferry.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'kvferry\.vllm' has no attribute 'nothing'"):
        _ = kvferry.vllm.nothing  # type: ignore[attr-defined]


def test_version_and_errors_are_those_of_the_core() -> None:
    import kvferry
    from kvferry import _core

    assert kvferry.__version__ == _core.__version__
    assert kvferry.ConfigError is _core.ConfigError
    assert issubclass(kvferry.ConfigError, kvferry.Error)
