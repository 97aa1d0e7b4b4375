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
    alone: Annotated[bool, typer.Option("--alone", help="Start a node of its own even if one is running.")] = False,
) -> None:
    """Speak MCP on stdin and stdout, for clients that start their servers.

    It speaks for the node that runs on this machine, if there is one. Otherwise, and with --config,
    --agents or --alone, it starts a node of its own, which opens no port and ends with the client.
    Nothing but MCP is written to stdout; the log goes to stderr.

    Example: a2a-fabric mcp --agents agents.yaml
    """
    environ = read_environment()
    chain = chain_from_header(environ.get(DELEGATION_VARIABLE))  # if an agent of a node started us
    state = StateFolder(environ)
    node_url = None if alone or config or agents else url or environ.get("FABRIC_URL") or _find_running_node(state)
    if url and node_url is None:
        raise typer.BadParameter("a node of its own has no URL: leave out --url, or --config, --agents and --alone")
    with StdioChannel() as channel, asyncio.Runner() as runner:
        if node_url is not None:
            runner.run(
                _run_until_signal(
                    _relay_to_node(node_url, token or find_token(node_url, environ, state), chain, channel)
                )
            )
        else:
            runner.run(
                _run_until_signal(
                    _serve_own_node(plan_setup(config, agents or [], DEFAULT_LISTEN, environ), chain, channel)
                )
            )


def _find_running_node(state: StateFolder) -> str | None:
    node = state.read_node()
    return node.url if node else None


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM ends it as the end of stdin does: agents that we started must not outlive us."""
    task = asyncio.ensure_future(work)
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _relay_to_node(url: str, token: str | None, chain: MaybeChain, channel: StdioChannel) -> None:
    """Every line is one message there and one message back; the node does not notice the difference."""
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
        raise Forbidden(f"The node at {url} refused: {exc}") from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise AgentOffline(f"No node answers at {url}: {exc}") from exc
    async with socket:
        send_task = asyncio.ensure_future(_send_lines(channel, socket))
        try:
            async for message in socket:
                await channel.write(message if isinstance(message, str) else message.decode())
        except ConnectionClosed as exc:
            raise AgentOffline(f"The node at {url} is gone: {exc}") from exc
        finally:
            send_task.cancel()
    if not channel.has_ended:
        raise AgentOffline(f"The node at {url} has closed the conversation")


async def _send_lines(channel: StdioChannel, socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for line in channel:
            await socket.send(line.decode("utf-8", "replace"))
        await socket.close()


async def _serve_own_node(setup: NodeSetup, chain: MaybeChain, channel: StdioChannel) -> None:
    async with AsyncExitStack() as stack:
        # It may be started anywhere, by several clients at once: only a configuration says where it may write.
        node = await start_node(setup.with_store_in(setup.own_folder if setup.config_file else None), None, stack)
        door = next((door for door in node.doors if isinstance(door, McpDoor)), None)
        if door is None:
            raise ConfigError("doors: there is none of kind mcp")
        server = await door.servers.get_gateway_server()
        channel.drain_seconds = node.config.limits.drain_seconds
        user = Principal(mode="none", principal_id="stdio", trust="local")  # whoever started us
        await server.run_text_session(aiter(channel), channel.write, McpRequestContext(user, None, chain))
