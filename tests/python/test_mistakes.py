# SPDX-License-Identifier: Apache-2.0
"""Nineteen mistakes that people make: the doctor gives the engine's answer, first, with a remedy, without waiting."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import text_of
from kvferry.doctor import drivers, verdict
from kvferry.doctor.drivers import Answer, Device
from kvferry.doctor.verdict import judge
from kvferry.errors import ConfigError
from kvferry.lmcache.client import KvFerryClient
from kvferry.vllm.callers import argument_of
from model_configs import LLAMA, write_model
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

PROGRAM = "from kvferry.cli import main; main()"
# A machine with one GPU for which the wheel has no kernels.
OTHER_GPU = (
    "from kvferry.doctor import drivers as d; "
    "gpu = d.Device('Some GPU', 'sm_70', 'driver 580', '0000:c1:00.0', ''); "
    "d.answers = lambda: {'cuda': d.Answer('', [gpu]), 'hip': d.Answer('no library', [])}; "
)
# More than the seconds that a command takes; it measures the processor's time, because a machine can be busy.
MOST_SECONDS = 10


def whole(extra: object = None, **changes: object) -> dict[str, Any]:
    argument = {
        "kv_connector": "KvFerryConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "2MiB"} if extra is None else extra,
    }
    return {key: value for key, value in {**argument, **changes}.items() if value is not None}


def misspelt(right: str, wrong: str) -> dict[str, Any]:
    return {wrong if key == right else key: value for key, value in whole().items()}


# What vLLM reads: the mistake, and in order what the answer has to say.
OF_VLLM: dict[str, tuple[Any, list[str]]] = {
    "a role for one direction": (whole(kv_role="kv_producer"), ["kv_role is 'kv_producer'", "set kv_both"]),
    "no role": (whole(kv_role=None), ["kv_role is None", "set kv_both"]),
    "misspelt kv_connector_extra_config": (
        misspelt("kv_connector_extra_config", "kv_connector_extra_confg"),
        ["unknown key 'kv_connector_extra_confg'", "did you mean 'kv_connector_extra_config'?"],
    ),
    "the keys as text": (whole(extra='{"cpu_bytes_to_use": "2MiB"}'), ["is '{", "allowed is a JSON object"]),
    "misspelt connector": (whole(kv_connector="KVFerryConnector"), ["'KVFerryConnector'", "write 'kv_connector'"]),
    "misspelt module": (whole(kv_connector_module_path="kvferry.vlm"), ["'kvferry.vlm'", "leave it out"]),
    "misspelt policy": (whole(kv_load_failure_policy="recompte"), ["'recompte'", "'recompute'"]),
    "misspelt key": (
        whole({"cpu_byte_to_use": 4096}), ["unknown key 'cpu_byte_to_use'", "did you mean 'cpu_bytes_to_use'?", "keys"]
    ),
    "misspelt value": (whole({"eviction": "lur"}), ["eviction is 'lur'", "'lru'", "leave the key out"]),
    "a unit that is none": (whole({"cpu_bytes_to_use": "64gigs"}), ["is '64gigs'", "'8GiB' or '8Gi'", "write for"]),
    "8 bytes": (whole({"cpu_bytes_to_use": 8}), ["is 8;", "without a unit is bytes", "'8GiB'"]),
    "another connector's keys": (
        whole({"spec_name": "CPUOffloadingSpec", "block_size": 64}), ["unknown key 'spec_name'", "remove it"]
    ),
    "a key of a shared tier without its path": (whole({"shared_keep": True}), ["shared_keep is set", "set both"]),
    "a path that is not absolute": (whole({"shared_path": "kvferry/tier"}), ["'kvferry/tier'", "/dev/shm/kvferry/"]),
}  # fmt: skip
# What only the machine can say.
OF_MACHINE: dict[str, tuple[Any, list[str]]] = {
    "a path on a disk": (whole({"shared_path": "/var/tmp/none/tier"}), ["neither a tmpfs nor", "/dev/shm/kvferry/"]),
    "a path without its parents": (
        whole({"shared_path": "/dev/shm/kvferry-none/a/b"}), ["no directory /dev/shm/kvferry-none", "mkdir -p"]
    ),
    "more memory than there is": (whole({"cpu_bytes_to_use": "4000TiB"}), ["asks for", "but", "ask for less"]),
}  # fmt: skip
OF_LMCACHE: dict[str, tuple[Any, list[str]]] = {
    "misspelt adapter_params": (
        {
            "type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvFerryClient",
            "adapter_params": {"capcity": "8GiB"},
        },
        ["adapter_params: unknown key 'capcity'", "did you mean 'capacity'?"],
    ),
}  # fmt: skip
NO_KERNELS = (whole({"backend": "cuda"}), ["this build has no kernels for sm_70", "KVFERRY_CUDA_ARCHITECTURES=70"])
MISTAKES = OF_VLLM | OF_MACHINE | OF_LMCACHE | {"a wheel without kernels for this GPU": NO_KERNELS}


def test_there_are_nineteen() -> None:
    assert len(MISTAKES) == 19


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_line_says_what_is_wrong_and_what_to_do(mistake: str) -> None:
    config, said = MISTAKES[mistake]
    program = (OTHER_GPU if config is NO_KERNELS[0] else "") + PROGRAM
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [sys.executable, "-c", program, "doctor", "--config", "-"], input=json.dumps(config), capture_output=True,
        text=True, check=False, env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 1, run.stderr
    first = run.stdout.splitlines()[0]
    assert first.startswith("REFUSED ")
    position = 0
    for words in said:
        position = first.find(words, position)
        assert position >= 0, (words, first)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_SECONDS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"), LLAMA)


def start(model: str, argument: dict[str, Any]) -> None:
    """Do what the API server does with its arguments before it starts an engine process."""
    EngineArgs(
        model=model, skip_tokenizer_init=True, kv_transfer_config=KVTransferConfig(**argument)
    ).create_engine_config()


@pytest.mark.parametrize("by", ["name", "module"])
def test_a_right_configuration_passes_the_engines_check(model: str, by: str) -> None:
    start(model, whole(kv_connector_module_path="kvferry.vllm" if by == "module" else None))


@pytest.mark.parametrize("mistake", OF_VLLM)
@pytest.mark.parametrize("by", ["name", "module"])
def test_the_engine_refuses_it_before_a_process_starts(model: str, mistake: str, by: str) -> None:
    argument = dict(OF_VLLM[mistake][0])
    if by == "module":
        argument.setdefault("kv_connector_module_path", "kvferry.vllm")
    with pytest.raises(Exception) as refused:  # noqa: PT011  # each of vLLM's own checks has an error of its own
        start(model, argument)
    if isinstance(refused.value, ConfigError):
        assert judge(json.dumps(argument), 1).refusal == str(refused.value)


def test_a_child_of_several_connectors_is_checked_too(model: str) -> None:
    def several(child: dict[str, Any]) -> dict[str, Any]:
        return whole(kv_connector="MultiConnector", extra={"connectors": [child]})

    start(model, several(whole()))
    assert judge(json.dumps(several(whole())), 1).refusal == ""
    for mistake in ("misspelt key", "a role for one direction"):
        argument = several(OF_VLLM[mistake][0])
        with pytest.raises(ConfigError) as refused:
            start(model, argument)
        assert judge(json.dumps(argument), 1).refusal == str(refused.value)
    without_role = {key: value for key, value in several(whole()).items() if key != "kv_role"}
    assert "kv_role is None" in judge(json.dumps(without_role), 1).refusal
    without = several({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"})
    assert "add it" in judge(json.dumps(without), 1).refusal


def test_a_connector_without_the_plugin_is_refused_unless_its_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    by_module = whole(kv_connector_module_path="kvferry.vllm")
    several = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
    for right, is_accepted in ((whole(), False), (by_module, True)):
        for argument in (right, several | {"kv_connector_extra_config": {"connectors": [right]}}):
            refusal = judge(json.dumps(argument), 1).refusal
            assert (refusal == "") == is_accepted
            assert is_accepted or "add kvferry to VLLM_PLUGINS" in refusal


@pytest.mark.parametrize(
    ("config", "is_for_cpus", "is_refused"),
    [({}, False, True), ({}, True, False), ({"backend": "host"}, False, False), ({"backend": "cuda"}, True, True)],
)
def test_kernels_are_needed_where_the_engines_cache_is(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, str], is_for_cpus: bool, is_refused: bool
) -> None:
    gpu = Device("Some GPU", "sm_70", "driver 580", "", "")
    monkeypatch.setattr(drivers, "answers", lambda: {"cuda": Answer("", [gpu]), "hip": Answer("no library", [])})
    monkeypatch.setattr(verdict, "vllm_is_for_cpus", lambda: is_for_cpus)
    refusal = judge(json.dumps({"cpu_bytes_to_use": "2MiB", **config}), 1).refusal
    assert ("this build has no kernels for sm_70 (Some GPU)" in refusal) == is_refused
    assert is_refused or refusal == ""


def test_lmcaches_server_gives_the_same_answer() -> None:
    params = OF_LMCACHE["misspelt adapter_params"][0]["adapter_params"]
    with pytest.raises(ConfigError) as refused:
        KvFerryClient(**params)
    assert judge(json.dumps(params), 1).refusal != "", "without its name it can be a configuration for vLLM"
    assert judge(json.dumps(OF_LMCACHE["misspelt adapter_params"][0]), 1).refusal == str(refused.value)


@pytest.mark.parametrize("wrong", [{"type": "plugin"}, {"module_path": "kvferry"}, {"class_name": "Client"}])
def test_the_rest_of_lmcaches_argument_is_checked(wrong: dict[str, str]) -> None:
    right = {
        "type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvFerryClient",
        "adapter_params": {"capacity": "2MiB"},
    }  # fmt: skip
    assert judge(json.dumps(right), 1).refusal == ""
    assert judge(json.dumps(right["adapter_params"]), 1).bytes_per_rank == 2 << 20
    [(key, value)] = wrong.items()
    assert f"{key} is {value!r}" in judge(json.dumps(right | wrong), 1).refusal


def test_no_kernels_is_said_in_the_engines_words() -> None:
    assert "this build has no kernels for " in text_of("gpu/src/driver/driver_kernels.cpp")


def test_a_configuration_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from kvferry.cli import main

    file = tmp_path / "config.json"
    file.write_text(json.dumps(whole({"evicton": "lru"})))
    for argument, code, said in ((f"@{file}", 1, "'evicton'"), (f"@{tmp_path}/none", 2, "No such file")):
        monkeypatch.setattr(sys, "argv", ["kvferry", "doctor", "--config", argument])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
        out, err = capsys.readouterr()
        assert said in (out if code == 1 else err)


def test_the_innermost_call_with_such_an_argument_is_found() -> None:
    def get_class(given: object) -> object:
        return argument_of("get_class", "given", int)

    def outer(given: object) -> object:
        def get_class(given: object) -> object:
            return argument_of("get_class", "given", int)

        assert given == 1
        return get_class("text")

    assert get_class(1) == 1
    assert outer(1) is None
    assert argument_of("nowhere", "given", int) is None


def test_keys_of_vllms_argument_are_those_of_this_release() -> None:
    import dataclasses

    import vllm
    from kvferry import transfer_config

    assert set(transfer_config.keys_of(vllm.__version__)) == {
        each.name for each in dataclasses.fields(KVTransferConfig)
    }
