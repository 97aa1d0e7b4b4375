"""`a2a-fabric connect`: add this node to the configuration of an MCP client, and take it out again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.mcp_check import CheckFailed, ServerContents, check_server, find_program, print_contents
from a2a_fabric.cli.node_setup import AGENTS_FILE, CONFIG_FILE, NodeSetup, plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.local_node import DEFAULT_URL, StateFolder, complete_url, find_token
from a2a_fabric.config import find_unset, read_environment
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError, FabricError, suggest_nearest
from a2a_fabric.core.files import check_writable, copy_file, lock_folder, read_text, replace_text, report_write_errors
from a2a_fabric.importing.servers import find_present, parse_servers
from a2a_fabric.mcp_clients.client_config import (
    ClientEntry,
    ConfigChange,
    add_entry,
    list_servers,
    remove_entry,
    render_snippet,
)
from a2a_fabric.mcp_clients.clients import CLIENTS, TOKEN_VARIABLE, Machine, McpClient
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.runtimes.programs import INHERITED_VARIABLES

_BACKUP = ".before-a2a-fabric"
_MOVED = ".moved-to-a2a-fabric"


def connect_client(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of: {', '.join(CLIENTS)}.")],
    http: Annotated[
        bool, typer.Option("--http", help="The client connects to the node's address instead of starting a program.")
    ] = False,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The node's address; implies --http.")] = None,
    name: Annotated[str, typer.Option("--name", help="The name of the server in the client.")] = "fabric",
    path: Annotated[
        Path | None, typer.Option("--path", metavar="FILE", help="Another file than the client's own.")
    ] = None,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take servers that are agents of this node out of the client's file.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Start the server as the client will.")] = True,
    only_print: Annotated[bool, typer.Option("--print", help="Print the entry; change nothing.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Remove the entry, and bring back the servers taken out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add this node to the configuration of an MCP client.

    The client gets the configuration in this folder, else the node that is running, else the demo. The entry is checked
    with the command and the variables that the client will use. A copy of the original file is saved beside it. Running
    the command twice changes nothing.

    Example: a2a-fabric connect claude-code
    """
    environ = read_environment()
    mcp_client = _find_client(client)
    plan = _Plan(mcp_client, name, environ, config=config, agents=tuple(map(Path, agents or ())))
    with report_errors(as_json=as_json):
        node_url = _choose_url(http, url, environ)
    if only_print:
        print_line(render_snippet(mcp_client, plan.build_entry(node_url)).rstrip("\n"))
        return
    with report_errors(as_json=as_json):
        file = ClientFile(_resolve_file(mcp_client, path, environ))
        if undo:
            change, report = file.remove(mcp_client, name), CheckResult()
        else:
            replaced = plan.find_replaced(file) if replace else {}
            report = plan.check(node_url) if check else CheckResult(passed_variables=plan.passed_variables)
            entry = plan.build_entry(node_url, report.passed_variables)
            change = add_entry(mcp_client, entry, file.text, str(file.path), replaced)
            file.write(change)
    if as_json:
        facts = {"checked": report.contents, "problem": report.problem, "moved": list(change.moved)}
        action = {"client": client, "path": str(file.path), "action": change.action, "backup": file.saved_copy}
        print_json({"ok": True, **action, **facts})
        return
    print_line(f"{mcp_client.title}: {change.action} ({file.path})")
    for each in file.describe(change, undo=undo):
        remark(each)
    if not undo:
        _print_report(plan, report, node_url, file, replace=replace)


def _print_report(plan: _Plan, report: CheckResult, node_url: str | None, file: ClientFile, *, replace: bool) -> None:
    client = plan.client
    remark(plan.describe_source(node_url))
    if report.contents is not None:
        print_contents("Checked: the client will see", report.contents)
    if report.problem is not None:
        remark(f"Warning: the check failed. {report.problem}")
    if node_url is not None and client.inputs:
        remark(f"{client.title} asks for the node's key when it connects.")
    elif node_url is not None:
        remark(f"Set {TOKEN_VARIABLE} to the node's key where {client.title} runs.")
    elif report.passed_variables:
        remark(f"{client.title} has to be started with these variables: {', '.join(report.passed_variables)}")
    if not replace and (present := plan.find_replaced(file)):
        names = ", ".join(present)
        remark(
            f"{client.title} has these servers itself, so their tools would be there twice: {names}. Take them out of "
            f"its file with: {NAME} connect {plan.client_name} --replace"
        )
    remark(client.next_step)


def _find_client(client: str) -> McpClient:
    if client not in CLIENTS:
        raise typer.BadParameter(f"no client '{client}'{suggest_nearest(client, CLIENTS)}; known: {', '.join(CLIENTS)}")
    return CLIENTS[client]


