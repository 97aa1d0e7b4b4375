"""The transports to an MCP server, Streamable HTTP and stdio, as the message streams that the SDK's session uses.

HTTP is the SDK's transport, over a client that confines an error to its own call. The SDK takes a broken
connection for the end of the whole session. So an HTTP transport below it answers in the server's place, with a
JSON-RPC error that says what happened. It also bounds the bodies that the SDK reads whole, and adds the trace
headers of the call.

A program is started by the node itself: it gets its own process group, its stderr is kept, its lines are bounded,
and no process of its group outlives it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, jsonrpc_message_adapter
from pydantic import ValidationError

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.logins import BearerSource
from a2a_fabric.outbound.bearer import UNAUTHORIZED
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.runtimes.mcp.content import TransportProblem
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, read_lines

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
_MAX_QUEUED = 64  # messages in each direction; then the sender waits
_WRITE_TIMEOUT = 10.0
_EXIT_TIMEOUT = 2.0
_MAX_LOGGED_LINES = 10
MAX_CONNECTIONS = 500
_ERROR_BYTES = 64 * 1024

# The headers of the call for which something is sent; the SDK passes the context on to the sending task.
call_headers: ContextVar[Mapping[str, str] | None] = ContextVar("mcp_call_headers", default=None)


class McpHttpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, its headers, and the largest reply."""

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int
    guard: Guard | None = None
    bearer: BearerSource | None = None


class McpHttpTransport:
    """The transport of one session."""

    is_ending = False

    def __init__(self, target: McpHttpTarget) -> None:
        self._target = target

    @property
    def end_reason(self) -> str:
        return "The connection to the MCP server is closed"

    @asynccontextmanager
    async def open(self, ended: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
        target = self._target
        transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(
            _load_ssl_context(), limits=_LIMITS, trust_env=False
        )
        if target.guard is not None:
            transport = _GuardedTransport(transport, target.guard)
        if target.bearer is not None:
            transport = _BearerTransport(transport, target.bearer, httpx2.URL(target.uri))
        client = httpx2.AsyncClient(
            transport=_ErrorContainingTransport(transport, target.reply_bytes),
            headers={"accept-encoding": "identity", **target.headers},
            timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None),  # each call has a deadline of its own
            trust_env=False,
        )
        async with (
            client,
            streamable_http_client(target.uri, http_client=client, max_sse_event_size=target.reply_bytes) as streams,
        ):
            yield streams


_LIMITS = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100, keepalive_expiry=4.0)


@cache
def _load_ssl_context() -> ssl.SSLContext:
    """Loaded once: it takes 30 ms, in which the event loop stands still."""
    return httpx2.create_ssl_context(trust_env=False)


_DRAIN_TIMEOUT = 0.1  # seconds
_DRAIN_CHUNKS = 16

_READABLE_TYPES = ("application/json", "text/event-stream")
# As `upstream.STATUS_ERRORS`, in the words that go through the SDK.
PROBLEM_BY_STATUS: dict[int, TransportProblem] = {429: "busy", 502: "interrupted", 503: "offline", 504: "interrupted"}


_LOGIN_HINT = (
    ": it wants credentials. Set `auth: oauth` in the endpoint if callers sign in there, or a header with a token"
)


