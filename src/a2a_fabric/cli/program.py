"""The commands of `a2a-fabric`, listed in tables and imported on use, and the exit codes.

A row names a module and the function in it that is the command; the function's
docstring is the help. The groups `jobs`, `messages` and `store` have tables of their
own. So a quick command never pays for the imports of a slow one.

Exit codes: 0 done · 1 failed · 2 misused · 130 interrupted."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, FabricError, Unauthenticated

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommandRow(NamedTuple):
    """One command. A group has a class of its own and, as its function, what carries the help text."""

    module: str
    about: str
    function: str = "run"
    group: type[CommandGroup] | None = None


class CommandGroup(TyperGroup):
    """`table` is each group's own; `default` is run when no command is named."""

    rows: ClassVar[dict[str, CommandRow]] = {}
    default: ClassVar[str | None] = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=row.about) for name, row in self.rows.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in CONTEXT["help_option_names"])  # type: ignore[operator]  # a list
        if self.default is not None and not is_named and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name, self.rows[name]) if name in self.rows else command, rest


def load_command(name: str, row: CommandRow) -> Any:
    """Import the command and build it."""
    function = getattr(import_module(row.module), row.function)
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, no_args_is_help=row.group is not None
    )
    if row.group is None:
        app.command(name)(function)
    else:
        app.callback(cls=row.group)(function)
    return get_command(app)


class JobCommands(CommandGroup):
    default = "list"
    rows: ClassVar = {
        "list": CommandRow("a2a_fabric.cli.jobs", "List your jobs, newest first.", "list_jobs"),
        "show": CommandRow("a2a_fabric.cli.jobs", "Show a job, its log and its result.", "show_job"),
        "follow": CommandRow(
            "a2a_fabric.cli.follow", "Watch a job until it ends; Ctrl-C leaves it alone.", "follow_job"
        ),
        "answer": CommandRow(
            "a2a_fabric.cli.jobs", "Answer what a job's agent wants to know, so that it goes on.", "answer_job"
        ),
        "cancel": CommandRow("a2a_fabric.cli.jobs", "Cancel jobs; their agents are told.", "cancel_jobs"),
        "retry": CommandRow("a2a_fabric.cli.jobs", "Run an ended job's call again, as a new job.", "retry_job"),
        "prune": CommandRow("a2a_fabric.cli.store", "Remove ended jobs from the store.", "prune_jobs"),
    }


def _jobs() -> None:
    """List, follow, answer, cancel and repeat jobs.

    A job is a call that the node has written down: it outlives connections and restarts.

    Example: a2a-fabric jobs --state running
    """


class MessageCommands(CommandGroup):
    default = "receive"
    rows: ClassVar = {
        "send": CommandRow("a2a_fabric.cli.messages", "Put a message into an agent's inbox.", "send_message"),
        "receive": CommandRow("a2a_fabric.cli.messages", "Fetch what waits in an inbox.", "receive_messages"),
        "ack": CommandRow(
            "a2a_fabric.cli.messages", "Be done with messages that were received.", "acknowledge_messages"
        ),
        "publish": CommandRow(
            "a2a_fabric.cli.messages", "Put a message into every inbox that subscribed to a topic.", "publish_message"
        ),
        "subscribe": CommandRow(
            "a2a_fabric.cli.messages", "Let an inbox get what is published under a topic.", "subscribe_inbox"
        ),
        "status": CommandRow(
            "a2a_fabric.cli.messages", "Show what became of a message to an agent, and why.", "show_message_status"
        ),
        "queue": CommandRow("a2a_fabric.cli.messages", "Show how much waits in an inbox.", "show_queue"),
    }


def _messages() -> None:
    """Send, receive and acknowledge messages; publish under topics.

    What is received and not acknowledged comes again.

    Example: a2a-fabric messages send percy '{"note": "call me"}'
    """


