"""The HTTP+SSE transport of 2024-11-05 to an MCP server.

One long-lived `GET` brings everything that the server says. Its first event names the address to which messages are
posted; an address at another host is refused, because the messages carry the manifest's credentials. The transport
uses the node's own HTTP client, so addresses are guarded and events are bounded. As in the other transports, a message
that could not be posted is answered in the server's place, and the session stays open.

Some servers answer a POST only when they have done the work, and stop working if it is closed. So the POST of a request
stays open until the request has ended, which its caller's deadline bounds. It takes no place from the messages that are
not requests, such as answers and cancellations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from urllib.parse import urljoin, urlsplit

from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import ConnectFailed, HTTPClient, OutboundError, ReplyTooLarge, StreamedReply
from a2a_fabric.protocols.mcp.wire import McpProtocolError, parse_message
from a2a_fabric.runtimes.mcp.transports import (
    McpHttpTarget,
    McpReceiver,
    RpcRequest,
    call_headers,
    make_status_error,
    make_transport_error,
)
from a2a_fabric.runtimes.upstream import redact_url

_log = logging.getLogger(__name__)

_ENDPOINT_TIMEOUT = 10.0  # seconds until the server must have named the address for messages
_POST_TIMEOUT = 30.0  # of a message that is not a request
_REQUEST_TIMEOUT = 24 * 3600.0  # more than any call may take: the deadline of the call ends it
_MAX_REPLY_BYTES = 64 * 1024  # of the reply to a posted message, which says nothing of interest
_MAX_ENDPOINT_LENGTH = 4096
_MAX_POSTS = 32  # of messages that are not requests, at a time
_MAX_REQUESTS = 256  # at a time
_MAX_LOGGED_EVENTS = 10


class McpSseTransport:
    """One stream of events, and the messages that are posted beside it."""

    cancels_by_closing = False

    def __init__(self, target: McpHttpTarget, http: HTTPClient, post_timeout: float = _POST_TIMEOUT) -> None:
        self.is_ending = False
        self._receiver: McpReceiver  # set when it is open, as is the address for messages
        self._address: str
        self._target = target
        self._http = http  # belongs to the node
        self._post_timeout = post_timeout
        self._server = f"The MCP server at {redact_url(target.uri)}"
        self._end_reason: str | None = None
        self._invalid_events = 0
        self._posts: set[asyncio.Task[None]] = set()
        self._post_slots = asyncio.Semaphore(_MAX_POSTS)
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)

    @property
    def end_reason(self) -> str:
        return self._end_reason or f"{self._server} ended its stream of events"

    @asynccontextmanager
    async def open(self, receiver: McpReceiver, on_ended: Callable[[], None]) -> AsyncIterator[None]:
        """Raises AgentOffline if the server names no usable address."""
        self._receiver = receiver
        endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        read_task = asyncio.ensure_future(self._read_stream(endpoint, on_ended))
        try:
            self._address = await self._wait_for_endpoint(endpoint)
            yield
        finally:
            await cancel_and_wait(read_task, *self._posts)

    def start(
        self, method: str, body: bytes, headers: Mapping[str, str], request: RpcRequest | None = None
    ) -> asyncio.Task[None]:
        """Each message has a task of its own. The caller cancels that of a request when the request has ended."""
        task = asyncio.get_running_loop().create_task(self._post(body, request))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)
        return task

    async def _wait_for_endpoint(self, endpoint: asyncio.Future[str]) -> str:
        try:
            async with asyncio.timeout(_ENDPOINT_TIMEOUT):
                named = await endpoint
        except TimeoutError as exc:
            reason = f"{self._server} named no address for messages within {_ENDPOINT_TIMEOUT:g} s"
            raise AgentOffline(f"{reason}. Is it a server of the transport HTTP+SSE?") from exc
        address = urljoin(self._target.uri, named)
        own, other = urlsplit(self._target.uri), urlsplit(address)
        if (own.scheme, own.netloc) != (other.scheme, other.netloc):
            raise AgentOffline(f"{self._server} named an address for messages at another host, which is refused")
        return address

    async def _read_stream(self, endpoint: asyncio.Future[str], on_ended: Callable[[], None]) -> None:
        headers = {"accept": "text/event-stream", "cache-control": "no-store", **self._target.headers}
        try:
            async with self._http.stream("GET", self._target.uri, headers=headers, timeout=inf, limit=2**62) as reply:
                self._check_head(reply)
                await self._read_events(reply, endpoint)
        except ReplyTooLarge:
            self._end_reason = f"{self._server} sent an event larger than {self._target.reply_bytes} bytes"
        except ConnectFailed as exc:
            self._end_reason = f"{self._server} cannot be reached: {exc}"
        except OutboundError as exc:
            self._end_reason = f"The connection to {self._server[0].lower()}{self._server[1:]} broke: {exc}"
        except FabricError as exc:
            self._end_reason = exc.message
        finally:
            self.is_ending = True
            if not endpoint.done():
                endpoint.set_exception(AgentOffline(self.end_reason))
                endpoint.exception()  # so that it is not reported as never retrieved
            on_ended()

    def _check_head(self, reply: StreamedReply) -> None:
        media_type = reply.headers.get("content-type", "")
        if reply.status != 200:
            raise AgentOffline(f"{self._server} answered HTTP {reply.status} where its stream of events should be")
        if not media_type.lower().startswith("text/event-stream"):
            raise AgentOffline(f"{self._server} answered with content of type '{media_type[:100]}', not with events")

    async def _read_events(self, reply: StreamedReply, endpoint: asyncio.Future[str]) -> None:
        async for data in sse.iter_event_data(reply.chunks(), limit=self._target.reply_bytes):
            if not endpoint.done():
                endpoint.set_result(data[:_MAX_ENDPOINT_LENGTH].decode(errors="replace").strip())
                continue
            try:
                message = parse_message(data)
            except McpProtocolError:
                self._invalid_events += 1
                if self._invalid_events <= _MAX_LOGGED_EVENTS:
                    _log.warning("%s sent an event that is not an MCP message: %r", self._server, data[:200])
                continue
            await self._receiver.receive(message, None)

    async def _post(self, body: bytes, request: RpcRequest | None) -> None:
        headers = {"content-type": "application/json", **self._target.headers, **(call_headers.get() or {})}
        slots, timeout = (
            (self._post_slots, self._post_timeout) if request is None else (self._request_slots, _REQUEST_TIMEOUT)
        )
        try:
            async with slots:
                reply = await self._http.request(
                    "POST", self._address, headers=headers, body=body, timeout=timeout, limit=_MAX_REPLY_BYTES
                )
            if 200 <= reply.status < 300:
                return
            error = make_status_error(reply.status, reply.headers, reply.body)
        except ConnectFailed as exc:
            error = make_transport_error("offline", f"The MCP server cannot be reached: {exc}")
        except OutboundError as exc:
            error = make_transport_error("interrupted", f"The message to the MCP server was not confirmed: {exc}")
        except FabricError as exc:  # there is no token
            error = make_transport_error("offline", exc.message)
        if request is not None:
            self._receiver.fail(request, error)
