"""`a2a-fabric up`: start a node, and print its URL, key, store and agents, and three commands to try."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from a2a_fabric.app import Fabric
from a2a_fabric.cli.node_setup import NodeSetup, plan_setup
from a2a_fabric.cli.nodes import LOG_VARIABLE, announce_node, check_name, start_detached
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, EnvFile
from a2a_fabric.cli.output import remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.client.local_node import StateFolder
from a2a_fabric.config import Config, LimitSettings, TLSSettings, parse_listen, prepare_process, read_environment
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.disclosure import OPERATOR_PRINCIPAL
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import AgentSource, load_module
from a2a_fabric.core.stores import DescriptionStore
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.doors.tls import ServerTLS
from a2a_fabric.node.context import resolve_store_address, resolve_tls_files
from a2a_fabric.node.exposure import list_exposure_warnings, list_name_warnings
from a2a_fabric.node.runtime_factory import resolve_runtime_kind
from a2a_fabric.node.settings_reload import ConfigFollower, Prepare, TakeEffect
from a2a_fabric.stores.address import redact_address, resolve_address
from a2a_fabric.version import __version__
from a2a_fabric.web.private_listener import open_private_listener
from a2a_fabric.web.server import HttpServer, bind_socket, raise_file_limit, url_from_socket
from a2a_fabric.web.supervisor import (
    Supervisor,
    WorkerStart,
    bind_worker_sockets,
    open_counts,
    stop_with_supervisor,
    wait_for_others,
    wait_until_others_are_done,
    worker_command,
)

if TYPE_CHECKING:
    from a2a_fabric.agent import Agent
    from a2a_fabric.mesh.workers import WorkerPlace, Workers

try:
    import uvloop

    _new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # Windows
    _new_loop = asyncio.new_event_loop

_AGENTS_SHOWN = 8
# The demo's first calls let two protocols meet: the command line calls an MCP server, an A2A client an ACP agent.
_DEMO_CALL = "call units convert --arg value=26.2 --arg unit=mi --arg to=km"
_DEMO_PATH = "/agents/morse/message:send"
_DEMO_MESSAGE = (
    '{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hello world"}],"metadata":{"skill":"morse"}}}'
)


class NodeKey(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own key, and its origin: the configuration, FABRIC_PSK, the saved file, or newly created."""

    secret: str | None
    origin: Literal["configured", "environment", "kept", "made", "none"]
    path: str = ""


