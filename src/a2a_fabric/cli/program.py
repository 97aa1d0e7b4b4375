"""The commands of `a2a-fabric`, listed in tables and imported on use, and the exit codes.

A row names a module and the function in it that is the command; the docstring of the function is the help. A group such
as `jobs` is a class with a table of its own, and its docstring is the help. A quick command never waits for the imports
of a slow one.

Exit codes: 0 done · 1 failed · 2 misused · 130 interrupted."""

from __future__ import annotations

import gc
import inspect
import sys
from importlib import import_module
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, FabricError, Unauthenticated
from a2a_fabric.core.held_signals import hold_signals
from a2a_fabric.version import PROTOCOL_VERSION, __version__

NAME = "a2a-fabric"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommandRow(NamedTuple):
    """One command: its module in this package. The row of a group has a class instead."""

    module: str
    about: str
    function: str = "run"
    group: type[CommandGroup] | None = None
    holds_signals: bool = False  # from before its imports: it handles them later


class CommandGroup(TyperGroup):
    """Commands by name. `default` is the command that runs when none is named."""

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
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, no_args_is_help=row.group is not None
    )
    if row.group is not None:
        app.callback(cls=row.group, help=row.group.__doc__)(_do_nothing)
        return get_command(app)
    if row.holds_signals:
        hold_signals()
    gc.disable()  # imports make many objects and no garbage
    app.command(name)(getattr(import_module(f"{__package__}.{row.module}"), row.function))
    gc.freeze()
    gc.enable()
    return get_command(app)


def _do_nothing() -> None:
    """A group by itself does nothing."""


def group_row(group: type[CommandGroup]) -> CommandRow:
    """The row of a group, with the first line of its help."""
    return CommandRow("program", inspect.cleandoc(group.__doc__ or "").partition("\n")[0], group=group)


class JobCommands(CommandGroup):
    """List, follow, answer, cancel and retry jobs.

    A job is a call that the node has stored: it survives lost connections and restarts.

    Example: a2a-fabric jobs --state running
    """

    default = "list"
    rows: ClassVar = {
        "list": CommandRow("jobs", "List your jobs, newest first.", "list_jobs"),
        "show": CommandRow("jobs", "Show a job, its log and its result.", "show_job"),
        "follow": CommandRow("follow", "Follow a job until it ends.", "follow_job"),
        "answer": CommandRow("jobs", "Answer the questions of a job's agent, so that the job goes on.", "answer_job"),
        "cancel": CommandRow("jobs", "Cancel jobs, and the work of their agents.", "cancel_jobs"),
        "retry": CommandRow("jobs", "Run the call of an ended job again, as a new job.", "retry_job"),
        "prune": CommandRow("store", "Remove ended jobs from the store.", "prune_jobs"),
    }


class AgentCommands(CommandGroup):
    """List the agents of a node, switch them on and off; make and check folders.

    Example: a2a-fabric agents --capability summarize
    """

    default = "list"
    rows: ClassVar = {
        "list": CommandRow("agents", "List the agents of a node.", "list_agents"),
        "enable": CommandRow("agents", "Switch an agent on that was switched off.", "enable_agent"),
        "disable": CommandRow("agents", "Switch an agent off: it is neither listed nor called.", "disable_agent"),
        "lint": CommandRow("federation", "Check cards, folders and registries.", "lint_agents"),
        "new": CommandRow("federation", "Make the folder of a new agent.", "new_agent"),
        "add": CommandRow("federation", "Enter an agent into a registry.", "add_agent"),
        "export": CommandRow("federation", "Write any agent of a node as a folder.", "export_agent"),
    }


class RegistryCommands(CommandGroup):
    """Show, index and upgrade a registry.json.

    Example: a2a-fabric registry show
    """

    rows: ClassVar = {
        "show": CommandRow("registry", "Show the agents, skills and routing of a registry.", "show_registry"),
        "index": CommandRow("registry", "Rebuild the index of skills.", "index_skills"),
        "upgrade": CommandRow("registry", "Write a registry of version 1.0 or 2.0 as 3.0.", "upgrade_registry"),
    }


class MessageCommands(CommandGroup):
    """Send, receive and acknowledge messages; publish to topics.

    A message that is received and not acknowledged is delivered again.

    Example: a2a-fabric messages send percy '{"note": "call me"}'
    """

    default = "receive"
    rows: ClassVar = {
        "send": CommandRow("messages", "Put a message into an agent's inbox.", "send_message"),
        "receive": CommandRow("messages", "Receive the messages of an inbox.", "receive_messages"),
        "ack": CommandRow("messages", "Acknowledge messages that were received.", "ack_messages"),
        "publish": CommandRow(
            "messages", "Put a message into every inbox that subscribed to a topic.", "publish_message"
        ),
        "subscribe": CommandRow("messages", "Subscribe an inbox to a topic, or unsubscribe it.", "subscribe_inbox"),
        "status": CommandRow("messages", "Show whether a message was delivered, and why not.", "show_message_status"),
        "queue": CommandRow("messages", "Show how many messages wait in an inbox.", "show_queue"),
    }


