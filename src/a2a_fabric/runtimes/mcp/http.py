"""The Streamable HTTP transport to an MCP server: the SDK's, over a client that confines an error to its own call.

The SDK takes a broken connection for the end of the whole session. So an HTTP transport below
it answers in the server's place, with a JSON-RPC error that says what happened. It also bounds
the bodies that the SDK reads whole, and adds the trace headers of the call."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import httpx2
import msgspec
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp_types import CONNECTION_CLOSED

from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.runtimes.mcp.content import TransportProblem

CONNECT_TIMEOUT = 10.0
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
_PROBLEM_BY_STATUS: dict[int, TransportProblem] = {429: "busy", 502: "interrupted", 503: "offline", 504: "interrupted"}


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
                _PROBLEM_BY_STATUS.get(status) or ("failed" if status >= 500 else "refused"),
                f"The MCP server answered HTTP {status}",
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