def _resolve_file(client: McpClient, path: Path | None, environ: Mapping[str, str]) -> Path:
    """Resolve symbolic links, so that replacing the file keeps them. Raises ConfigError."""
    machine = Machine(platform=sys.platform, home=str(Path.home()), environ=environ)
    target = (path or _choose_path(client, machine)).expanduser()
    try:
        return target.resolve()
    except (OSError, RuntimeError) as exc:
        raise ConfigError(f"{target}: its symbolic links lead nowhere. Name another file with --path") from exc


def _choose_path(client: McpClient, machine: Machine) -> Path:
    """Where the client keeps its file; another place only if a file is there and none where it belongs."""
    usual = Path(client.path(machine))
    return next((path for path in (usual, *map(Path, client.other_paths(machine))) if path.exists()), usual)


def _choose_url(http: bool, url: str | None, environ: Mapping[str, str]) -> str | None:
    if url is None and not http:
        return None
    node = StateFolder(environ).read_node()
    base = complete_url(url or environ.get("FABRIC_URL") or (node.url if node else DEFAULT_URL))
    return base if base.rstrip("/").endswith("/mcp") else f"{base.rstrip('/')}/mcp"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`contents` is what the client will see, `problem` why it would see nothing now."""

    contents: ServerContents | None = None
    problem: str | None = None
    passed_variables: tuple[str, ...] = ()  # variables of the client that the program needs


class _Plan:
    """What the client will start or connect to: the configuration of this folder, a running node, or the demo."""

    def __init__(
        self, client: McpClient, name: str, environ: Mapping[str, str], *, config: Path | None, agents: tuple[Path, ...]
    ) -> None:
        self.client = client
        self.client_name = next(each for each, known in CLIENTS.items() if known is client)
        self._name = name
        self._environ = environ
        self._config = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() and not agents else None)
        has_default_agents = not self._config and not agents and Path(AGENTS_FILE).is_file()
        self._agents = (Path(AGENTS_FILE),) if has_default_agents else agents
        self._has_node = bool(environ.get("FABRIC_URL")) or StateFolder(environ).read_node() is not None

    @property
    def has_files(self) -> bool:
        return self._config is not None or bool(self._agents)

    @cached_property
    def setup(self) -> NodeSetup:
        """Raises ConfigError."""
        return plan_setup(self._config, self._agents, None, self._environ)

    @cached_property
    def passed_variables(self) -> tuple[str, ...]:
        """Variables that the files refer to and that this shell has: the client has to pass them on."""
        if not self.has_files or not self.client.can_pass_variables:
            return ()
        in_file = {name for name in self.setup.environ if name not in self._environ}
        values = [each.endpoint for each in self._read_agents()]
        names = {name for value in values for name, _ in find_unset(value, {})} - in_file
        return tuple(sorted(name for name in names if name in self._environ and name not in INHERITED_VARIABLES))

    def build_entry(self, node_url: str | None, passed: tuple[str, ...] = ()) -> ClientEntry:
        client = self.client
        named = {client.name_key: self._name} if client.name_key else {}
        if node_url is None:
            value = client.program_entry(self._command, self._own_variables)
            value = client.pass_variables(value, passed) if passed else value
            return ClientEntry(name=self._name, value={**named, **value})
        if client.address_entry is None:
            raise typer.BadParameter(f"{client.title} only starts programs: leave out --http and --url")
        return ClientEntry(name=self._name, value={**named, **client.address_entry(node_url)}, inputs=client.inputs)

    def check(self, node_url: str | None) -> CheckResult:
        """Raises ConfigError for an entry that cannot work: a broken configuration, or a key that the client lacks."""
        if node_url is not None:
            return asyncio.run(self._check_address(node_url))
        if not self.has_files and not self._has_node:
            return CheckResult()  # the demo
        passed = self.passed_variables
        try:
            return CheckResult(contents=self._start_server(passed), passed_variables=passed)
        except CheckFailed as error:
            if TOKEN_VARIABLE not in error.message:
                if self.has_files:
                    raise ConfigError(f"{error.message}. Nothing was changed; --no-check connects anyway") from error
                return CheckResult(problem=error.message)
            key_variable = next((name for name in (TOKEN_VARIABLE, "FABRIC_PSK") if self._environ.get(name)), None)
            if key_variable is None or not self.client.can_pass_variables:
                raise ConfigError(f"{self._explain_key(error)}. Nothing was changed") from error
            passed = (*passed, key_variable)
        try:
            return CheckResult(contents=self._start_server(passed), passed_variables=passed)
        except CheckFailed as error:
            raise ConfigError(f"{error.message}. Nothing was changed") from error

    def _explain_key(self, error: CheckFailed) -> str:
        if self.client.can_pass_variables:
            return f"{error.message}. Set {TOKEN_VARIABLE} here too, and run this command again"
        return (
            f"{error.message}. {self.client.title} cannot pass variables on: start the node without FABRIC_PSK, so "
            "that it keeps its key in a file"
        )

    def _start_server(self, passed: tuple[str, ...]) -> ServerContents:
        """Raises CheckFailed."""
        variables = {**self._own_variables, **{name: self._environ[name] for name in passed}}
        return asyncio.run(check_server(self._command, self._environ, variables, Path.home()))

    async def _check_address(self, url: str) -> CheckResult:
        """Ask the node with the key that this user has; the client will need the same."""
        base = url.removesuffix("/mcp")
        async with FabricClient(base, find_token(base, self._environ, StateFolder(self._environ)), 10.0) as node:
            try:
                tools = await node.tools(provider="agent")
            except FabricError as error:
                return CheckResult(problem=f"{error.message}. Check the address, and {TOKEN_VARIABLE}")
        contents = ServerContents(tools=len(tools), agents=len({tool["tool_id"].rpartition(".")[0] for tool in tools}))
        return CheckResult(contents=contents)

    @property
    def _command(self) -> list[str]:
        options = ["--config", str(self._config.absolute())] if self._config else []
        for each in self._agents:
            options += ["--agents", str(each.absolute())]
        return [*find_program(), "mcp", *options]

    @property
    def _own_variables(self) -> dict[str, str]:
        """The variables that lead to this user's node; clients pass few on, and start programs in any folder."""
        environ = self._environ
        folders = [name for name in ("FABRIC_HOME", "XDG_STATE_HOME") if environ.get(name)][:1]  # the first one wins
        variables = {name: str(Path(environ[name]).expanduser().absolute()) for name in folders}
        return {**variables, "FABRIC_URL": environ["FABRIC_URL"]} if environ.get("FABRIC_URL") else variables

    def describe_source(self, node_url: str | None) -> str:
        if node_url is not None:
            return f"It connects to {node_url}"
        if self.has_files:
            return f"It uses {', '.join(str(file.absolute()) for file in (self._config, *self._agents) if file)}"
        if self._has_node:
            return "It connects to the node that is running."
        return f"There is no configuration in this folder and no node is running, so it gets the demo. See: {NAME} up"

    def find_replaced(self, file: ClientFile) -> dict[str, Any]:
        """The servers in the client's file that are agents of this configuration. Raises ConfigError."""
        if not self.has_files:
            return {}
        servers = {
            name: entry
            for name, entry in list_servers(self.client, file.text, str(file.path)).items()
            if name != self._name
        }
        present = {each.agent_id: each for each in self._read_agents()}
        return {name: servers[name] for name in find_present(parse_servers({"mcpServers": servers}, ""), present)}

    def _read_agents(self) -> list[Manifest]:
        return [manifest for path in self.setup.manifest_files for manifest in read_manifests(path)]


