"""The client of another node's Fabric door: requests, event streams, and replies and errors as they apply here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.call import Call, derive_conversation_id, hide_private
from a2a_fabric.core.errors import (
    AgentOffline,
    DelegationRefused,
    FabricError,
    RateLimited,
    UpstreamFailed,
    UpstreamRefused,
    error_from_code,
)
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import Fallback, Part, Questions
from a2a_fabric.core.spans import RemoteTrace
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError
from a2a_fabric.runtimes.upstream import STATUS_ERRORS, error_from_outbound, error_from_status, read_bounded

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TIME_MARGIN = 0.05  # of a call's time is kept back, so that the node's own time-out error arrives
_MAX_MARGIN_MS = 250

# These codes apply here as they do on the other node. All others can only be handled there.
_PASSED_CODES = frozenset(
    {
        "AGENT_OFFLINE",
        "AUTH_DENIED",
        "BAD_INPUT",
        "CAPABILITY_NOT_FOUND",
        "CONFLICT",
        "PAYLOAD_TOO_LARGE",
        "RATE_LIMITED",
        "TIMEOUT",
        "UPSTREAM_ERROR",
    }
)
# The call did not run: the agent has left since it was listed, or the node does not accept this node's key.
_NEVER_RAN_CODES = frozenset({"AGENT_NOT_FOUND", "AUTH_INVALID", "AUTH_EXPIRED"})


class FallbacksExhausted(AgentOffline):
    """The node tried all its fallbacks; one of them may have run."""

    never_ran = False


class NodeReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, or the content of a stream's final event."""

    ok: bool
    result: dict[str, Any] | None = None
    error: Any = None
    error_code: str | None = None
    error_details: dict[str, Any] | None = None
    fallback: Fallback | None = None
    job_id: str | None = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        return self.result or {}


class NodeFrame(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    data: msgspec.Raw = msgspec.Raw(b"{}")
    number: int = 0


_reply_decoder = msgspec.json.Decoder(NodeReply)
_frame_decoder = msgspec.json.Decoder(NodeFrame)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def encode_request(operation: str, arguments: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"name": operation, "arguments": arguments})


def build_call_arguments(call: Call, agent_id: str, capability: str) -> dict[str, Any]:
    """The arguments that pass the call on. The other node applies the agent's schema."""
    arguments: dict[str, Any] = {
        "agent_id": agent_id,
        "capability": capability,
        "task": call.input.task,
        "context": call.input.context,
        "stream": call.response.stream,
        "format": call.response.format,
        "timeout_ms": reduce_timeout(call.target.timeout_ms),
        "trace": _render_trace(call.trace),
        "on_behalf_of": call.on_behalf_of or hide_private(call.auth),
    }
    optional_arguments = {
        "attachments": call.input.attachments,
        "conversation_id": derive_conversation_id(call),
        "delegation_chain": call.delegation_chain,
    }
    return arguments | {name: value for name, value in optional_arguments.items() if value}


def _render_trace(trace: Trace) -> dict[str, Any]:
    unsampled = {"sampled": False} if trace.sampled is False else {}
    return {"trace_id": trace.trace_id, "span_id": trace.span_id, **unsampled}


def reduce_timeout(timeout_ms: int) -> int:
    return max(1, timeout_ms - min(int(timeout_ms * _TIME_MARGIN), _MAX_MARGIN_MS))


def read_reply(status: int, body: bytes) -> NodeReply:
    """Raises the error in the reply, or UpstreamFailed if the reply is not from a Fabric node."""
    try:
        reply = _reply_decoder.decode(body)
    except _MALFORMED as exc:
        if status in STATUS_ERRORS:
            raise error_from_status(status, server="The node's server") from exc
        raise UpstreamFailed(f"HTTP {status}, but the reply is not from a Fabric node", status=status) from exc
    return check_reply(reply, status)


def read_frame(data: bytes) -> NodeFrame:
    """Raises UpstreamFailed."""
    try:
        return _frame_decoder.decode(data)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"An event of the node cannot be read: {exc}"[:300]) from exc


def read_final(frame: NodeFrame) -> NodeReply:
    """Raises the error in the event."""
    try:
        return check_reply(_reply_decoder.decode(frame.data), 200)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"The final event of the node cannot be read: {exc}"[:300]) from exc


def read_event_data(frame: NodeFrame) -> dict[str, Any]:
    """The event's data without the trace, which this node adds again for its own caller."""
    try:
        data = _object_decoder.decode(frame.data)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"An event of the node cannot be read: {exc}"[:300]) from exc
    data.pop("trace", None)
    return data


def check_reply(reply: NodeReply, status: int) -> NodeReply:
    if reply.ok:
        return reply
    raise _error_from_reply(reply, status)


def _error_from_reply(reply: NodeReply, status: int) -> FabricError:
    """Both forms of error are understood: a sentence with a code beside it, or an object."""
    error_object = reply.error if isinstance(reply.error, dict) else {}
    code = str(reply.error_code or error_object.get("code") or UpstreamRefused.code)
    message = str(error_object.get("message") or (reply.error if isinstance(reply.error, str) else "The call failed"))[
        :1000
    ]
    details = {str(key): value for key, value in (reply.error_details or error_object.get("details") or {}).items()}
    return _to_fabric_error(code, message, details, status)


