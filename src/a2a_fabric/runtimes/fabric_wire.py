"""Another node's wire, seen from outside: what it is asked, and what its replies, events and errors mean here."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.errors import (
    AgentOffline,
    DelegationRefused,
    FabricError,
    RateLimited,
    UpstreamFailed,
    UpstreamRefused,
    error_by_code,
)
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Questions
from a2a_fabric.core.result import Fallback

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MARGIN = 0.05  # of a call's time stays here, so that the node's own word about a timeout arrives
_LONGEST_MARGIN_MS = 250

# These mean here what they mean there. Of all others only the node itself knows what to do about them.
_KEPT = frozenset(
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
# Surely nothing ran: the agent has left since it was listed, or the node does not know this one's key.
_NEVER_RAN = frozenset({"AGENT_NOT_FOUND", "AUTH_INVALID", "AUTH_EXPIRED"})


class TriedInVain(AgentOffline):
    """The node asked all whom it could; one of them may have run."""

    never_ran = False


class Unreachable(AgentOffline):
    """A proxy before the node got no answer from it: the agent may have run."""

    never_ran = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, or what stands in the event that closes a stream."""

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


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    data: msgspec.Raw = msgspec.Raw(b"{}")
    number: int = 0


_replies = msgspec.json.Decoder(Said)
_frames = msgspec.json.Decoder(Frame)
_objects = msgspec.json.Decoder(dict[str, Any])


def request(operation: str, arguments: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"name": operation, "arguments": arguments})


def call_arguments(call: Call, agent_id: str, capability: str) -> dict[str, Any]:
    """The call as it goes on. What the agent is to get is for its own node to work out."""
    told: dict[str, Any] = {
        "agent_id": agent_id,
        "capability": capability,
        "task": call.input.task,
        "context": call.input.context,
        "stream": call.response.stream,
        "format": call.response.format,
        "timeout_ms": time_there(call.target.timeout_ms),
        "trace": {"trace_id": call.trace.trace_id, "span_id": call.trace.span_id},
        "on_behalf_of": call.on_behalf_of or call.auth,
    }
    more = {
        "attachments": call.input.attachments,
        "conversation_id": agent_conversation_id(call),
        "delegation_chain": call.delegation_chain,
    }
    return told | {name: value for name, value in more.items() if value}


def time_there(timeout_ms: int) -> int:
    return max(1, timeout_ms - min(int(timeout_ms * _MARGIN), _LONGEST_MARGIN_MS))


def read_reply(status: int, body: bytes) -> Said:
    """Raises what the node says went wrong, or UpstreamFailed if this is no reply of a node's."""
    try:
        said = _replies.decode(body)
    except _MALFORMED as exc:
        raise _not_a_node(status) from exc
    return succeeded(said, status)


def _not_a_node(status: int) -> FabricError:
    if status in (502, 503, 504):
        kind = AgentOffline if status == 503 else Unreachable
        return kind(f"The node's server answered {status}", status=status)
    return UpstreamFailed(f"HTTP {status}, but not as a Fabric node answers", status=status)


def read_frame(data: bytes) -> Frame:
    """Raises UpstreamFailed."""
    try:
        return _frames.decode(data)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"An event is not as a Fabric node sends it: {exc}"[:300]) from exc


def final_of(frame: Frame) -> Said:
    """Raises what the node says went wrong."""
    try:
        return succeeded(_replies.decode(frame.data), 200)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"The final event is not as a Fabric node sends it: {exc}"[:300]) from exc


def event_data(frame: Frame) -> dict[str, Any]:
    """Without the trace: that is the same call's, and is said again where the event arrives."""
    try:
        data = _objects.decode(frame.data)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"An event is not as a Fabric node sends it: {exc}"[:300]) from exc
    data.pop("trace", None)
    return data


def succeeded(said: Said, status: int) -> Said:
    if said.ok:
        return said
    raise _failure(said, status)


def _failure(said: Said, status: int) -> FabricError:
    """Both forms of error are understood: a sentence with a code beside it, or an object."""
    told = said.error if isinstance(said.error, dict) else {}
    code = str(said.error_code or told.get("code") or UpstreamRefused.code)
    message = str(told.get("message") or (said.error if isinstance(said.error, str) else "The call failed"))[:1000]
    details = {str(key): value for key, value in (said.error_details or told.get("details") or {}).items()}
    return _ours(code, message, details, status)


def _ours(code: str, message: str, details: dict[str, Any], status: int) -> FabricError:
    if status == 401 or code in _NEVER_RAN:
        why = f"The node does not let this one in: {message}" if status == 401 else message
        return AgentOffline(why, **{**details, "upstream_code": code})
    if code == "AUTH_DENIED" and details.get("reason") in ("LOOP", "DEPTH"):
        refused = DelegationRefused(message, details["reason"], ())
        refused.details |= details
        return refused
    if code == "AGENT_OFFLINE" and "fallbacks" in details:
        return TriedInVain(message, **details)
    if code not in _KEPT:
        failure = UpstreamFailed if code == "INTERNAL_ERROR" else UpstreamRefused  # the node broke, not its agent
        return failure(message, **{**details, "upstream_code": code})
    error = error_by_code(code, message, details)
    if isinstance(error, RateLimited):
        error.details["retry_after"] = error.retry_after
    return error


def asked_in(said: Said) -> Questions | None:
    """What the agent wants to know first, if that is its answer."""
    told = said.data.get("input_required")
    if not isinstance(told, dict):
        return None
    try:
        return msgspec.convert(told, Questions)
    except msgspec.ValidationError:
        return None  # an answer that only looks like it