class ClientFile:
    """A client's configuration file, the copy from before our first change, and the servers taken out of it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self.path = path
        self._original = read_text(path)
        self.text = self._original or ""
        self._backup = path.with_name(path.name + _BACKUP)
        self._moved = path.with_name(path.name + _MOVED)

    @property
    def saved_copy(self) -> str | None:
        return str(self._backup) if self._backup.exists() else None

    def write(self, change: ConfigChange) -> None:
        """Raises ConfigError, and then nothing has changed."""
        if change.text is None:
            return
        with report_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.path):
            self._check_unchanged()
            with report_write_errors(self.path):
                if self._original is not None and not self._backup.exists():  # an existing one is from before
                    copy_file(self.path, self._backup)
            if change.moved:
                moved = {**self._read_moved(), **change.moved}
                replace_text(self._moved, msgspec.json.format(msgspec.json.encode(moved)).decode() + "\n", mode=0o600)
            replace_text(self.path, change.text, mode=0o600)

    def remove(self, client: McpClient, name: str) -> ConfigChange:
        """Take our entry out again and put the moved servers back. Raises ConfigError, and then nothing has changed."""
        change = remove_entry(client, name, self.text, read_text(self._backup), str(self.path), self._read_moved())
        if change.text is None:
            return change
        with lock_folder(self.path), report_write_errors(self.path):
            self._check_unchanged()
            if change.text or self._backup.exists():
                replace_text(self.path, change.text, mode=0o600)
            else:  # there was no file before
                self.path.unlink()
            self._backup.unlink(missing_ok=True)
            self._moved.unlink(missing_ok=True)
        return change

    def describe(self, change: ConfigChange, *, undo: bool) -> list[str]:
        names = ", ".join(change.moved)
        if undo:
            return [f"These servers are in the file again: {names}"] if names else []
        sentences = [f"The original file is saved as {self.saved_copy}"] if change.text and self.saved_copy else []
        return sentences + ([f"Taken out, as the node has them: {names}. --undo brings them back"] if names else [])

    def _check_unchanged(self) -> None:
        if read_text(self.path) != self._original:
            raise ConfigError(f"{self.path}: another program has just changed the file. Nothing was changed; try again")
        check_writable(self.path)

    def _read_moved(self) -> dict[str, Any]:
        text = read_text(self._moved)
        try:
            return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as exc:
            raise ConfigError(f"{self._moved}: cannot be read, so its servers cannot be put back: {exc}") from exc
