# SPDX-License-Identifier: Apache-2.0
"""``kvferry doctor``: what this machine has for kvferry, and whether a configuration would be accepted."""

import dataclasses
import json
from typing import Annotated

import typer

from kvferry.config import MAX_RANKS
from kvferry.doctor.findings import examine
from kvferry.doctor.pinning import examine_pinning
from kvferry.doctor.verdict import judge

_REFUSED = 1


def doctor(
    config: Annotated[
        str | None,
        typer.Option(help="kv_connector_extra_config (or all of --kv-transfer-config) as JSON: would it be accepted?"),
    ] = None,
    world_size: Annotated[int, typer.Option(min=1, max=MAX_RANKS, help="Ranks of the engine on this node.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine has for kvferry. Ends with 1 if the configuration would be refused."""
    findings = examine()
    verdict = None if config is None else judge(config, world_size)
    has_gpu = any(not why_not for name, why_not in findings.backends.items() if name != "host")
    pinned = examine_pinning(findings.limits, findings.memlock_bytes, verdict, has_gpu)
    if as_json:
        told = {
            **dataclasses.asdict(findings),
            "pinned_memory": [*map(dataclasses.asdict, pinned)],
            "verdict": verdict and dataclasses.asdict(verdict),
        }
        print(json.dumps(told, indent=2))
    else:
        from rich.console import Console

        from kvferry.doctor.view import show

        show(Console(highlight=False), findings, pinned, verdict)
    if verdict is not None and verdict.refusal:
        raise typer.Exit(_REFUSED)
