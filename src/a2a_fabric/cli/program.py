"""The table of commands and the outermost edge: what a command raises becomes one sentence and an exit code.

0 done · 1 failed · 2 misused · 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

from a2a_fabric.cli import table
from a2a_fabric.cli.table import Row
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, FabricError, Unauthenticated

NAME = "a2a-fabric"

COMMANDS: dict[str, Row] = {
    "up": Row("a2a_fabric.cli.up", "Start a node, with the demo agents if nothing is configured."),
    "mcp": Row("a2a_fabric.cli.mcp", "Speak MCP on stdin and stdout, for clients that start their servers."),
    "call": Row("a2a_fabric.cli.call", "Ask an agent, and watch it work."),
    "messages": Row("a2a_fabric.cli.messages", "Send, receive and acknowledge messages; publish under topics."),
    "jobs": Row("a2a_fabric.cli.jobs", "List, follow, answer, cancel and repeat jobs."),
    "agents": Row("a2a_fabric.cli.agents", "List the agents of a node."),
    "search": Row("a2a_fabric.cli.search", "Find agents for what you want done, and why they fit."),
    "describe": Row("a2a_fabric.cli.describe", "Show everything about one agent."),
    "route": Row("a2a_fabric.cli.route", "Show who would answer a call, in which order, and why."),
    "tools": Row("a2a_fabric.cli.tools", "List the built-in tools, and the agents as tools."),
    "health": Row("a2a_fabric.cli.health", "Show how a node and its agents are."),
    "probe": Row("a2a_fabric.cli.probe", "Find out what speaks at an address or in a program, and add it."),
    "import": Row("a2a_fabric.cli.import_", "Add the MCP servers of other clients' files to agents.yaml."),
    "connect": Row("a2a_fabric.cli.connect", "Add this Fabric to the configuration of an MCP client."),
    "check": Row("a2a_fabric.cli.check", "Check the configuration and show what would run; opens no port."),
    "store": Row("a2a_fabric.cli.store", "Look after the store: migrate it, look at it, move it."),
    "schema": Row("a2a_fabric.cli.schema", "Print the JSON Schema of a configuration file."),
    "version": Row("a2a_fabric.cli.version", "Print the version."),
}


class Commands(table.Commands):
    table = COMMANDS


def load(name: str) -> Any:
    return table.load(name, COMMANDS[name])


app = typer.Typer(
    name=NAME,
    cls=Commands,
    help="The gateway that lets any agent or client talk to any other agent.",
    epilog="First run: a2a-fabric up",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=table.CONTEXT,
)


@app.callback()
def _program() -> None:
    """Nothing before the command."""


def main() -> None:
    """The entry point. Typer itself answers misuse (2), interrupts (130) and readers that left."""
    try:
        app(prog_name=NAME)
    except FabricError as error:
        typer.echo(f"Error: {error.sentence}{_hint(error)}", err=True)
        sys.exit(1)


def _hint(error: FabricError) -> str:
    """What a person may do here, where the node's message speaks to programs as well."""
    is_key = isinstance(error, AuthInvalid | AuthExpired) or error.message == Unauthenticated().message
    return ". Name a key of that node with --token or FABRIC_TOKEN" if is_key else ""
