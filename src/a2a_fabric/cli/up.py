"""`a2a-fabric up`: start a node."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from a2a_fabric import auth_setup
from a2a_fabric.app import Fabric
from a2a_fabric.cli.banner import NodeKey, build_banner
from a2a_fabric.cli.node_setup import NodeSetup, plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile
from a2a_fabric.cli.output import remark
from a2a_fabric.cli.state import StateFolder
from a2a_fabric.config import Config, parse_listen, prepare_process, read_environment
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.demo.agents import MOUNTED, DemoAgents
from a2a_fabric.stores.address import resolve_address
from a2a_fabric.web.server import HttpServer, bind_socket, load_certificate, raise_file_limit, url_from_socket

try:
    import uvloop

    _new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # Windows
    _new_loop = asyncio.new_event_loop


def run(
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Default: 127.0.0.1:8000, or the next free port."),
    ] = None,
    imports: Annotated[
        list[Path] | None,
        typer.Option("--import", metavar="FILE", help="Use the MCP servers of a client's file as agents. Repeatable."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where jobs are stored: memory:, sqlite:PATH or postgresql://…"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Start a node, with the demo agents if nothing is configured.

    The first Ctrl-C lets running calls finish, the second stops at once.

    Example: a2a-fabric up --listen 127.0.0.1:8000
    """
    environ = read_environment()
    setup = msgspec.structs.replace(plan_setup(config, agents or [], listen, environ), imports=tuple(imports or ()))
    if store is not None:
        address = resolve_address(store, Path.cwd())  # a path on the command line is relative to this folder
        setup = msgspec.structs.replace(setup, config=msgspec.structs.replace(setup.config, store=address))
    prepare_process()
    state = StateFolder(environ)
    key = _choose_key(setup.config, environ.get("FABRIC_PSK"), state)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(setup, key, state, quiet=quiet))


async def _serve(setup: NodeSetup, key: NodeKey, state: StateFolder, *, quiet: bool) -> None:
    host, port = parse_listen(setup.config.listen)
    tls = _load_certificate(setup)
    listener = bind_socket(host, port, exact_port=setup.is_port_chosen)
    with listener:
        async with AsyncExitStack() as stack:
            effective_setup = msgspec.structs.replace(setup, config=_silence_log(setup.config)) if quiet else setup
            node = await start_node(effective_setup.with_store_in(setup.own_folder), key.secret, stack)
            limits = node.config.limits
            server = HttpServer(
                node.app,
                [listener],
                drain_timeout=limits.drain_seconds,
                connections=raise_file_limit(limits.connections),
                message_bytes=limits.body_bytes,
                request_seconds=limits.request_seconds,
                unread_seconds=limits.unread_seconds,
                tls=tls,
            )
            stack.enter_context(state.announce(_reachable_url(listener, setup.config)))
            if not quiet:
                _print_banner(setup, key, node, listener, port)
            await server.run_until_stopped()
            if not quiet:
                remark("Stopped.")


async def start_node(setup: NodeSetup, psk: str | None, stack: AsyncExitStack) -> Fabric:
    """Start a node without a port. Raises ConfigError: at the start there is no earlier catalog to keep."""
    sources: list[AgentSource] = [*setup.build_sources()]
    if setup.is_demo:
        sources.append(await stack.enter_async_context(DemoAgents()))
    with setup.locate_errors():
        mounted = MOUNTED if setup.is_demo else ()
        node = Fabric(setup.config, base=setup.base, sources=sources, agents=mounted, psk=psk)
        await stack.enter_async_context(node)
    if node.registry.errors:
        raise ConfigError("\n".join(node.registry.errors.values()))
    return node


def _choose_key(config: Config, psk: str | None, state: StateFolder) -> NodeKey:
    """The configured key, else FABRIC_PSK, else the saved one, else a new one; none for an anonymous node."""
    if config.auth.psk or config.auth.keys:
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


def _load_certificate(setup: NodeSetup) -> ssl.SSLContext | None:
    """Raises ConfigError."""
    files = setup.config.tls
    return None if files is None else load_certificate(setup.base / files.cert, setup.base / files.key, files.password)


def _silence_log(config: Config) -> Config:
    if config.log.file is not None:
        return config
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level="error"))


def _print_banner(setup: NodeSetup, key: NodeKey, node: Fabric, listener: socket.socket, requested_port: int) -> None:
    port = listener.getsockname()[1]
    if requested_port not in (0, port):
        remark(f"Port {requested_port} is taken; using {port}.")
    url, agents = _reachable_url(listener, setup.config), node.registry.catalog.agents
    for warning in auth_setup.list_exposure_warnings(setup.config):
        remark(f"Warning: {warning}")
    remark(build_banner(url, key, node.store_address, agents, is_demo=setup.is_demo))


def _reachable_url(listener: socket.socket, config: Config) -> str:
    """A URL that works on this machine, which 0.0.0.0 does not."""
    return (
        url_from_socket(listener, is_secure=config.tls is not None)
        .replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
    )
