# SPDX-License-Identifier: Apache-2.0
"""The commands by name. A command exits with 0, with 2 after one line about an error, or as its own help says."""

import sys
from typing import Annotated, Any

import typer

from kvferry.cli.doctor import doctor
from kvferry.cli.plot import plot
from kvferry.cli.recorder import dump, replay, why
from kvferry.cli.size import size
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
app.command(context_settings=_VLLM_OPTIONS)(size)
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


def command() -> Any:
    """Return the program as a command of the library that parses command lines. Its help texts show their brackets."""
    made = typer.main.get_command(app)
    _keep_brackets(made)
    return made


def _keep_brackets(of: Any) -> None:
    """Mark the brackets in help texts as text: rich takes them for markup otherwise, and does not show them."""
    from rich.markup import escape

    for each in (of, *of.params):
        if getattr(each, "help", None):
            each.help = escape(each.help)
    for below in getattr(of, "commands", {}).values():
        _keep_brackets(below)


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process."""
    try:
        command()()
    except Error as error:
        print(f"kvferry: {error}", file=sys.stderr)
        sys.exit(2)
