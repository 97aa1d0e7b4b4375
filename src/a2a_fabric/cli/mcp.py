"""`a2a-fabric mcp`"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any

import typer
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from a2a_fabric.cli.connection import token_for
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Token, Url
from a2a_fabric.cli.setup import Setup, plan
from a2a_fabric.cli.state import State
from a2a_fabric.cli.stdio import Lines
from a2a_fabric.cli.up import start
from a2a_fabric.config import DEFAULT_LISTEN, environment
from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import VARIABLE, MaybeChain, from_header, in_headers
from a2a_fabric.core.errors import AgentOffline, ConfigError, Forbidden
from a2a_fabric.doors.mcp import MCPDoor
from a2a_fabric.doors.mcp.visit import Visit

_LARGEST = 64 * 1024 * 1024
_CONNECT_SECONDS = 10.0


def run(
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    url: Url = None,
    token: Token = None,
    alone: Annotated[bool, typer.Option("--alone", help="Start a node of its own even if one is running.")] = False,
) -> None:
    """Speak MCP on stdin and stdout, for clients that start their servers.

    It speaks for the node that runs on this machine, if there is one. Otherwise, and with --config,
    --agents or --alone, it starts a node of its own, which opens no port and ends with the client.
    Nothing but MCP is written to stdout; the log goes to stderr.

    Example: a2a-fabric mcp --agents agents.yaml
    """
    environ = environment()
    chain = from_header(environ.get(VARIABLE))  # if an agent of a node started us
    state = State(environ)
    node = None if alone or config or agents else url or environ.get("FABRIC_URL") or _running(state)
    if url and node is None:
        raise typer.BadParameter("a node of its own has no URL: leave out --url, or --config, --agents and --alone")
    with Lines() as lines, asyncio.Runner() as runner:
        if node is not None:
            runner.run(_until_told(_attach(node, token or token_for(node, environ, state), chain, lines)))
        else:
            runner.run(_until_told(_serve(plan(config, agents or [], DEFAULT_LISTEN, environ), chain, lines)))


def _running(state: State) -> str | None:
    node = state.node()
    return node.url if node else None


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM ends it as the end of stdin does: agents that we started must not outlive us."""
    task = asyncio.ensure_future(work)
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _attach(url: str, token: str | None, chain: MaybeChain, lines: Lines) -> None:
    """Every line is one message there and one message back; the node does not notice the difference."""
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}/mcp/ws"
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **in_headers(chain)}
    try:
        socket = await connect_socket(
            address,
            additional_headers=headers,
            subprotocols=[Subprotocol("mcp")],
            max_size=_LARGEST,
            open_timeout=_CONNECT_SECONDS,
        )
    except InvalidHandshake as exc:
        raise Forbidden(f"The node at {url} refused: {exc}") from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise AgentOffline(f"No node answers at {url}: {exc}") from exc
    async with socket:
        sending = asyncio.ensure_future(_send(lines, socket))
        try:
            async for message in socket:
                await lines.write(message if isinstance(message, str) else message.decode())
        except ConnectionClosed as exc:
            raise AgentOffline(f"The node at {url} is gone: {exc}") from exc
        finally:
            sending.cancel()
    if not lines.have_ended:
        raise AgentOffline(f"The node at {url} has closed the conversation")


async def _send(lines: Lines, socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for line in lines:
            await socket.send(line.decode("utf-8", "replace"))
        await socket.close()


async def _serve(setup: Setup, chain: MaybeChain, lines: Lines) -> None:
    async with AsyncExitStack() as stack:
        # It may be started anywhere, by several clients at once: only a configuration says where it may write.
        node = await start(setup.keeping(setup.home if setup.config_file else None), None, stack)
        door = next((door for door in node.doors if isinstance(door, MCPDoor)), None)
        if door is None:
            raise ConfigError("doors: there is none of kind mcp")
        room = await door.rooms.of_gateway()
        lines.drain_seconds = node.config.limits.drain_seconds
        user = Principal(mode="none", principal_id="stdio", trust="local")  # whoever started us
        await room.converse(aiter(lines), lines.write, Visit(user, None, chain))
