# SPDX-License-Identifier: Apache-2.0
"""The commands by name. A command exits with 0, with 2 after one line about an error, or as its own help says."""

import sys
from typing import Annotated

import typer

from kvferry.cli.doctor import doctor
from kvferry.cli.plot import plot
from kvferry.cli.recorder import dump, replay, why
from kvferry.cli.tier import tier
from kvferry.cli.top import top
from kvferry.cli.vllm_config import vllm_config
from kvferry.errors import Error

app = typer.Typer(
    name="kvferry",
    help="A CPU tier for the KV cache of LLM engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# Options that these commands do not know are passed to vLLM.
_VLLM_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_VLLM_OPTIONS)(doctor)
app.command("vllm-config", context_settings=_VLLM_OPTIONS)(vllm_config)
app.command()(plot)
app.command()(why)
app.command()(dump)
app.command()(replay)
app.command()(top)
app.add_typer(tier, name="tier")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """A CPU tier for the KV cache of LLM engines."""
    if version:
        import kvferry

        print(kvferry.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process."""
    try:
        app()
    except Error as error:
        print(f"kvferry: {error}", file=sys.stderr)
        sys.exit(2)