def run(
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            "--port",
            metavar="[HOST:]PORT",
            help="Default: 127.0.0.1:8000, or the next free port.",
        ),
    ] = None,
    imports: Annotated[
        list[Path] | None,
        typer.Option("--import", metavar="FILE", help="Use the MCP servers of a client's file as agents. Repeatable."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where jobs are stored: memory:, sqlite:PATH, postgresql://… or nats://…"),
    ] = None,
    env_file: EnvFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=256, help="Processes that serve the port: one for each core that you want to use."
        ),
    ] = 1,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go on in the background; see `status`, `logs` and `stop`.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="For `status`, `logs` and `stop`. Default: that of the folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --detach: print the node as JSON.")] = False,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start a node, with the demo agents if nothing is configured.

    The first Ctrl-C lets running calls finish, the second stops at once.

    Example: a2a-fabric up --listen 127.0.0.1:8000
    """
    if detach:
        with report_errors(as_json=as_json):
            start_detached(sys.argv[1:], name, as_json=as_json)
        return
    gc.disable()  # the start leaves no garbage; the server enables it
    environ = read_environment()
    store_address = None if store is None else resolve_address(store, Path.cwd())  # relative to this folder

    def plan(config_file: Path | None) -> NodeSetup:
        setup = plan_setup(config_file, agents or [], listen, environ, env_file)
        setup = msgspec.structs.replace(setup, imports=tuple(imports or ()))
        if store_address is not None:
            setup = msgspec.structs.replace(setup, config=msgspec.structs.replace(setup.config, store=store_address))
        if quiet:
            setup = msgspec.structs.replace(setup, config=_silence_log(setup.config))
        return setup.with_store_in(setup.own_folder)

    setup = plan(config)
    prepare_process()
    state = StateFolder(environ)
    key = _choose_key(setup.config, setup.environ.get("FABRIC_PSK"), state)
    start = None if worker is None else msgspec.json.decode(worker, type=WorkerStart)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        if start is None and workers > 1:
            raise typer.Exit(runner.run(_supervise(setup, key, state, workers, name, quiet=quiet)))
        runner.run(_serve(setup, lambda: plan(setup.config_file), key, state, start, name, quiet=quiet))


async def _supervise(
    setup: NodeSetup, key: NodeKey, state: StateFolder, count: int, name: str | None, *, quiet: bool
) -> int:
    """Run `count` workers until a signal ends the node; returns the exit code. Raises ConfigError."""
    address = resolve_store_address(setup.config, setup.base)
    if address.startswith("memory:"):
        raise ConfigError(
            "--workers: the workers share one store, which cannot be in memory. Name a file: --store sqlite:fabric.db"
        )
    host, port = parse_listen(setup.config.listen)
    _load_tls(setup)  # a mistake is reported once, and not by each worker
    sockets = bind_worker_sockets(host, port, count, exact_port=setup.is_port_chosen)
    with ExitStack() as stack:
        for each in sockets:
            stack.enter_context(each)
        folder = stack.enter_context(TemporaryDirectory(prefix="a2a-fabric-"))  # readable by this user alone
        stack.enter_context(_announce(state, _reachable_url(sockets[0], setup.config), setup, name))
        limits = setup.config.limits
        longest = limits.drain_seconds + (limits.not_ready_seconds or 0.0)
        supervisor = Supervisor(worker_command(sys.argv[1:]), sockets, folder, longest, remark)
        code = await supervisor.run()
        if not quiet and code == 0:
            remark("Stopped.")
        return code


async def _serve(
    setup: NodeSetup,
    plan: Callable[[], NodeSetup],
    key: NodeKey,
    state: StateFolder,
    worker: WorkerStart | None,
    name: str | None,
    *,
    quiet: bool,
) -> None:
    """`plan` reads the configuration again. `worker`: this process is one of several, which a supervisor started."""
    host, port = parse_listen(setup.config.listen)
    tls = _load_tls(setup)
    if worker is None:
        listener = bind_socket(host, port, exact_port=setup.is_port_chosen)
    else:
        listener = socket.socket(fileno=worker.listener)
        quiet = quiet or worker.number > 0
    with listener:
        async with AsyncExitStack() as stack:
            workers: Workers | None = None
            if worker is not None:
                prefix = "" if setup.config.mesh is None else f"{setup.config.node_id}-"
                mesh = load_module("a2a_fabric.mesh.workers")
                place = mesh.WorkerPlace(number=worker.number, count=worker.count, folder=worker.folder, prefix=prefix)
                counts = open_counts(worker.counts, worker.count, worker.number)
                workers = mesh.Workers(place, setup.config.limits.reply_bytes, resolve_runtime_kind, counts)
            session_file = _find_session_file(setup, state, worker)
            node = await start_node(setup, key.secret, stack, workers=workers, session_file=session_file)
            limits = node.config.limits
            server = HttpServer(
                node.app,
                [listener],
                drain_timeout=limits.drain_seconds,
                connections=raise_file_limit(limits.connections, limits.concurrent_calls),
                message_bytes=limits.body_bytes,
                request_seconds=limits.request_seconds,
                unread_seconds=limits.unread_seconds,
                not_ready_seconds=limits.not_ready_seconds,
                tls=tls,
            )
            node.settings.register_limits(_SERVER_LIMITS, partial(_apply_limits, server))
            if tls is not None:
                node.settings.register("tls", follow_tls(tls, setup.base))
            if worker is None:
                stack.enter_context(_announce(state, _reachable_url(listener, setup.config), setup, name))
            elif workers is not None and not await _join_workers(node, workers.place, worker, server, stack):
                return
            _log_start(setup, node, listener)
            if not quiet:
                _print_banner(setup, key, node, listener, port)
            follower = ConfigFollower(
                setup.config_file,
                lambda: plan().config,
                lambda config, is_requested: node.reload(config, is_requested=is_requested),
            )
            stack.push_async_callback(cancel_and_wait, asyncio.ensure_future(follower.run()))
            await server.run_until_stopped(follower.request, node.telemetry.log.reopen)
            if not quiet and worker is None:
                remark("Stopped.")


def _find_session_file(setup: NodeSetup, state: StateFolder, worker: WorkerStart | None) -> Path | None:
    """Where this process keeps sessions over a restart; None for a node that keeps nothing on disk.

    Files of workers that the node no longer has are removed.
    """
    if resolve_store_address(setup.config, setup.base).startswith("memory:"):
        return None
    node = f"{setup.base.resolve()}\0{setup.config.node_id}\0{setup.config.listen}"
    digest = hashlib.blake2b(node.encode(), digest_size=8).hexdigest()
    number, count = (0, 1) if worker is None else (worker.number, worker.count)
    folder = state.folder / "sessions"
    if number == 0:
        kept = {f"{digest}-{each}" for each in range(count)}
        for path in folder.glob(f"{digest}-*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
    return folder / f"{digest}-{number}"


def _announce(state: StateFolder, url: str, setup: NodeSetup, name: str | None) -> AbstractContextManager[None]:
    if name is not None:
        check_name(state, name)
    return announce_node(state, url, setup.files, name, read_environment().get(LOG_VARIABLE))


async def _join_workers(
    node: Fabric, place: WorkerPlace, worker: WorkerStart, server: HttpServer, stack: AsyncExitStack
) -> bool:
    """Serve the other workers, and wait until all are up. False if the supervisor has gone."""
    drain_timeout = node.config.limits.drain_seconds
    peer_app = load_module("a2a_fabric.mesh.app").PeerApp(node.peer_services)
    listener = open_private_listener(peer_app, place.socket_path(), drain_timeout)
    await stack.enter_async_context(listener)
    control = stack.enter_context(socket.socket(fileno=worker.control))
    if not await wait_for_others(control):
        return False
    stack.push_async_callback(wait_until_others_are_done, control, drain_timeout)
    watcher = asyncio.ensure_future(stop_with_supervisor(control, server.stop))
    stack.push_async_callback(cancel_and_wait, watcher)
    return True


async def start_node(
    setup: NodeSetup,
    psk: str | None,
    stack: AsyncExitStack,
    descriptions: DescriptionStore | None = None,
    workers: Workers | None = None,
    session_file: Path | None = None,
) -> Fabric:
    """Start a node without a port. Raises ConfigError: at the start there is no earlier catalog to keep."""
    sources: list[AgentSource] = [*setup.build_sources()]
    mounted: Sequence[Agent] = ()
    if setup.is_demo:
        demo = load_module("a2a_fabric.demo.agents")  # most nodes never need it
        sources.append(await stack.enter_async_context(demo.DemoAgents()))
        mounted = demo.MOUNTED
    with setup.locate_errors():
        node = Fabric(
            setup.config,
            base=setup.base,
            sources=sources,
            agents=mounted,
            psk=psk,
            environ=setup.environ,
            descriptions=descriptions,
            workers=workers,
            session_file=session_file,
        )
        await stack.enter_async_context(node)
    if node.registry.errors:
        raise ConfigError("\n".join(node.registry.errors.values()))
    return node


def _choose_key(config: Config, psk: str | None, state: StateFolder) -> NodeKey:
    """The configured key, else FABRIC_PSK, else the saved one, else a new one; none for an anonymous node.

    Keys of callers (`auth.keys`) do not replace it: without it, there would be no operator.
    """
    if config.auth.psk:
        return NodeKey(secret=None, origin="configured")
    if psk:
        if len(psk) < 8:
            raise ConfigError("FABRIC_PSK: the key is too short. Use at least 8 characters")
        return NodeKey(secret=psk, origin="environment")
    stored_key = state.key.read()
    if stored_key is not None:
        return NodeKey(secret=stored_key, origin="kept", path=str(state.key.path))
    if config.auth.anonymous:
        return NodeKey(secret=None, origin="none")
    return NodeKey(secret=state.key.create(), origin="made", path=str(state.key.path))


def _load_tls(setup: NodeSetup) -> ServerTLS | None:
    """Raises ConfigError."""
    files = resolve_tls_files(setup.base, setup.config)
    return None if files is None else ServerTLS(files)


_log = logging.getLogger(__name__)
_SERVER_LIMITS = (
    "body_bytes",
    "connections",
    "request_seconds",
    "unread_seconds",
    "drain_seconds",
    "not_ready_seconds",
)


def _apply_limits(server: HttpServer, limits: LimitSettings) -> None:
    server.set_limits(
        drain_timeout=limits.drain_seconds,
        connections=raise_file_limit(limits.connections, limits.concurrent_calls),
        message_bytes=limits.body_bytes,
        request_seconds=limits.request_seconds,
        unread_seconds=limits.unread_seconds,
        not_ready_seconds=limits.not_ready_seconds,
    )


def follow_tls(tls: ServerTLS, base: Path) -> Prepare:
    """The part of the node that takes over changes of `tls`: other files, and whose certificates are accepted."""

    def prepare(config: Config) -> TakeEffect:
        files = resolve_tls_files(base, config)
        if files is None:
            raise ConfigError("tls cannot be switched off while the node runs. Restart the node")
        take_effect = tls.prepare(files)
        has_grpc = any(table.get("grpc") for table in config.doors)

        def warn_and_take_effect() -> None:
            if has_grpc and files != tls.files:
                _log.warning("tls: the gRPC port follows the files that it began with until the node is restarted")
            take_effect()

        return warn_and_take_effect

    return prepare


def _silence_log(config: Config) -> Config:
    if config.log.file is not None:
        return config
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level="error"))


def _log_start(setup: NodeSetup, node: Fabric, listener: socket.socket) -> None:
    node.telemetry.log_start(
        version=__version__,
        node=node.config.node_id,
        config=None if setup.config_file is None else str(setup.config_file),
        listen=url_from_socket(listener, is_secure=isinstance(setup.config.tls, TLSSettings)),
        store=redact_address(node.store_address),
        agents=len(node.registry.catalog.agents),
        doors=[str(table.get("kind")) for table in node.config.doors],
    )


def _print_banner(setup: NodeSetup, key: NodeKey, node: Fabric, listener: socket.socket, requested_port: int) -> None:
    port = listener.getsockname()[1]
    if requested_port not in (0, port):
        remark(f"Port {requested_port} is taken; using {port}.")
    url, agents = _reachable_url(listener, setup.config), node.registry.catalog.agents
    left_out = [f"an agent is left out: {problem}" for problem in node.registry.left_out.values()]
    exposed = [*list_exposure_warnings(setup.config), *list_name_warnings(setup.config)]
    warnings = (*exposed, *setup.remarks, *setup.warn_of_unset(agents), *left_out)
    for warning in warnings:
        remark(f"Warning: {warning}")
    for notice in node.gateway.list_notices(OPERATOR_PRINCIPAL):
        remark(f"Note: {notice}")
    remark(build_banner(url, key, node.store_address, agents, is_demo=setup.is_demo))


def _reachable_url(listener: socket.socket, config: Config) -> str:
    """A URL that works on this machine, which 0.0.0.0 does not."""
    return (
        url_from_socket(listener, is_secure=isinstance(config.tls, TLSSettings))
        .replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
    )


def build_banner(url: str, key: NodeKey, store: str, agents: Sequence[Manifest], *, is_demo: bool) -> str:
    overflow = f" and {len(agents) - _AGENTS_SHOWN} more" if len(agents) > _AGENTS_SHOWN else ""
    agent_names = ", ".join(agent.agent_id for agent in agents[:_AGENTS_SHOWN]) + overflow if agents else "none yet"
    lines = [
        "",
        f"  Fabric is up at {url}",
        f"  Token   {_describe_key(key)}",
        f"  Store   {describe_store(store)}",
        f"  Agents  {agent_names}{' (the demo)' if is_demo else ''}",
        "",
        "  Try, in another terminal:",
        *(f"    {command}" for command in _suggest_commands(url, key, agents, is_demo=is_demo)),
        "",
        "  Ctrl-C stops the node after running calls have finished.",
        "",
    ]
    return "\n".join(lines)


def describe_store(store: str) -> str:
    return "memory: jobs are lost when the node stops" if store.startswith("memory") else redact_address(store)


def _describe_key(key: NodeKey) -> str:
    match key.origin:
        case "configured":
            return "the key in your configuration"
        case "environment":
            return "the key in FABRIC_PSK"
        case "none":
            return "not required"
        case "made":
            return f"{key.secret}  (saved in {key.path})"
        case "kept":
            return f"{key.secret}" if sys.stderr.isatty() else f"saved in {key.path}"


def _suggest_commands(url: str, key: NodeKey, agents: Sequence[Manifest], *, is_demo: bool) -> list[str]:
    program = _find_program()
    first_call = _DEMO_CALL if is_demo else _suggest_call(agents)
    return [f"{program} agents", f"{program} {first_call}", _build_curl(url, key, is_demo=is_demo)]


def _suggest_call(agents: Sequence[Manifest]) -> str:
    """A call to the first agent with a capability; the user fills in the arguments."""
    for agent in agents:
        for capability in agent.capabilities:
            return " ".join(
                ["call", shlex.quote(agent.agent_id), shlex.quote(capability.name), *_build_placeholders(capability)]
            )
    return f"describe {shlex.quote(agents[0].agent_id)}" if agents else "tools"


def _build_placeholders(capability: Capability) -> list[str]:
    """A placeholder for the task, and for every required argument."""
    schema: dict[str, Any] = capability.input_schema or {"properties": {"task": {}}}
    needed = [str(name) for name in schema.get("required", ())]
    if "task" in (schema.get("properties") or {}):
        return ['"..."', *(f"--arg {shlex.quote(name)}=..." for name in needed if name != "task")]
    return [f"--arg {shlex.quote(name)}=..." for name in needed]


def _build_curl(url: str, key: NodeKey, *, is_demo: bool) -> str:
    token = {
        "made": f"$(cat {shlex.quote(key.path)})",
        "kept": f"$(cat {shlex.quote(key.path)})",
        "environment": "$FABRIC_PSK",
        "configured": "$FABRIC_TOKEN",
    }.get(key.origin)
    auth = f'-H "Authorization: Bearer {token}" ' if token else ""
    if is_demo:
        headers = f"{auth}-H 'A2A-Version: 1.0' -H 'Content-Type: application/json'"
        return f"curl -s {url}{_DEMO_PATH} {headers} -d '{_DEMO_MESSAGE}'"
    body = '{"name":"fabric.tool.math.calculate","arguments":{"expression":"6*7"}}'
    return f"curl -s {url}/mcp/call {auth}-H 'Content-Type: application/json' -d '{body}'"


def _find_program() -> str:
    """The command as another shell finds it."""
    program_path = Path(sys.argv[0])
    if program_path.name != NAME:
        return f"{shlex.quote(sys.executable)} -m a2a_fabric"
    in_a_venv = sys.prefix != sys.base_prefix
    return shlex.quote(str(program_path.absolute())) if in_a_venv or not shutil.which(NAME) else NAME
