"""What a transport to an MCP server is, and the one over Streamable HTTP; `stdio` and `sse` hold the others.

A transport sends encoded messages and hands each message of the server to its receiver. It confines an error to
the request that met it: a request that cannot be answered fails with a JSON-RPC error made in the server's place,
which says what happened, and the session stays open.

Over HTTP every message is one POST by the node's own client. Invariants:
- A request's POST runs in a task of its own and reads until the request is answered, so its caller may leave.
- Messages in the reply to a POST belong to its request, whatever id a reply there has.
- The reply may come by another way (the GET stream); then the task of the POST is cancelled by the receiver.
- Streams that stay open for hours (GET, `subscriptions/listen`) take none of the connections that calls share.
- A stream that breaks off is resumed only if the server gave its events ids; the request is never posted twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol
from urllib.parse import urljoin

import msgspec
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound.credentials import UNAUTHORIZED
from a2a_fabric.outbound.guard import parse_url
from a2a_fabric.outbound.port import ConnectFailed, HTTPClient, OutboundError, ReplyTooLarge, StreamedReply
from a2a_fabric.outbound.sse import SSEParser, is_event_stream
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.protocols.mcp.wire import (
    LISTEN_METHOD,
    POST_HEADERS,
    SESSION_HEADER,
    VERSION_HEADER,
    McpMessage,
    McpProtocolError,
    decode_or_none,
    is_stateless_version,
    parse_message,
)
from a2a_fabric.runtimes.mcp.content import TransportProblem, UpstreamRpcError
from a2a_fabric.runtimes.upstream import read_bounded, read_excerpt, read_retry_after

_log = logging.getLogger(__name__)

_POST_TIMEOUT = 24 * 3600.0  # seconds; each call has a deadline of its own
_DELETE_TIMEOUT = 3.0
_MAX_REDIRECTS = 5
_MAX_RESUMES = 2  # failed attempts in a row
_RESUME_DELAY = 1.0  # seconds, unless the server names another
_MIN_RESUME_DELAY = 0.05
_ERROR_BYTES = 64 * 1024

# As `upstream.STATUS_ERRORS`, in the words of an error that is made in the server's place.
PROBLEM_BY_STATUS: dict[int, TransportProblem] = {429: "busy", 502: "interrupted", 503: "offline", 504: "interrupted"}
_LOGIN_HINT = (
    ": it wants credentials. Set `auth: oauth` in the endpoint if callers sign in there, or a header with a token"
)

# The headers of the call for which something is sent.
call_headers: ContextVar[Mapping[str, str] | None] = ContextVar("mcp_call_headers", default=None)

RequestId = str | int


class RpcRequest:
    """A request in flight. The first reply counts; it is the encoded result, or an error."""

    __slots__ = ("call", "id", "method", "on_progress", "reply", "task")

    def __init__(self, request_id: RequestId, method: str, on_progress: ProgressFnT | None, call: Any) -> None:
        self.id = request_id
        self.method = method
        self.on_progress = on_progress
        self.call = call  # the caller's side, to which the server's questions during the request belong
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None  # that sends the request, if sending takes time

    @property
    def is_answered(self) -> bool:
        return self.reply.done()


class McpReceiver(Protocol):
    """Takes what a transport receives."""

    async def receive(self, message: McpMessage, request: RpcRequest | None) -> None:
        """A message of the server; `request` is known if the message came in the reply to it."""
        ...

    def fail(self, request: RpcRequest, error: UpstreamRpcError) -> None:
        """The transport knows that no reply to this request will come."""
        ...


class McpTransport(Protocol):
    """A transport to one server; it is opened once."""

    is_ending: bool  # the server will send nothing more; why, is not known yet

    @property
    def end_reason(self) -> str:
        """Why it has ended, for people."""
        ...

    @property
    def cancels_by_closing(self) -> bool:
        """Whether ending a request's task tells the server that the request is cancelled."""
        ...

    def open(self, receiver: McpReceiver, on_ended: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Calls `on_ended` when the server sends nothing more. Raises AgentOffline."""
        ...

    def start(
        self, method: str, body: bytes, headers: Mapping[str, str], request: RpcRequest | None = None
    ) -> asyncio.Task[None] | None:
        """Send a message; `method` is empty for a response. The task ends when it is sent, or the request failed.

        None means that it is sent already. Never raises.
        """
        ...


def make_transport_error(problem: TransportProblem, message: str, status: int | None = None) -> UpstreamRpcError:
    data = {TROUBLE_KEY: problem, "status": status} if status else {TROUBLE_KEY: problem}
    return UpstreamRpcError(CONNECTION_CLOSED, message, data)


def make_status_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamRpcError:
    """The error of a reply that is no JSON-RPC: a refusal (4xx) in its own words."""
    problem = PROBLEM_BY_STATUS.get(status) or ("failed" if status >= 500 else "refused")
    retry_after = read_retry_after(headers)
    if status == 503 and retry_after is not None:
        problem = "busy"
    hint = _LOGIN_HINT if status == UNAUTHORIZED else ""
    words = read_excerpt(body) if 400 <= status < 500 else ""
    explanation = f"{'. It says' if hint else ''}: {words}" if words else ""
    error = make_transport_error(problem, f"The MCP server answered HTTP {status}{hint}{explanation}", status)
    if retry_after is not None:
        error.data["retry_after"] = retry_after
    return error


class McpHttpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, its headers, and the largest reply."""

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int


class McpHttpTransport:
    """The transport of one session."""

    is_ending = False
    end_reason = "The connection to the MCP server is closed"

    def __init__(self, target: McpHttpTarget, http: HTTPClient) -> None:
        self._uri = target.uri  # after redirects within the same origin, where they led
        self._reply_bytes = target.reply_bytes
        self._http = http  # belongs to the node
        self._receiver: McpReceiver  # set when it is open
        self._session_id: str | None = None
        self._version: str | None = None  # as last sent: messages without a version of their own have the same
        self._own_headers = {name.lower(): value for name, value in target.headers.items()}
        self._headers = self._make_headers()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def cancels_by_closing(self) -> bool:
        return is_stateless_version(self._version)

    @asynccontextmanager
    async def open(self, receiver: McpReceiver, on_ended: Callable[[], None]) -> AsyncIterator[None]:
        self._receiver = receiver
        try:
            yield
        finally:
            await cancel_and_wait(*self._tasks)
            await self._delete_session()

    def start(
        self, method: str, body: bytes, headers: Mapping[str, str], request: RpcRequest | None = None
    ) -> asyncio.Task[None]:
        version = None if method == "initialize" else headers.get(VERSION_HEADER, self._version)
        if version != self._version:
            self._version = version
            self._headers = self._make_headers()
        all_headers = {**self._headers, **headers, **(call_headers.get() or {})}
        return self._start_task(self._post(method, body, all_headers, request))

    def _start_task(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _make_headers(self) -> dict[str, str]:
        headers = {"accept-encoding": "identity", **self._own_headers, **POST_HEADERS}
        if self._session_id is not None:
            headers[SESSION_HEADER] = self._session_id
        if self._version is not None:
            headers[VERSION_HEADER] = self._version
        return headers

    async def _post(self, method: str, body: bytes, headers: dict[str, str], request: RpcRequest | None) -> None:
        error: UpstreamRpcError | None
        try:
            error = await self._post_and_read(method, body, headers, request)
        except ConnectFailed as exc:
            error = make_transport_error("offline", f"The MCP server cannot be reached: {exc}")
        except ReplyTooLarge:
            error = self._make_size_error()
        except OutboundError as exc:
            error = make_transport_error("interrupted", f"The connection to the MCP server broke: {exc}")
        except FabricError as exc:  # there is no token; the runtime above raises it again, as it is
            error = make_transport_error("offline", exc.message)
        if request is not None and error is not None and not request.is_answered:
            self._receiver.fail(request, error)
        if method == "notifications/initialized" and self._session_id is not None:
            self._start_task(self._listen())

    async def _post_and_read(
        self, method: str, body: bytes, headers: dict[str, str], request: RpcRequest | None
    ) -> UpstreamRpcError | None:
        """None if the request was answered. Raises OutboundError or FabricError."""
        timeout = inf if method == LISTEN_METHOD else _POST_TIMEOUT
        for _ in range(_MAX_REDIRECTS):
            async with self._http.stream(
                "POST", self._uri, headers=headers, body=body, timeout=timeout, limit=2**62
            ) as reply:
                location = self._find_redirect(reply) if reply.status in (307, 308) else None
                if location is None or not _is_same_origin(self._uri, location):
                    if method == "initialize" and reply.status < 400:
                        self._session_id = reply.headers.get(SESSION_HEADER) or None
                        self._headers = self._make_headers()
                    return None if request is None else await self._read_reply(reply, headers, request)
            self._uri = location
        return UpstreamRpcError(INVALID_REQUEST, f"The MCP server answered with {_MAX_REDIRECTS} redirects in a row")

    async def _read_reply(
        self, reply: StreamedReply, headers: Mapping[str, str], request: RpcRequest
    ) -> UpstreamRpcError | None:
        status, kind = reply.status, reply.headers.get("content-type", "").lower()
        if status >= 400:
            return await self._read_refusal(reply, headers)
        if 300 <= status < 400 and (location := self._find_redirect(reply)) is not None:
            if not _is_same_origin(self._uri, location):
                reason = f"The MCP server answered HTTP {status}, a redirect to another origin, which is never followed"
                return make_transport_error("failed", reason)
            reason = f"Redirect to {location.partition('?')[0]} not followed"
            return UpstreamRpcError(INVALID_REQUEST, f"{reason}; use that URL as the endpoint")
        if status == 202:
            return UpstreamRpcError(INVALID_REQUEST, "server answered a request with 202 Accepted")
        if kind.startswith("application/json"):
            body = await read_bounded(reply, self._reply_bytes)
            error = await self._deliver(body, request, "Failed to parse JSON response")
            if error is None and not request.is_answered:
                error = UpstreamRpcError(PARSE_ERROR, "Failed to parse JSON response: it is not a reply")
            return error
        if is_event_stream(reply.headers):
            return await self._read_stream(reply, request)
        if status == 200 and kind:
            return make_transport_error("failed", f"The MCP server answered with content of type '{kind[:100]}'")
        return UpstreamRpcError(INVALID_REQUEST, f"Unexpected content type: {kind[:100]}")

    def _find_redirect(self, reply: StreamedReply) -> str | None:
        location = reply.headers.get("location")
        return urljoin(self._uri, location) if location else None

    async def _read_refusal(self, reply: StreamedReply, headers: Mapping[str, str]) -> UpstreamRpcError:
        status, body = reply.status, await read_bounded(reply, _ERROR_BYTES)
        if status == 404 and SESSION_HEADER in headers:
            return make_transport_error("gone", "The MCP server no longer knows the session", status)
        refusal: _Refusal | None = decode_or_none(body, _Refusal)
        if refusal is not None and refusal.jsonrpc == "2.0":
            return refusal.error
        return make_status_error(status, reply.headers, body)

    async def _read_stream(self, reply: StreamedReply, request: RpcRequest) -> UpstreamRpcError | None:
        """Read the events of a reply, and resume the stream if it can be resumed."""
        events = SSEParser(self._reply_bytes)
        if (error := await self._read_events(reply, events, request)) is not None or request.is_answered:
            return error
        failures = 0
        while events.last_id and failures < _MAX_RESUMES:
            await self._pause(events)
            had_events = await self._resume(events, request)
            if request.is_answered:
                return None
            failures = 0 if had_events else failures + 1
        if events.last_id:
            reason = "SSE stream ended and reconnection attempts were exhausted"
            return UpstreamRpcError(CONNECTION_CLOSED, reason)
        return UpstreamRpcError(CONNECTION_CLOSED, "SSE stream ended without a response")

    async def _read_events(
        self, reply: StreamedReply, events: SSEParser, request: RpcRequest | None
    ) -> UpstreamRpcError | None:
        """Read until the request is answered or the stream ends. Raises ReplyTooLarge."""
        try:
            while chunk := await reply.next_chunk():
                for data in events.feed(chunk):
                    if data and events.event_name in ("", "message"):
                        error = await self._deliver(data, request, "Failed to parse SSE message")
                        if request is not None and (error is not None or request.is_answered):
                            return error
        except ReplyTooLarge:
            raise
        except OutboundError as exc:
            _log.debug("The stream of %s broke off: %s", self._uri, exc)
        return None

    async def _resume(self, events: SSEParser, request: RpcRequest | None) -> bool:
        """Open the stream of events that the server keeps for us. False if that failed."""
        headers = {**self._headers, "accept": "text/event-stream", "cache-control": "no-store"}
        if events.last_id:
            headers["last-event-id"] = events.last_id
        try:
            async with self._http.stream("GET", self._uri, headers=headers, timeout=inf, limit=2**62) as reply:
                if reply.status != 200 or not is_event_stream(reply.headers):
                    _log.debug("%s answered HTTP %d, and opened no stream", self._uri, reply.status)
                    return False
                error = await self._read_events(reply, events, request)
                if request is not None and error is not None:
                    self._receiver.fail(request, error)
                return True
        except ReplyTooLarge:
            if request is None:
                return False
            self._receiver.fail(request, self._make_size_error())
            return True
        except (OutboundError, FabricError):
            return False

    async def _listen(self) -> None:
        """Read what the server sends on its own, beside the replies to requests."""
        events, failures = SSEParser(self._reply_bytes), 0
        while failures < _MAX_RESUMES:
            failures = 0 if await self._resume(events, None) else failures + 1
            await self._pause(events)

    async def _pause(self, events: SSEParser) -> None:
        await asyncio.sleep(_RESUME_DELAY if events.retry is None else max(_MIN_RESUME_DELAY, events.retry))

    async def _deliver(self, data: bytes, request: RpcRequest | None, complaint: str) -> UpstreamRpcError | None:
        try:
            message = parse_message(data)
        except McpProtocolError as exc:
            return UpstreamRpcError(PARSE_ERROR, f"{complaint}: {exc.message}")
        await self._receiver.receive(message, request)
        return None

    def _make_size_error(self) -> UpstreamRpcError:
        return make_transport_error("refused", f"The MCP server's reply is larger than {self._reply_bytes} bytes")

    async def _delete_session(self) -> None:
        if self._session_id is None:
            return
        try:
            await self._http.request(
                "DELETE", self._uri, headers=self._headers, timeout=_DELETE_TIMEOUT, limit=_ERROR_BYTES
            )
        except (OutboundError, FabricError) as exc:
            _log.debug("The session with %s could not be ended: %s", self._uri, exc)


class _Refusal(msgspec.Struct):
    error: UpstreamRpcError
    jsonrpc: str = ""


def _is_same_origin(uri: str, location: str) -> bool:
    """The same scheme, host and port; or from http to https at the same host, both with the usual port."""
    try:
        own, other = parse_url(uri), parse_url(location)
    except ConnectFailed:
        return False
    return own.host == other.host and (
        (own.scheme, own.port) == (other.scheme, other.port)
        or ((own.scheme, own.port) == ("http", 80) and (other.scheme, other.port) == ("https", 443))
    )