class _ErrorContainingTransport(httpx2.AsyncBaseTransport):
    """Never raises for a POST: every failure becomes a JSON-RPC error in the reply."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, reply_bytes: int) -> None:
        self._inner = inner
        self._reply_bytes = reply_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (headers := call_headers.get()) is not None:
            request.headers.update(headers)
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        try:
            return await self._read_response(request, await self._inner.handle_async_request(request))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as exc:
            return _make_error_response("offline", f"The MCP server cannot be reached: {exc or type(exc).__name__}")
        except _TooLarge:
            return _make_error_response("refused", f"The MCP server's reply is larger than {self._reply_bytes} bytes")
        except httpx2.TransportError as exc:
            return _make_error_response(
                "interrupted", f"The connection to the MCP server broke: {exc or type(exc).__name__}"
            )

    async def _read_response(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Bodies that are not streams are read here, where their size is bounded."""
        status, kind = response.status_code, response.headers.get("content-type", "").lower()
        if (reason := _find_unreadable_reason(request, response, kind)) is not None:
            await response.aclose()
            return _make_error_response("failed", reason)
        if status < 400 and not kind.startswith("application/json"):
            response.stream = _DrainingStream(response.stream)
            return response
        limit = self._reply_bytes if status < 400 else _ERROR_BYTES
        body = await _read_body(response, limit)
        if status == 404 and MCP_SESSION_ID in request.headers:
            return _make_error_response("gone", "The MCP server no longer knows the session", status)
        if status >= 400 and not _is_rpc_error(body):
            return _make_error_response(
                PROBLEM_BY_STATUS.get(status) or ("failed" if status >= 500 else "refused"),
                f"The MCP server answered HTTP {status}{_LOGIN_HINT if status == UNAUTHORIZED else ''}",
                status,
            )
        return httpx2.Response(status, headers={"content-type": kind, **_copy_session_header(response)}, content=body)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _DrainingStream(httpx2.AsyncByteStream):
    """Reads on for a moment when it is closed: closing a stream before its end would close the connection too.

    The SDK closes a stream as soon as it has the answer, which is usually the last event.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._chunks: AsyncIterator[bytes] = aiter(inner)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT):
                for _ in range(_DRAIN_CHUNKS):
                    await anext(self._chunks)
        except (StopAsyncIteration, TimeoutError, RuntimeError, httpx2.TransportError):
            pass  # it has ended, takes longer, or is being read elsewhere
        finally:
            await self._inner.aclose()


class _GuardedTransport(httpx2.AsyncBaseTransport):
    """Connects to an address that the guard allowed, never to the name. TLS still checks the name."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            address = (await self._guard.resolve_addresses(host, port))[0]
        except ConnectFailed as exc:
            raise httpx2.ConnectError(str(exc), request=request) from exc
        if request.url.scheme == "https":
            request.extensions = {**request.extensions, "sni_hostname": host}
        request.url = request.url.copy_with(host=address)  # the Host header is set already
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BearerTransport(httpx2.AsyncBaseTransport):
    """Sends the principal's token to the server's own origin, and renews it once if the server rejects it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, bearer: BearerSource, uri: httpx2.URL) -> None:
        self._inner = inner
        self._bearer = bearer
        self._origin = (uri.scheme, uri.host, uri.port)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (request.url.scheme, request.url.host, request.url.port) != self._origin:
            return await self._inner.handle_async_request(request)
        url = request.url  # the guard's transport puts an address in its place
        try:
            token = await self._bearer.get()
            _set_bearer(request, token)
            response = await self._inner.handle_async_request(request)
            if response.status_code != UNAUTHORIZED:
                return response
            await response.aclose()
            _set_bearer(request, await self._bearer.renew(token))
        except FabricError as exc:  # the runtime above raises it again, as it is
            raise httpx2.ConnectError(exc.message, request=request) from exc
        request.url = url
        response = await self._inner.handle_async_request(request)
        if response.status_code == UNAUTHORIZED:
            self._bearer.reject()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _set_bearer(request: httpx2.Request, token: str | None) -> None:
    if token is not None:
        request.headers["authorization"] = f"Bearer {token}"


class _TooLarge(Exception):
    pass


async def _read_body(response: httpx2.Response, limit: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                raise _TooLarge
    finally:
        await response.aclose()
    return bytes(body)


def _copy_session_header(response: httpx2.Response) -> dict[str, str]:
    session_id = response.headers.get(MCP_SESSION_ID)
    return {MCP_SESSION_ID: session_id} if session_id else {}


def _find_unreadable_reason(request: httpx2.Request, response: httpx2.Response, kind: str) -> str | None:
    """Why a reply cannot be used, where the SDK would report an error as if the server had sent it."""
    status = response.status_code
    if status == 200 and kind and not kind.startswith(_READABLE_TYPES):
        return f"The MCP server answered with content of type '{kind[:100]}'"
    if 300 <= status < 400 and "location" in response.headers:
        location, current = request.url.join(response.headers["location"]), request.url
        if (location.host, location.port) != (current.host, current.port) or location.scheme not in (
            current.scheme,
            "https",
        ):
            return f"The MCP server answered HTTP {status}, a redirect to another origin, which is never followed"
    return None


def _is_rpc_error(body: bytes) -> bool:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("jsonrpc") == "2.0" and isinstance(message.get("error"), dict)


def _make_error_response(kind: TransportProblem, message: str, status: int | None = None) -> httpx2.Response:
    data = {TROUBLE_KEY: kind, "status": status} if status else {TROUBLE_KEY: kind}
    error = {"code": CONNECTION_CLOSED, "message": message, "data": data}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(status or 503, headers={"content-type": "application/json"}, content=body)


ReceiveStream = MemoryObjectReceiveStream[SessionMessage | Exception]
SendStream = MemoryObjectSendStream[SessionMessage]


class McpStdioTransport:
    """One run of the program. A line that it sends is at most `line_bytes` long."""

    def __init__(self, program: ProgramSpec, line_bytes: int, grace: float) -> None:
        self.is_ending = False
        self._program = program
        self._line_bytes = line_bytes
        self._grace = grace
        self._child: ChildProcess | None = None
        self._protocol_error: str | None = None
        self._invalid_lines = 0

    @property
    def end_reason(self) -> str:
        """Why the program or the transport has ended."""
        if self._protocol_error is not None or self._child is None:
            return self._protocol_error or self._program.describe("is not running")
        return self._child.exit_summary

    @asynccontextmanager
    async def open(self, ended: asyncio.Event) -> AsyncIterator[tuple[ReceiveStream, SendStream]]:
        """Raises AgentOffline if the program cannot be started. Sets `ended` when the program sends nothing more."""
        self._child = child = await ChildProcess.start(self._program)
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
        tasks = [
            asyncio.ensure_future(self._read_messages(child, to_session, ended)),
            asyncio.ensure_future(self._write_messages(child, from_session)),
        ]
        try:
            yield incoming, outgoing
        finally:
            for stream in (incoming, outgoing, from_session):
                stream.close()
            try:
                await child.stop(self._grace)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                to_session.close()

    async def _read_messages(
        self, child: ChildProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception], ended: asyncio.Event
    ) -> None:
        try:
            async for line in read_lines(child.stdout, self._line_bytes):
                message = self._parse_message(line)
                if message is not None:
                    await to_session.send(message)
        except LineTooLong:
            self._protocol_error = child.program.describe(f"sent a line longer than {self._line_bytes} bytes")
            child.kill()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session has ended
        finally:
            self.is_ending = True
            await self._wait_for_exit(child)
            ended.set()
            to_session.close()

    async def _wait_for_exit(self, child: ChildProcess) -> None:
        """Stdout ends with the program, as a rule; wait a moment to be able to report how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await child.ended.wait()

    async def _write_messages(
        self, child: ChildProcess, from_session: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        try:
            async for message in from_session:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                child.stdin.write(line.encode() + b"\n")
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await child.stdin.drain()
        except TimeoutError:
            self._protocol_error = child.program.describe(f"did not read its input for {_WRITE_TIMEOUT:g} s")
            child.kill()
        except (ConnectionError, RuntimeError):  # the program closed its stdin, or died
            child.kill()

    def _parse_message(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except (ValidationError, ValueError):
            self._invalid_lines += 1
            if self._invalid_lines <= _MAX_LOGGED_LINES:
                _log.warning(
                    "%s: not an MCP message on stdout: %r",
                    self._program.agent_id,
                    line[:200],
                )
            return None
