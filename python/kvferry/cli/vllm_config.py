# SPDX-License-Identifier: Apache-2.0
"""``kvferry vllm-config``: prints vLLM's argument that turns the tier on, after an engine's own checks."""

import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry.cli.doctor import REFUSED, Model, WorldSize, examine_model, judge_for
from kvferry.config import KvFerryConfig
from kvferry.doctor.plugin import examine_plugin
from kvferry.errors import ConfigError
from kvferry.settings import shown

SHARED_PATH = "/dev/shm/kvferry/tier"


def vllm_config(
    context: typer.Context,
    size: Annotated[
        str | None,
        typer.Option(help="Host memory of the tier on this node, such as 64GiB: the key cpu_bytes_to_use."),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option("--shared", help=f"One tier for all engines of this node: the key shared_path, {SHARED_PATH}."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of kv_connector_extra_config; JSON, or text. Repeat."),
    ] = None,
    model: Model = None,
    world_size: WorldSize = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Print the whole command: `vllm serve` with --model and its options.")
    ] = False,
) -> None:
    """Print the value of vLLM's --kv-transfer-config, if an engine here would accept it.

    Exits with 1, and prints nothing, if this machine or the model would refuse it. Reasons and notes go to stderr.
    """
    if serve and model is None:
        raise ConfigError("--serve is set without a model; allowed is both or neither: add --model, or remove --serve")
    if serve and model is not None and Path(model).is_file():
        raise ConfigError(
            f"--serve is set with the file {model}, which `vllm serve` does not take; allowed is a model's directory "
            "or name: name that, or remove --serve"
        )
    extra = _extra_config(size, shared, settings or [])
    KvFerryConfig.from_extra_config(extra)
    plugin = examine_plugin(os.environ)
    notes = [] if plugin.verdict == "ok" else [plugin.detail]
    argument = json.dumps(_transfer_config(extra, by_name=not notes))
    report = examine_model(model, context.args, argument)
    verdict = judge_for(report, argument, world_size)
    if refusals := [each.refusal for each in (verdict, report) if each is not None and each.refusal]:
        _say("refused", refusals)
        raise typer.Exit(REFUSED)
    _say("note", [*notes, *verdict.notes, *(report.notes if report else [])])
    options = ["--kv-transfer-config", argument]
    print(shlex.join(["vllm", "serve", str(model), *context.args, *options]) if serve else argument)


def _transfer_config(extra: dict[str, Any], *, by_name: bool) -> dict[str, Any]:
    return {
        "kv_connector": "KvFerryConnector",
        **({} if by_name else {"kv_connector_module_path": "kvferry.vllm"}),
        "kv_role": "kv_both",
        # The tier is a cache: if a load fails, its tokens are computed.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def _extra_config(size: str | None, shared: bool, settings: Iterable[str]) -> dict[str, Any]:
    """Collect the keys and values.

    Raises
    ------
    ConfigError
        A setting does not have the form KEY=VALUE, or a key is given twice.

    """
    given = [] if size is None else [("cpu_bytes_to_use", size)]
    if shared:
        given.append(("shared_path", SHARED_PATH))
    given += map(_read_setting, settings)
    extra: dict[str, Any] = {}
    for key, value in given:
        if key in extra:
            raise ConfigError(
                f"{shown(key)} is set to {shown(extra[key])} and to {shown(value)}; set it once, by --set or by its "
                "own option (--size, --shared); remove one of them"
            )
        extra[key] = value
    return extra


def _read_setting(text: str) -> tuple[str, Any]:
    key, is_set, value = text.partition("=")
    if not is_set or not key:
        raise ConfigError(
            f"--set is {shown(text)}; allowed is KEY=VALUE with a key of kv_connector_extra_config; write for example "
            "--set eviction=lru"
        )
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _say(what: str, lines: Iterable[str]) -> None:
    """Print lines for people to stderr; programs read the answer on stdout."""
    for line in lines:
        print(f"kvferry: {what}: {line}", file=sys.stderr)