class StoreCommands(CommandGroup):
    """Inspect, migrate, export and import the store.

    The store keeps jobs, registered agents and messages. These commands open it themselves: they need no node, and
    a running node goes on.

    Example: a2a-fabric store status
    """

    rows: ClassVar = {
        "status": CommandRow(
            "store", "Show what is in the store, and whether its schema is current.", "show_store_status"
        ),
        "migrate": CommandRow("store", "Bring the store's schema up to date.", "migrate_store"),
        "export": CommandRow("store", "Write everything in the store as JSON lines.", "export_store"),
        "import": CommandRow("store", "Read an export into the store; existing records stay.", "import_store"),
    }


class ToolCommands(CommandGroup):
    """List, disable and approve the tools of a node.

    Example: a2a-fabric tools list --provider agent
    """

    default = "list"
    rows: ClassVar = {
        "list": CommandRow("tools", "List the built-in tools, and the agents as tools.", "list_tools"),
        "disable": CommandRow("tools", "Leave tools of an agent out: neither listed nor called.", "disable_tools"),
        "enable": CommandRow("tools", "List tools again that were disabled.", "enable_tools"),
        "diff": CommandRow("tools", "Show how tools changed since they were approved.", "show_changes"),
        "approve": CommandRow("tools", "Accept what changed tools say now.", "approve_tools"),
    }


class KeyCommands(CommandGroup):
    """Make, list, rotate and revoke keys of callers.

    The store keeps their hashes. These commands open it themselves: they need no node, and a running node notices at
    once. With --url they ask the node instead.

    Example: a2a-fabric keys create reader --scope agent:percy
    """

    default = "list"
    rows: ClassVar = {
        "create": CommandRow("keys", "Make a key for a caller.", "create_key"),
        "list": CommandRow("keys", "List the keys of callers in the store.", "list_keys"),
        "rotate": CommandRow("keys", "Replace the key of a caller by a new one with the same rights.", "rotate_key"),
        "revoke": CommandRow("keys", "Revoke keys at once, on all nodes of the store.", "revoke_key"),
    }


class PassportCommands(CommandGroup):
    """Issue, inspect, verify and revoke passports.

    A passport says which agent acts for which principal, with which scopes and until when. Its issuer signs it.

    Example: a2a-fabric passport issue alice --scope agent:percy
    """

    rows: ClassVar = {
        "keygen": CommandRow("credentials", "Make a key pair that signs passports and mandates.", "make_key"),
        "issue": CommandRow("credentials", "Issue a passport for an agent.", "issue_new_passport"),
        "inspect": CommandRow("credentials", "Show what a passport says.", "inspect_passport"),
        "verify": CommandRow("credentials", "Check a passport's signature and times.", "verify_one_passport"),
        "revoke": CommandRow("credentials", "Add a passport to a revocation list.", "revoke_credential"),
    }


class MandateCommands(CommandGroup):
    """Issue, narrow, prove, inspect, verify and revoke mandates.

    A mandate lets a delegate act for a principal. Each delegate may pass it on with less than it allows.

    Example: a2a-fabric mandate issue alice planner --issuer corp --scope agent:percy
    """

    rows: ClassVar = {
        "keygen": CommandRow("credentials", "Make a key pair that signs passports and mandates.", "make_key"),
        "issue": CommandRow("credentials", "Issue a mandate for a delegate.", "issue_new_mandate"),
        "narrow": CommandRow("credentials", "Pass a mandate on with less than it allows.", "narrow_one_mandate"),
        "prove": CommandRow("credentials", "Make a mandate usable that names its holder's key.", "prove_one_mandate"),
        "inspect": CommandRow("credentials", "Show what a mandate says, link by link.", "inspect_mandate"),
        "verify": CommandRow("credentials", "Check a mandate and all its links.", "verify_one_mandate"),
        "revoke": CommandRow("credentials", "Add a mandate to a revocation list.", "revoke_credential"),
    }


class IdentityCommands(CommandGroup):
    """Show and rotate the key with which a node signs.

    It signs what it forwards to agents for which you ask for it, and receipts.

    Example: a2a-fabric identity show --json
    """

    default = "show"
    rows: ClassVar = {
        "show": CommandRow("identity", "Show the public keys with which the node signs.", "show_identity"),
        "rotate": CommandRow("identity", "Make a new key; the old one counts for a while.", "rotate_identity"),
    }


class PolicyCommands(CommandGroup):
    """Try the rules of the policy.

    They are in `policy` of fabric.yaml. No node has to run.

    Example: a2a-fabric policy explain psk percy reason
    """

    rows: ClassVar = {
        "explain": CommandRow(
            "policy", "Show whether a call would be allowed, and which rule decides.", "explain_call"
        ),
        "test": CommandRow("policy", "Compare the policy with cases and their expected verdicts.", "run_cases"),
    }