def _to_fabric_error(code: str, message: str, details: dict[str, Any], status: int) -> FabricError:
    if status == 401 or code in _NEVER_RAN_CODES:
        reason = f"The node does not accept this node's key: {message}" if status == 401 else message
        return AgentOffline(reason, **{**details, "upstream_code": code})
    if code == "AUTH_DENIED" and details.get("reason") in ("LOOP", "DEPTH"):
        refusal = DelegationRefused(message, details["reason"], ())
        refusal.details |= details
        return refusal
    if code == "AGENT_OFFLINE" and "fallbacks" in details:
        return FallbacksExhausted(message, **details)
    if code not in _PASSED_CODES:
        failure = UpstreamFailed if code == "INTERNAL_ERROR" else UpstreamRefused  # the node broke, not its agent
        return failure(message, **{**details, "upstream_code": code})
    error = error_from_code(code, message, details)
    if isinstance(error, RateLimited):
        error.details["retry_after"] = error.retry_after
    return error


def questions_from_reply(reply: NodeReply) -> Questions | None:
    """The agent's questions, if the reply holds any; else None."""
    input_required = reply.data.get("input_required")
    if not isinstance(input_required, dict):
        return None
    try:
        return msgspec.convert(input_required, Questions)
    except msgspec.ValidationError:
        return None  # a result that only resembles questions


_STREAM_BYTES = 2**62  # a stream is bounded by its time, each of its events by the size of a reply


class NodeClient:
    def __init__(self, name: str, uri: str, credentials: Mapping[str, str], http: HTTPClient, reply_bytes: int) -> None:
        """`credentials` are headers of every request."""
        self.name = name  # the other node's id here
        self.base_url = uri.rstrip("/")
        self._url = f"{self.base_url}/mcp/call"
        self._host = urlsplit(uri).netloc
        self._http = http  # belongs to the node, which closes it
        self.reply_bytes = reply_bytes
        self._headers = {"content-type": "application/json", **credentials}

    async def call_operation(self, operation: str, arguments: dict[str, Any], timeout: float) -> NodeReply:
        """Raises FabricError: the error that the node reports, or the failure to reach it."""
        try:
            reply = await self._http.request(
                "POST",
                self._url,
                headers={**self._headers, "accept": "application/json"},
                body=encode_request(operation, arguments),
                timeout=timeout,
                limit=self.reply_bytes,
            )
            return read_reply(reply.status, reply.body)
        except OutboundError as exc:
            error = error_from_outbound(exc, timeout, self._host, subject=f"Node '{self.name}'")
            raise self.add_hop(error) from exc
        except FabricError as error:
            self.add_hop(error)
            raise

    async def read_trace(self, trace_id: str, depth: int, timeout: float) -> RemoteTrace:
        """What the node tells this one of a trace. Raises FabricError."""
        reply = await self.call_operation("fabric.trace.get", {"trace_id": trace_id, "depth": depth}, timeout)
        try:
            return msgspec.convert(reply.data, RemoteTrace)
        except msgspec.ValidationError as exc:
            raise UpstreamFailed(f"Node '{self.name}' describes the trace in an unknown format: {exc}"[:300]) from exc

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout: float) -> HTTPReply:
        """A request at another door of the node. Raises FabricError if there is no reply."""
        try:
            return await self._http.request(
                "POST",
                self.base_url + path,
                headers={**self._headers, **headers},
                body=body,
                timeout=timeout,
                limit=self.reply_bytes,
            )
        except OutboundError as exc:
            error = error_from_outbound(exc, timeout, self._host, subject=f"Node '{self.name}'")
            raise self.add_hop(error) from exc

    @asynccontextmanager
    async def stream_operation(
        self, operation: str, arguments: dict[str, Any], timeout: float
    ) -> AsyncIterator[AsyncIterator[NodeFrame] | NodeReply]:
        """The events of an operation, or its reply if the node sends none. Leaving the block ends the operation."""
        headers = {**self._headers, "accept": "text/event-stream, application/json;q=0.5"}
        body = encode_request(operation, {**arguments, "stream": True})
        try:
            async with self._http.stream(
                "POST", self._url, headers=headers, body=body, timeout=timeout, limit=_STREAM_BYTES
            ) as reply:
                if sse.is_event_stream(reply.headers):
                    async with aclosing(_read_frames(reply.chunks(), self.reply_bytes)) as frames:
                        yield frames
                else:
                    yield read_reply(reply.status, await read_bounded(reply, self.reply_bytes))
        except OutboundError as exc:
            error = error_from_outbound(exc, timeout, self._host, subject=f"Node '{self.name}'")
            raise self.add_hop(error) from exc
        except FabricError as error:
            self.add_hop(error)
            raise

    def add_hop(self, error: FabricError) -> FabricError:
        """The same error with this hop named first."""
        hops = error.details.get("hops")
        error.details["hops"] = [self.name, *(hops if isinstance(hops, list) else ())]
        error.details.setdefault("upstream", self._host)
        return error


async def _read_frames(chunks: AsyncIterator[bytes], limit: int) -> AsyncGenerator[NodeFrame]:
    events = sse.SSEParser(limit)
    async for chunk in chunks:
        for data in events.feed(chunk):
            yield read_frame(data)
    for data in events.flush():
        yield read_frame(data)
