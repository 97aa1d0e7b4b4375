"""`a2a-fabric up`"""

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

from a2a_fabric import admittance
from a2a_fabric.app import Fabric
from a2a_fabric.cli.banner import Key, banner
from a2a_fabric.cli.options import AgentsFiles, ConfigFile
from a2a_fabric.cli.output import remark
from a2a_fabric.cli.setup import Setup, plan
from a2a_fabric.cli.state import State
from a2a_fabric.config import Config, environment, settle_process, split_listen
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.demo.fleet import MOUNTED, DemoFleet
from a2a_fabric.stores.address import located
from a2a_fabric.web.server import Server, allow_connections, bind, certificate, url_of

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
        typer.Option(metavar="URL", help="Where jobs are kept: memory:, sqlite:PATH or postgresql://…"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Start a node, with the demo agents if nothing is configured.

    The first Ctrl-C lets running calls finish, the second stops at once.

    Example: a2a-fabric up --listen 127.0.0.1:8000
    """
    environ = environment()
    setup = msgspec.structs.replace(plan(config, agents or [], listen, environ), imports=tuple(imports or ()))
    if store is not None:
        setup = msgspec.structs.replace(setup, config=_kept_at(store, setup.config))
    settle_process()
    state = State(environ)
    key = _key(setup.config, environ.get("FABRIC_PSK"), state)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(setup, key, state, quiet=quiet))


async def _serve(setup: Setup, key: Key, state: State, *, quiet: bool) -> None:
    host, port = split_listen(setup.config.listen)
    tls = _certificate(setup)
    listener = bind(host, port, exactly=setup.is_port_chosen)
    with listener:
        async with AsyncExitStack() as stack:
            shown = msgspec.structs.replace(setup, config=_quiet(setup.config)) if quiet else setup
            node = await start(shown.keeping(setup.home), key.secret, stack)
            limits = node.config.limits
            server = Server(
                node.app,
                [listener],
                drain=limits.drain_seconds,
                connections=allow_connections(limits.connections),
                message_bytes=limits.body_bytes,
                request_seconds=limits.request_seconds,
                unread_seconds=limits.unread_seconds,
                tls=tls,
            )
            stack.enter_context(state.announced(_reachable(listener, setup.config)))
            if not quiet:
                _greet(setup, key, node, listener, port)
            await server.run_until_stopped()
            if not quiet:
                remark("Stopped.")


async def start(setup: Setup, psk: str | None, stack: AsyncExitStack) -> Fabric:
    """A node without a port. Raises ConfigError: at the start there is no last good catalog to fall back on."""
    sources: list[AgentSource] = [*setup.sources()]
    if setup.is_demo:
        sources.append(await stack.enter_async_context(DemoFleet()))
    with setup.located():
        mounted = MOUNTED if setup.is_demo else ()
        node = Fabric(setup.config, base=setup.base, sources=sources, agents=mounted, psk=psk)
        await stack.enter_async_context(node)
    if node.registry.errors:
        raise ConfigError("\n".join(node.registry.errors.values()))
    return node


def _key(config: Config, psk: str | None, state: State) -> Key:
    """The configured key, else FABRIC_PSK, else the kept one, else a new one; none for a node open to all."""
    if config.auth.psk or config.auth.keys:
        return Key(secret=None, origin="configured")
    if psk:
        if len(psk) < 8:
            raise ConfigError("FABRIC_PSK: a key has at least 8 characters")
        return Key(secret=psk, origin="environment")
    kept = state.key.read()
    if kept is not None:
        return Key(secret=kept, origin="kept", path=str(state.key.path))
    if config.auth.anonymous:
        return Key(secret=None, origin="none")
    return Key(secret=state.key.make(), origin="made", path=str(state.key.path))


def _kept_at(address: str, config: Config) -> Config:
    """A path on the command line starts here, not beside the configuration. Raises ConfigError."""
    return msgspec.structs.replace(config, store=located(address, Path.cwd()))


def _certificate(setup: Setup) -> ssl.SSLContext | None:
    """Raises ConfigError."""
    files = setup.config.tls
    return None if files is None else certificate(setup.base / files.cert, setup.base / files.key, files.password)


def _quiet(config: Config) -> Config:
    if config.log.file is not None:
        return config
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level="error"))


def _greet(setup: Setup, key: Key, node: Fabric, listener: socket.socket, wanted: int) -> None:
    taken = listener.getsockname()[1]
    if wanted not in (0, taken):
        remark(f"Port {wanted} is taken; using {taken}.")
    url, agents = _reachable(listener, setup.config), node.registry.catalog.agents
    for warning in admittance.warnings(setup.config):
        remark(f"Warning: {warning}")
    remark(banner(url, key, node.store_address, agents, is_demo=setup.is_demo))


def _reachable(listener: socket.socket, config: Config) -> str:
    """A URL that works on this machine: nobody connects to 0.0.0.0."""
    return (
        url_of(listener, is_secure=config.tls is not None)
        .replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
    )