class StoreCommands(CommandGroup):
    rows: ClassVar = {
        "status": CommandRow(
            "a2a_fabric.cli.store", "Show what is in the store, and whether its schema is current.", "show_store_status"
        ),
        "migrate": CommandRow("a2a_fabric.cli.store", "Bring the store's schema up to date.", "migrate_store"),
        "export": CommandRow("a2a_fabric.cli.store", "Write everything in the store as JSON lines.", "export_store"),
        "import": CommandRow(
            "a2a_fabric.cli.store", "Read an export into the store; what is there stays.", "import_store"
        ),
    }


def _store() -> None:
    """Look after the store: migrate it, look at it, move it.

    The store keeps jobs, registered agents and messages. These commands open it themselves: no node is needed, and
    one that runs is not disturbed.

    Example: a2a-fabric store status
    """


NAME = "a2a-fabric"

COMMANDS: dict[str, CommandRow] = {
    "up": CommandRow("a2a_fabric.cli.up", "Start a node, with the demo agents if nothing is configured."),
    "mcp": CommandRow("a2a_fabric.cli.mcp", "Speak MCP on stdin and stdout, for clients that start their servers."),
    "call": CommandRow("a2a_fabric.cli.call", "Ask an agent, and watch it work."),
    "messages": CommandRow(
        "a2a_fabric.cli.program",
        "Send, receive and acknowledge messages; publish under topics.",
        "_messages",
        MessageCommands,
    ),
    "jobs": CommandRow("a2a_fabric.cli.program", "List, follow, answer, cancel and repeat jobs.", "_jobs", JobCommands),
    "agents": CommandRow("a2a_fabric.cli.agents", "List the agents of a node."),
    "search": CommandRow("a2a_fabric.cli.search", "Find agents for what you want done, and why they fit."),
    "describe": CommandRow("a2a_fabric.cli.describe", "Show everything about one agent."),
    "route": CommandRow("a2a_fabric.cli.route", "Show who would answer a call, in which order, and why."),
    "tools": CommandRow("a2a_fabric.cli.tools", "List the built-in tools, and the agents as tools."),
    "health": CommandRow("a2a_fabric.cli.health", "Show how a node and its agents are."),
    "probe": CommandRow("a2a_fabric.cli.probe", "Find out what speaks at an address or in a program, and add it."),
    "import": CommandRow("a2a_fabric.cli.import_", "Add the MCP servers of other clients' files to agents.yaml."),
    "connect": CommandRow("a2a_fabric.cli.connect", "Add this Fabric to the configuration of an MCP client."),
    "check": CommandRow("a2a_fabric.cli.check", "Check the configuration and show what would run; opens no port."),
    "store": CommandRow(
        "a2a_fabric.cli.program", "Look after the store: migrate it, look at it, move it.", "_store", StoreCommands
    ),
    "schema": CommandRow("a2a_fabric.cli.schema", "Print the JSON Schema of a configuration file."),
    "version": CommandRow("a2a_fabric.cli.version", "Print the version."),
}


class RootCommands(CommandGroup):
    rows = COMMANDS


def load_by_name(name: str) -> Any:
    return load_command(name, COMMANDS[name])


app = typer.Typer(
    name=NAME,
    cls=RootCommands,
    help="The gateway that lets any agent or client talk to any other agent.",
    epilog="First run: a2a-fabric up",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=CONTEXT,
)


@app.callback()
def _program() -> None:
    """Nothing before the command."""


def main() -> None:
    """The entry point. Typer itself answers misuse (2), interrupts (130) and readers that left."""
    try:
        app(prog_name=NAME)
    except FabricError as error:
        typer.echo(f"Error: {error.full_message}{_hint(error)}", err=True)
        sys.exit(1)


def _hint(error: FabricError) -> str:
    """What a person may do here, where the node's message speaks to programs as well."""
    is_key = isinstance(error, AuthInvalid | AuthExpired) or error.message == Unauthenticated().message
    return ". Name a key of that node with --token or FABRIC_TOKEN" if is_key else ""