class ReceiptCommands(CommandGroup):
    """Export and verify the signed receipts of calls.

    A node with `receipts: {enabled: true}` signs a receipt of each call. Each refers to the one before it.

    Example: a2a-fabric receipts verify receipts.jsonl --keys public-keys.json
    """

    rows: ClassVar = {
        "export": CommandRow("receipts", "Write the receipts of the store as JSON lines.", "export_receipts"),
        "verify": CommandRow(
            "receipts", "Check an export, offline, and name the first broken link.", "verify_receipts"
        ),
    }


def _version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Print the version.

    Example: a2a-fabric version
    """
    versions = {"version": __version__, "protocol": PROTOCOL_VERSION, "python": sys.version.partition(" ")[0]}
    if as_json:
        typer.echo(msgspec.json.encode(versions).decode())
    else:
        typer.echo(f"{NAME} {__version__} ({PROTOCOL_VERSION}, Python {versions['python']})")


COMMANDS: dict[str, CommandRow] = {
    "up": CommandRow("up", "Start a node, with the demo agents if nothing is configured.", holds_signals=True),
    "init": CommandRow("init", "Write the files of a new node, and on request a unit or compose file."),
    "status": CommandRow("nodes", "Show the nodes of this machine: running, not ready, crashed.", "show_status"),
    "stop": CommandRow("nodes", "Stop a node of this machine, and let it finish its calls.", "stop_nodes"),
    "logs": CommandRow("nodes", "Show what a node in the background has written.", "show_logs"),
    "mcp": CommandRow("mcp", "Serve MCP on stdin and stdout, for clients that start programs."),
    "call": CommandRow("call", "Call an agent and show its answer as it is written."),
    "ask": CommandRow("ask", "Ask in plain words: the agent that fits answers.", "ask_once"),
    "chat": CommandRow("ask", "Talk with the agents of a node, in one conversation.", "chat"),
    "run": CommandRow("run", "Run a task graph: work for several agents, as one job."),
    "messages": group_row(MessageCommands),
    "jobs": group_row(JobCommands),
    "agents": group_row(AgentCommands),
    "registry": group_row(RegistryCommands),
    "search": CommandRow("agents", "Find agents for a task, the best first, and show why they match.", "search_agents"),
    "describe": CommandRow("agents", "Show everything about one agent.", "describe_agent"),
    "route": CommandRow("agents", "Show which agents would answer a call, in which order, and why.", "show_route"),
    "login": CommandRow("logins", "Sign in to an agent with your own account.", "log_in"),
    "logout": CommandRow("logins", "Remove your login at an agent.", "log_out"),
    "logins": CommandRow("logins", "List your logins at agents.", "list_logins"),
    "tools": group_row(ToolCommands),
    "log": CommandRow("log", "Show the last calls of a running node, and follow new ones.", "show_log"),
    "calls": CommandRow("calls", "List the recent calls of a node, newest first, or follow them.", "list_calls"),
    "trace": CommandRow(
        "trace", "Show what happened in a trace: doors, attempts, runtimes and jobs, each with its time.", "show_trace"
    ),
    "nodes": CommandRow("agents", "List the nodes of the mesh: version, site, agents, load, age.", "list_nodes"),
    "health": CommandRow("agents", "Show the health of a node and its agents.", "show_health"),
    "probe": CommandRow("probe", "Detect the protocol of an address or program, and add the agent."),
    "import": CommandRow(
        "import_servers", "Add the MCP servers of other clients' files to agents.yaml.", "import_servers"
    ),
    "connect": CommandRow("connect", "Add this node to the configuration of an MCP client.", "connect_client"),
    "check": CommandRow("check", "Check the configuration and show what would run; opens no port."),
    "keys": group_row(KeyCommands),
    "passport": group_row(PassportCommands),
    "mandate": group_row(MandateCommands),
    "identity": group_row(IdentityCommands),
    "policy": group_row(PolicyCommands),
    "receipts": group_row(ReceiptCommands),
    "store": group_row(StoreCommands),
    "schema": CommandRow("schema", "Print the JSON Schema of a configuration file."),
    "version": CommandRow("program", "Print the version.", "_version"),
}


class RootCommands(CommandGroup):
    rows = COMMANDS


app = typer.Typer(
    name=NAME,
    cls=RootCommands,
    help="The gateway between agents and clients of every protocol: MCP, A2A, ACP, HTTP and more.",
    epilog="First run: a2a-fabric up",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=CONTEXT,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """The program itself has no other options."""


def main() -> None:
    """The entry point. Typer itself handles misuse (2), interrupts (130) and closed pipes."""
    try:
        app(prog_name=NAME)
    except FabricError as error:
        typer.echo(f"Error: {error.full_message}{_hint(error)}", err=True)
        sys.exit(1)


def _hint(error: FabricError) -> str:
    """The next step on the command line; the node's own message is for programs as well."""
    is_key = isinstance(error, AuthInvalid | AuthExpired) or error.message == Unauthenticated().message
    return ". Name a key of that node with --token or FABRIC_TOKEN" if is_key else ""
