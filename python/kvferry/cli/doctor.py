# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor``: shows what this machine offers, and whether an engine on it would accept a configuration."""

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.cli.console import console
from kvferry.config import MAX_RANKS
from kvferry.doctor.findings import examine
from kvferry.doctor.pinning import examine_pinning
from kvferry.doctor.verdict import Verdict, adapter_params_of, complaint_of, judge, read_json
from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from kvferry.vllm.model_report import ModelReport

REFUSED = 1
"""Exit status of a command if an engine would refuse the configuration or the model."""

Model = Annotated[
    str | None,
    typer.Option(
        help="A model as for `vllm serve`, or its configuration file (JSON): would it be accepted, and how large are "
        "its blocks? Options of `vllm serve` may follow, such as --tensor-parallel-size 2. Needs vLLM; loads no "
        "weights and uses no GPU."
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_RANKS, help="Ranks of the engine on this node. Default: 1, or as in --model."),
]


def doctor(
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            help="kv_connector_extra_config, or all of --kv-transfer-config, or LMCache's adapter_params, as JSON: "
            "would it be accepted? @FILE reads it from a file, and - from standard input."
        ),
    ] = None,
    model: Model = None,
    world_size: WorldSize = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine offers for kvferry. Exits with 1 if the configuration or the model would be refused."""
    text = None if config is None else read_argument(config)
    # vLLM is slow to import, and would refuse such a configuration in other words.
    is_readable = text is None or not complaint_of(text)
    report = examine_model(model, context.args, text) if is_readable else None
    findings = examine()
    verdict = None if text is None else judge_for(report, text, world_size)
    pinned = examine_pinning(findings.limits, findings.memlock_bytes, verdict, bool(findings.usable_devices))
    if as_json:
        told = {
            **dataclasses.asdict(findings),
            "pinned_memory": [*map(dataclasses.asdict, pinned)],
            "verdict": verdict and dataclasses.asdict(verdict),
            "model": report and dataclasses.asdict(report),
        }
        print(json.dumps(told, indent=2))
    else:
        from kvferry.doctor.view import show

        show(console(), findings, pinned, verdict, report)
    if (verdict is not None and verdict.refusal) or (report is not None and report.refusal):
        raise typer.Exit(REFUSED)


def read_argument(argument: str) -> str:
    """Return the text that an option gives: itself, of a file (``@FILE``) or of standard input (``-``).

    Raises
    ------
    ConfigError
        The file cannot be read.

    """
    if argument == "-":
        return sys.stdin.read()
    if not argument.startswith("@"):
        return argument
    try:
        return Path(argument[1:]).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{argument} names a file that cannot be read: {error}; allowed is the path of a text file after the @"
        ) from None


def judge_for(report: "ModelReport | None", text: str, world_size: int | None) -> Verdict:
    """Judge a configuration for the ranks and engines of a model, or for one rank; `world_size` overrides the ranks."""
    if report is None:
        return judge(text, world_size or 1)
    return judge(text, world_size or report.num_local_ranks, report.num_local_engines)


def examine_model(model: str | None, options: list[str], config: str | None) -> "ModelReport | None":
    """Examine the model of a command line, if it names one.

    Parameters
    ----------
    model
        As ``vllm serve`` takes it, or a model's configuration file.
    options
        Options of ``vllm serve`` for this model.
    config
        JSON, as `kvferry.doctor.verdict.judge` takes it.

    Raises
    ------
    ConfigError
        There are options but no model, vLLM is not installed, or vLLM cannot make an engine from the options.

    """
    given = read_json(config or "{}")
    if model is None:
        if options:
            raise ConfigError(f"{' '.join(options)} is for vLLM and needs --model; name the model too, or remove it")
        return None
    if adapter_params_of(given) is not None:
        raise ConfigError("--config is for LMCache's server, which has no model; leave --model out")
    # Set before vLLM is imported: its log lines are not part of the answer.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if find_spec("vllm") is None:
        raise ConfigError(
            "--model needs vLLM, which is not installed for this Python; install it, or leave --model out"
        )
    from kvferry.vllm.model_report import report_on

    with _directory_of(model) as directory:
        try:
            report = report_on(directory, options, given)
        except ConfigError as error:
            raise ConfigError(str(error).replace(directory, model)) from error
    return dataclasses.replace(report, model=model)


@contextmanager
def _directory_of(model: str) -> Iterator[str]:
    """Provide the model as vLLM takes it: a configuration file in a directory of its own."""
    if not Path(model).is_file():
        yield model
        return
    if Path(model).name == "config.json":
        yield str(Path(model).parent)
        return
    with tempfile.TemporaryDirectory(prefix="kvferry-") as directory:
        shutil.copyfile(model, Path(directory) / "config.json")
        yield directory
