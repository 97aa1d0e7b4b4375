"""The table of commands and the outermost edge: what a command raises becomes one sentence and an exit code.

0 done · 1 failed · 2 misused · 130 interrupted. A command's module is imported when the command runs,
so that the quick ones stay quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from a2a_fabric.core.errors import FabricError

NAME = "a2a-fabric"


class _Row(NamedTuple):
    module: str
    about: str


COMMANDS: dict[str, _Row] = {
    "up": _Row("a2a_fabric.cli.up", "Start a node, with the demo agents if nothing is configured."),
    "mcp": _Row("a2a_fabric.cli.mcp", "Speak MCP on stdin and stdout, for clients that start their servers."),
    "call": _Row("a2a_fabric.cli.call", "Ask an agent, and watch it work."),
    "agents": _Row("a2a_fabric.cli.agents", "List the agents of a node."),
    "describe": _Row("a2a_fabric.cli.describe", "Show everything about one agent."),
    "route": _Row("a2a_fabric.cli.route", "Show who would answer a call, in which order, and why."),
    "tools": _Row("a2a_fabric.cli.tools", "List the built-in tools, and the agents as tools."),
    "health": _Row("a2a_fabric.cli.health", "Show how a node and its agents are."),
    "import": _Row("a2a_fabric.cli.import_", "Add the MCP servers of other clients' files to agents.yaml."),
    "connect": _Row("a2a_fabric.cli.connect", "Add this Fabric to the configuration of an MCP client."),
    "check": _Row("a2a_fabric.cli.check", "Check the configuration and show what would run; opens no port."),
    "schema": _Row("a2a_fabric.cli.schema", "Print the JSON Schema of a configuration file."),
    "version": _Row("a2a_fabric.cli.version", "Print the version."),
}


class Commands(TyperGroup):
    """Lists commands from the table alone; imports one when it is asked for by name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=row.about) for name, row in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The command itself: `run` of its module, whose docstring is the help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_CONTEXT)
    app.command(name)(import_module(COMMANDS[name].module).run)
    return get_command(app)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name=NAME,
    cls=Commands,
    help="The gateway that lets any agent or client talk to any other agent.",
    epilog="First run: a2a-fabric up",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=_CONTEXT,
)


@app.callback()
def _program() -> None:
    """Nothing before the command."""


def main() -> None:
    """The entry point. Typer itself answers misuse (2), interrupts (130) and readers that left."""
    try:
        app(prog_name=NAME)
    except FabricError as error:
        typer.echo(f"Error: {error.message}", err=True)
        sys.exit(1)
