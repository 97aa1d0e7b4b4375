"""`a2a-fabric mcp`: MCP on stdin and stdout, for a running node or a node of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from typing import Annotated, Any, BinaryIO, Self
from urllib.parse import quote

import msgspec
import typer
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from a2a_fabric.authoring.jsonl import read_in_thread
from a2a_fabric.cli.node_setup import NodeSetup, plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, EnvFile, Token, Url
from a2a_fabric.cli.output import remark
from a2a_fabric.cli.up import start_node
from a2a_fabric.client.local_node import RunningNode, StateFolder, check_token, complete_url, find_token
from a2a_fabric.config import DEFAULT_LISTEN, read_environment
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline, ConfigError, Forbidden
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.core.propagation import (
    DELEGATION_VARIABLE,
    TRACE_VARIABLE,
    MaybeChain,
    chain_from_header,
    chain_to_headers,
    trace_from_traceparent,
    traceparent_to_headers,
)
from a2a_fabric.core.recording import CallOrigin, current_origin
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.doors.mcp import McpDoor
from a2a_fabric.doors.mcp.request import McpConnectionContext
from a2a_fabric.mcp_clients.clients import TOKEN_VARIABLE
from a2a_fabric.stores.description_files import DescriptionFiles

_MAX_MESSAGE = 64 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_READ_AHEAD = 16  # lines
_LONG_LIVED = frozenset({"subscriptions/listen"})  # requests that are answered when the client ends them


def run(
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    env_file: EnvFile = None,
    url: Url = None,
    token: Token = None,
    alone: Annotated[bool, typer.Option("--alone", help="Start another node even if one is running.")] = False,
    view: Annotated[str | None, typer.Option(help="Serve only what this view of the node includes.")] = None,
) -> None:
    """Serve MCP on stdin and stdout, for clients that start programs.

    Connects to the node that runs on this machine, if there is one; with --config or --agents, only if it was
    started with the same files. Otherwise, and with --alone, it starts a node that opens no port and ends with
    the client.
    Only MCP is written to stdout; the log goes to stderr.

    Example: a2a-fabric mcp --agents agents.yaml
    """
    environ = read_environment()
    # Both are set if an agent of a node runs this command.
    chain, traceparent = chain_from_header(environ.get(DELEGATION_VARIABLE)), environ.get(TRACE_VARIABLE)
    state = StateFolder(environ)
    has_files = bool(config or agents)
    if url and (alone or has_files):
        raise typer.BadParameter("--url cannot be used with --config, --agents or --alone")
    setup = plan_setup(config, agents or [], DEFAULT_LISTEN, environ, env_file) if has_files else None
    node_url = None if alone else _find_node(url, environ, state.read_node(), setup)
    with StdioChannel() as channel, asyncio.Runner() as runner:
        if node_url is not None:
            node_token = token or find_token(node_url, environ, state)
            try:
                runner.run(_run_until_signal(relay_to_node(node_url, node_token, chain, channel, view, traceparent)))
                return
            except KeyRefused:
                if setup is None:
                    raise
                remark(f"The node at {node_url} runs this configuration, but with another key: starting one more node")
        setup = setup or plan_setup(config, [], DEFAULT_LISTEN, environ, env_file)
        runner.run(_run_until_signal(_serve_own_node(setup, state, chain, channel, view, traceparent)))


def _find_node(
    url: str | None, environ: Mapping[str, str], running: RunningNode | None, setup: NodeSetup | None
) -> str | None:
    """The address of the node to connect to: if files are named, only a running node with the same files."""
    if setup is None:
        named_url = url or environ.get("FABRIC_URL")
        return complete_url(named_url) if named_url else (running.url if running else None)
    files = tuple(sorted(str(file.resolve()) for file in setup.files))
    return running.url if running is not None and running.files == files else None


class KeyRefused(Forbidden):
    """The node wants a key, or another one."""

    def __init__(self, url: str, *, has_token: bool) -> None:
        reason = "does not accept this key" if has_token else "needs a key"
        super().__init__(
            f"The node at {url} {reason} (HTTP 401). Set {TOKEN_VARIABLE} to the node's key where this program is "
            "started; the key of a node that was started with FABRIC_PSK is the value of FABRIC_PSK"
        )


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM has the effect of the end of stdin, so that the agents that were started end too."""
    task = asyncio.ensure_future(work)
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def relay_to_node(
    url: str,
    token: str | None,
    chain: MaybeChain,
    channel: StdioChannel,
    view: str | None,
    traceparent: str | None = None,
) -> None:
    """Relay each line as a WebSocket message to the node, and each reply as a line to the client."""
    prefix = "" if view is None else f"/views/{quote(view, safe='')}"
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}{prefix}/mcp/ws"
    headers = {**({"Authorization": f"Bearer {check_token(token)}"} if token else {}), **chain_to_headers(chain)}
    headers |= traceparent_to_headers(traceparent)
    try:
        socket = await connect_socket(
            address,
            additional_headers=headers,
            subprotocols=[Subprotocol("mcp")],
            max_size=_MAX_MESSAGE,
            open_timeout=_CONNECT_SECONDS,
        )
    except InvalidStatus as exc:
        if exc.response.status_code == HTTPStatus.UNAUTHORIZED:
            raise KeyRefused(url, has_token=bool(token)) from exc
        raise Forbidden(f"The node at {url} refused the connection: {exc}") from exc
    except InvalidHandshake as exc:
        raise Forbidden(f"The node at {url} refused the connection: {exc}") from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise AgentOffline(f"No node answers at {url}: {exc}") from exc
    async with socket:
        send_task = asyncio.ensure_future(_send_lines(channel, socket))
        receive_task = asyncio.ensure_future(_write_replies(channel, socket))
        try:
            await asyncio.wait({send_task, receive_task}, return_when=asyncio.FIRST_COMPLETED)
            if send_task.done():
                send_task.result()  # raises what went wrong; no reply would come then
            await receive_task
        except ConnectionClosed as exc:
            raise AgentOffline(f"The connection to the node at {url} was lost: {exc}") from exc
        finally:
            await cancel_and_wait(send_task, receive_task)
    if not channel.has_ended:
        raise AgentOffline(f"The node at {url} closed the connection")


