# SPDX-License-Identifier: Apache-2.0
"""``kvferry vllm-config`` prints what vLLM takes, and nothing that an engine here would refuse."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kvferry.cli import main
from kvferry.config import KvFerryConfig
from kvferry.doctor.verdict import judge
from kvferry.vllm import KvFerryConnector
from model_configs import LLAMA, write_model
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.plugins import load_general_plugins

ALONE = {"kv_connector": "KvFerryConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


class Ended(NamedTuple):
    """How the command ended, and what it wrote."""

    code: int
    out: str
    err: str


class Command:
    """The command, in this process, which has imported vLLM."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, name: str = "vllm-config") -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["kvferry", name, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = self._capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out, told.err)

    def argument(self, *arguments: str) -> dict[str, Any]:
        """The JSON that it prints and nothing else."""
        ended = self(*arguments)
        assert ended.code == 0, ended.err
        [line] = ended.out.splitlines()
        return json.loads(line)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return Command(monkeypatch, capsys)


def test_what_it_prints_is_enough_for_vllm_to_find_the_connector(command: Command) -> None:
    argument = command.argument("--size", "8MiB")
    assert argument == ALONE | {"kv_connector_extra_config": {"cpu_bytes_to_use": "8MiB"}}
    load_general_plugins()
    assert KVConnectorFactory.get_connector_class(KVTransferConfig(**argument)) is KvFerryConnector
    assert judge(json.dumps(argument), 1).refusal == ""


def test_keys_are_json_or_text(command: Command) -> None:
    settings = {
        "cpu_bytes_to_use": 8 << 20, "share_loads": False, "eviction": "lru", "max_awaited_share": 0.5,
        "host_link": {"latency_us": 5}, "staging_bytes": "1MiB",
    }  # fmt: skip
    arguments = [
        f"--set={key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()
    ]
    assert command.argument(*arguments)["kv_connector_extra_config"] == settings


def test_shared_tier_has_the_path_of_the_documents_and_the_doctor_takes_it(command: Command) -> None:
    ended = command("--size", "64MiB", "--shared", "--set", "shared_keep=true")
    assert ended.code == 0, ended.err
    extra = json.loads(ended.out)["kv_connector_extra_config"]
    assert extra == {"cpu_bytes_to_use": "64MiB", "shared_path": "/dev/shm/kvferry/tier", "shared_keep": True}
    assert command("--config", ended.out, name="doctor").code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--size", "lots"], "cpu_bytes_to_use is 'lots'; allowed is a whole number of bytes"),
        (["--set", "evicton=lru"], "unknown key 'evicton'; did you mean 'eviction'. valid keys are "),
        (["--set", "eviction=mru"], "eviction is 'mru'; allowed is"),
        (["--set", "share_loads=maybe"], "share_loads is 'maybe'; allowed is true or false"),
        (["--set", "max_awaited_share=NaN"], "max_awaited_share is nan; allowed is"),
        (["--set", "eviction"], "--set is 'eviction'; allowed is KEY=VALUE .* write for example --set eviction=lru"),
        (["--set", "=lru"], "--set is '=lru'; allowed is KEY=VALUE"),
        (["--size", "1GiB", "--set", "cpu_bytes_to_use=2GiB"], "'cpu_bytes_to_use' is set to '1GiB' and to '2GiB'"),
        (["--shared", "--set", "shared_path=/dev/shm/t"], "'shared_path' is set to .* set it once"),
        (["--set", "shared_keep=true"], "shared_keep is set and shared_path is not; set both, or neither"),
        (["--serve"], "--serve is set without a model; allowed is both or neither"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size 2 is for vLLM and needs --model"),
    ],
)
def test_wrong_command_line_ends_with_2_and_one_line_that_says_what_is_allowed(
    command: Command, arguments: list[str], complaint: str
) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    [line] = ended.err.splitlines()
    assert line.startswith("kvferry: ")
    assert re.search(complaint, line), line


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--size", "4000TiB"], "the CPU tier asks for"),
        (["--set", "numa_node=1000", "--world-size", "2"], "1000"),
        (["--set", "numa_node=1000"], "1000"),
        (["--shared", "--size", "4096"], "cpu_bytes_to_use"),
    ],
)
def test_what_this_machine_would_refuse_ends_with_1_and_prints_nothing_to_pass_on(
    command: Command, arguments: list[str], refusal: str
) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.out) == (1, ""), ended.out
    assert ended.err.startswith("kvferry: refused: ")
    assert refusal in ended.err


def test_model_is_asked_as_the_doctor_asks_it(command: Command, tmp_path: Path) -> None:
    model = write_model(tmp_path, LLAMA)
    ended = command("--size", "4096", "--model", model)
    assert (ended.code, ended.out) == (1, "")
    assert "at least one block of the KV cache per rank" in ended.err
    ended = command("--size", "2MiB", "--model", model, "--block-size", "32", "--max-model-len", "2048")
    assert ended.code == 0, ended.err
    assert "less than one request of max_model_len 2048 tokens" in ended.err
    ended = command("--size", "64MiB", "--model", model, "--data-parallel-size", "3")
    assert "3 engines with a tier each take 192.00 MiB on this node" in ended.err
    file = str((tmp_path / "config.json").rename(tmp_path / "some-model.json"))
    ended = command("--size", "64MiB", "--model", file)
    assert ended.code == 0, ended.err
    ended = command("--size", "64MiB", "--model", file, "--serve")
    assert (ended.code, ended.out) == (2, "")
    assert f"--serve is set with the file {file}, which `vllm serve` does not take" in ended.err
    ended = command("--size", "64MiB", "--model", str(tmp_path / "nothing"))
    assert (ended.code, ended.out) == (2, "")
    assert "a directory with config.json" in ended.err


def test_whole_line_is_quoted_for_a_shell(command: Command, tmp_path: Path) -> None:
    model = write_model(tmp_path / "it's a model; rm", LLAMA)
    options = ["--block-size", "32", "--tensor-parallel-size=2"]
    ended = command("--size", "256MiB", "--serve", "--model", model, *options)
    assert ended.code == 0, ended.err
    [line] = ended.out.splitlines()
    *first, argument = shlex.split(line)
    assert first == ["vllm", "serve", model, *options, "--kv-transfer-config"]
    assert json.loads(argument) == ALONE | {"kv_connector_extra_config": {"cpu_bytes_to_use": "256MiB"}}


def test_where_plugins_are_left_out_it_prints_the_module_path_and_says_why(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    ended = command("--size", "8MiB")
    assert ended.code == 0
    assert json.loads(ended.out)["kv_connector_module_path"] == "kvferry.vllm"
    assert ended.err.startswith("kvferry: note: VLLM_PLUGINS is 'another' and leaves 'kvferry' out")


def test_size_may_be_left_to_the_default(command: Command) -> None:
    ended = command("--set", "allow_smaller_tier=true")
    assert ended.code == 0, ended.err
    extra = json.loads(ended.out)["kv_connector_extra_config"]
    assert KvFerryConfig.from_extra_config(extra).cpu_bytes_to_use == 8 << 30
