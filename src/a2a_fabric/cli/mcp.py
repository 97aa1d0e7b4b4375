"""`a2a-fabric mcp`: MCP on stdin and stdout, for a running node or a node of its own."""

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

from a2a_fabric.cli.connection import find_token
from a2a_fabric.cli.node_setup import NodeSetup, plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Token, Url
from a2a_fabric.cli.state import StateFolder
from a2a_fabric.cli.stdio import StdioChannel
from a2a_fabric.cli.up import start_node
from a2a_fabric.config import DEFAULT_LISTEN, read_environment
from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import DELEGATION_VARIABLE, MaybeChain, chain_from_header, chain_to_headers
from a2a_fabric.core.errors import AgentOffline, ConfigError, Forbidden
from a2a_fabric.doors.mcp import McpDoor
from a2a_fabric.doors.mcp.request_context import McpRequestContext

_MAX_MESSAGE = 64 * 1024 * 1024
_CONNECT_SECONDS = 10.0


def run(
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    url: Url = None,
    token: Token = None,
    alone: Annotated[bool, typer.Option("--alone", help="Start another node even if one is running.")] = False,
) -> None:
    """Serve MCP on stdin and stdout, for clients that start programs.

    Connects to the node that runs on this machine, if there is one. Otherwise, and with --config,
    --agents or --alone, it starts a node that opens no port and ends with the client.
    Only MCP is written to stdout; the log goes to stderr.

    Example: a2a-fabric mcp --agents agents.yaml
    """
    environ = read_environment()
    chain = chain_from_header(environ.get(DELEGATION_VARIABLE))  # set if an agent of a node runs this command
    state = StateFolder(environ)
    running_node = state.read_node()
    default_url = url or environ.get("FABRIC_URL") or (running_node.url if running_node else None)
    node_url = None if alone or config or agents else default_url
    if url and node_url is None:
        raise typer.BadParameter("--url cannot be used with --config, --agents or --alone")
    with StdioChannel() as channel, asyncio.Runner() as runner:
        if node_url is not None:
            node_token = token or find_token(node_url, environ, state)
            runner.run(_run_until_signal(_relay_to_node(node_url, node_token, chain, channel)))
        else:
            setup = plan_setup(config, agents or [], DEFAULT_LISTEN, environ)
            runner.run(_run_until_signal(_serve_own_node(setup, chain, channel)))


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM has the effect of the end of stdin, so that the agents that were started end too."""
    task = asyncio.ensure_future(work)
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _relay_to_node(url: str, token: str | None, chain: MaybeChain, channel: StdioChannel) -> None:
    """Relay each line as a WebSocket message to the node, and each reply as a line to the client."""
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}/mcp/ws"
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **chain_to_headers(chain)}
    try:
        socket = await connect_socket(
            address,
            additional_headers=headers,
            subprotocols=[Subprotocol("mcp")],
            max_size=_MAX_MESSAGE,
            open_timeout=_CONNECT_SECONDS,
        )
    except InvalidHandshake as exc:
        raise Forbidden(f"The node at {url} refused the connection: {exc}") from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise AgentOffline(f"No node answers at {url}: {exc}") from exc
    async with socket:
        send_task = asyncio.ensure_future(_send_lines(channel, socket))
        try:
            async for message in socket:
                await channel.write(message if isinstance(message, str) else message.decode())
        except ConnectionClosed as exc:
            raise AgentOffline(f"The connection to the node at {url} was lost: {exc}") from exc
        finally:
            send_task.cancel()
    if not channel.has_ended:
        raise AgentOffline(f"The node at {url} closed the connection")


async def _send_lines(channel: StdioChannel, socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for line in channel:
            await socket.send(line.decode("utf-8", "replace"))
        await socket.close()


async def _serve_own_node(setup: NodeSetup, chain: MaybeChain, channel: StdioChannel) -> None:
    async with AsyncExitStack() as stack:
        # Several clients may start nodes at once, in any folder: a store on disk only where a configuration is.
        node = await start_node(setup.with_store_in(setup.own_folder if setup.config_file else None), None, stack)
        door = next((door for door in node.doors if isinstance(door, McpDoor)), None)
        if door is None:
            raise ConfigError("doors: the configuration has no door of kind mcp. Add: {kind: mcp}")
        server = await door.servers.get_gateway_server()
        channel.drain_seconds = node.config.limits.drain_seconds
        user = Principal(mode="none", principal_id="stdio", trust="local")
        await server.run_text_session(aiter(channel), channel.write, McpRequestContext(user, None, chain))