async def _send_lines(channel: StdioChannel, socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for line in channel:
            await socket.send(line.decode("utf-8", "replace"))
        await socket.close()


async def _write_replies(channel: StdioChannel, socket: ClientConnection) -> None:
    """Raises ConnectionClosed if the connection is lost."""
    async for message in socket:
        await channel.write(message if isinstance(message, str) else message.decode())


async def _serve_own_node(
    setup: NodeSetup,
    state: StateFolder,
    chain: MaybeChain,
    channel: StdioChannel,
    view: str | None,
    traceparent: str | None,
) -> None:
    """Several clients may start nodes at once, in any folder: a store on disk only where a configuration is.

    Without one, jobs end with the node; what the agents offer is remembered in the state folder.
    """
    has_memory = setup.config_file is not None or setup.is_demo  # the demo needs none
    descriptions = None if has_memory else DescriptionFiles(state.offers)
    async with AsyncExitStack() as stack:
        own_folder = setup.own_folder if setup.config_file else None
        node = await start_node(setup.with_store_in(own_folder), None, stack, descriptions)
        for warning in (*setup.remarks, *setup.warn_of_unset(node.registry.catalog.agents)):
            remark(f"Warning: {warning}")
        door = next((door for door in node.doors if isinstance(door, McpDoor)), None)
        if door is None:
            raise ConfigError("doors: the configuration has no door of kind mcp. Add: {kind: mcp}")
        server = await door.servers.get_gateway_server()
        channel.drain_seconds = node.config.limits.drain_seconds
        trace = trace_from_traceparent(traceparent) if traceparent else None
        current_origin.set(CallOrigin(door="mcp", protocol="mcp+stdio"))
        user = node.narrow_to_view(Principal(mode="none", principal_id="stdio", trust="local"), view)
        await server.run_text_session(aiter(channel), channel.write, McpConnectionContext(user, trace, chain))


class StdioChannel:
    """JSON-RPC messages as lines on stdin and stdout, separated from everything else in the process.

    While it is entered, descriptor 0 is empty and descriptor 1 is stderr: an agent that prints, or a child that reads,
    cannot disturb the connection. A client that closes stdin still gets the replies to its open requests: the iteration
    ends when all requests have been answered, or after `drain_seconds`.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self.drain_seconds = 30.0
        self._unanswered: set[str | int] = set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def __enter__(self) -> Self:
        self._saved_descriptors = (os.dup(0), os.dup(1))
        self._stdin: BinaryIO = os.fdopen(self._saved_descriptors[0], "rb", closefd=False)
        self._stdout: BinaryIO = os.fdopen(self._saved_descriptors[1], "wb", closefd=False)
        with open(os.devnull, "rb") as devnull:
            os.dup2(devnull.fileno(), 0)
        os.dup2(2, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        os.dup2(self._saved_descriptors[0], 0)
        os.dup2(self._saved_descriptors[1], 1)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The lines of stdin."""
        async for line in read_in_thread(lambda: self._stdin.readline(_MAX_MESSAGE), _READ_AHEAD):
            if line.strip():
                self._note_request(line)
                yield line
        self.has_ended = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_seconds):
                await self._all_answered.wait()

    async def write(self, text: str) -> None:
        """Write in a thread, because a slow client blocks the write."""
        line = text.encode()
        if await asyncio.to_thread(self._write, line + b"\n"):
            self._note_reply(line)
        else:
            self._unanswered.clear()
            self._all_answered.set()

    def _write(self, line: bytes) -> bool:
        """Whether the client still reads."""
        try:
            self._stdout.write(line)
            self._stdout.flush()
        except BrokenPipeError:  # stdin will end soon
            return False
        return True

    def _note_request(self, line: bytes) -> None:
        if find_json_problem(line):  # refused unread, so its reply has no id
            return
        message = _decode_message(line)
        if message.method == "notifications/cancelled":  # the request gets no reply
            self._mark_answered(message.params.request_id)
        elif message.method not in _LONG_LIVED and message.method is not None and message.id is not None:
            self._unanswered.add(message.id)
            self._all_answered.clear()

    def _note_reply(self, line: bytes) -> None:
        if self._unanswered:
            message = _decode_message(line)
            if message.method is None:
                self._mark_answered(message.id)

    def _mark_answered(self, request_id: str | int | None) -> None:
        self._unanswered.discard(request_id)
        if not self._unanswered:
            self._all_answered.set()


class _Params(msgspec.Struct, frozen=True):
    request_id: str | int | None = msgspec.field(name="requestId", default=None)


class _Message(msgspec.Struct, frozen=True):
    """The fields that tell which reply belongs to which request."""

    method: str | None = None
    id: str | int | None = None
    params: _Params = _Params()


_decoder = msgspec.json.Decoder(_Message)


def _decode_message(line: bytes) -> _Message:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Message()  # the server reports what is wrong with it
