"""The HTTP+SSE transport of 2024-11-05 to an MCP server, as the message streams that the SDK's session uses.

One long-lived `GET` brings everything that the server says. Its first event names the address to which messages are
posted; an address at another host is refused, because the messages carry the manifest's credentials. The transport
uses the node's own HTTP client, so addresses are guarded and events are bounded. As in the other transports, a message
that could not be posted is answered in the server's place, and the session stays open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import ConnectFailed, HTTPClient, OutboundError, ReplyTooLarge, StreamedReply
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.runtimes.mcp.content import TransportProblem
from a2a_fabric.runtimes.mcp.transports import PROBLEM_BY_STATUS, McpHttpTarget, call_headers
from a2a_fabric.runtimes.upstream import redact_url

_log = logging.getLogger(__name__)

_ENDPOINT_TIMEOUT = 10.0  # seconds until the server must have named the address for messages
_POST_TIMEOUT = 30.0
_STREAM_TIMEOUT = 24 * 3600.0  # seconds; then the next call opens another stream
_MAX_REPLY_BYTES = 64 * 1024  # of the reply to a posted message, which says nothing of interest
_MAX_ENDPOINT_LENGTH = 4096
_MAX_QUEUED = 64  # messages in each direction; then the sender waits
_MAX_POSTS = 32  # at a time
_MAX_LOGGED_EVENTS = 10


class McpSseTransport:
    """One stream of events, and the messages that are posted beside it."""

    def __init__(self, target: McpHttpTarget, http: HTTPClient) -> None:
        self.is_ending = False
        self._target = target
        self._http = http  # belongs to the node
        self._server = f"The MCP server at {redact_url(target.uri)}"
        self._end_reason: str | None = None
        self._invalid_events = 0
        self._posts: set[asyncio.Task[None]] = set()
        self._post_slots = asyncio.Semaphore(_MAX_POSTS)

    @property
    def end_reason(self) -> str:
        return self._end_reason or f"{self._server} ended its stream of events"

    @asynccontextmanager
    async def open(self, ended: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
        """Raises AgentOffline if the server names no usable address. Sets `ended` when its stream has ended."""
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
        outgoing, from_session = create_context_streams[SessionMessage](_MAX_QUEUED)
        endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks = [asyncio.ensure_future(self._read_stream(endpoint, to_session, ended))]
        try:
            address = await self._wait_for_endpoint(endpoint)
            tasks.append(asyncio.ensure_future(self._post_messages(address, from_session, to_session)))
            yield incoming, outgoing
        finally:
            for stream in (incoming, outgoing, from_session):
                stream.close()
            for task in (*tasks, *self._posts):
                task.cancel()
            await asyncio.wait([*tasks, *self._posts])
            to_session.close()

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

    async def _read_stream(self, endpoint: asyncio.Future[str], to_session: Any, ended: asyncio.Event) -> None:
        headers = {"accept": "text/event-stream", "cache-control": "no-store", **self._target.headers}
        try:
            async with self._http.stream(
                "GET", self._target.uri, headers=headers, timeout=_STREAM_TIMEOUT, limit=2**62
            ) as reply:
                self._check_head(reply)
                await self._read_events(reply, endpoint, to_session)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session has ended
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
            ended.set()
            to_session.close()

    def _check_head(self, reply: StreamedReply) -> None:
        media_type = reply.headers.get("content-type", "")
        if reply.status != 200:
            raise AgentOffline(f"{self._server} answered HTTP {reply.status} where its stream of events should be")
        if not media_type.lower().startswith("text/event-stream"):
            raise AgentOffline(f"{self._server} answered with content of type '{media_type[:100]}', not with events")

    async def _read_events(self, reply: StreamedReply, endpoint: asyncio.Future[str], to_session: Any) -> None:
        async for data in sse.iter_event_data(reply.chunks(), limit=self._target.reply_bytes):
            if not endpoint.done():
                endpoint.set_result(data[:_MAX_ENDPOINT_LENGTH].decode(errors="replace").strip())
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(data, by_name=False)
            except (ValidationError, ValueError):
                self._invalid_events += 1
                if self._invalid_events <= _MAX_LOGGED_EVENTS:
                    _log.warning("%s sent an event that is not an MCP message: %r", self._server, data[:200])
                continue
            await to_session.send(SessionMessage(message))

    async def _post_messages(self, address: str, from_session: Any, to_session: Any) -> None:
        """Post each message in a task of its own: some servers answer only when they have done the work."""
        async for message in from_session:
            await self._post_slots.acquire()
            post = self._post(address, message.message, to_session)
            task = asyncio.get_running_loop().create_task(post, context=from_session.last_context)
            self._posts.add(task)
            task.add_done_callback(self._finish_post)

    def _finish_post(self, task: asyncio.Task[None]) -> None:
        self._posts.discard(task)
        self._post_slots.release()

    async def _post(self, address: str, message: Any, to_session: Any) -> None:
        headers = {"content-type": "application/json", **self._target.headers, **(call_headers.get() or {})}
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        problem: TransportProblem
        try:
            reply = await self._http.request(
                "POST", address, headers=headers, body=body, timeout=_POST_TIMEOUT, limit=_MAX_REPLY_BYTES
            )
            if 200 <= reply.status < 300:
                return
            problem = PROBLEM_BY_STATUS.get(reply.status) or ("failed" if reply.status >= 500 else "refused")
            reason = f"The MCP server answered HTTP {reply.status}"
        except ConnectFailed as exc:
            problem, reason = "offline", f"The MCP server cannot be reached: {exc}"
        except OutboundError as exc:
            problem, reason = "interrupted", f"The message to the MCP server was not confirmed: {exc}"
        if isinstance(message, JSONRPCRequest):
            error = ErrorData(code=CONNECTION_CLOSED, message=reason, data={TROUBLE_KEY: problem})
            try:
                await to_session.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the session has ended
