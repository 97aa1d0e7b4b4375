"""The simple contract's words, shared by its HTTP and JSON-lines forms: a request in, a reply or an event out."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import DEFAULT_TIMEOUT_MS, Attachment, Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, continue_trace, from_traceparent, new_trace

BODY_LIMIT = 16 * 1024 * 1024  # more than a gateway takes, so that what it took arrives

_ENVELOPE = frozenset({"task", "context", "attachments"})
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)  # what msgspec raises for values JSON cannot carry


class Served(Protocol):
    """What serving needs of an agent."""

    agent_id: str

    def find(self, name: str) -> Capability | None: ...

    def manifest(self, endpoint: dict[str, Any] | None = None) -> Manifest: ...

    async def __call__(self, call: Call, emit: Emit) -> Result: ...


class TraceGiven(msgspec.Struct, frozen=True, kw_only=True):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


class TargetGiven(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Unknown fields are left alone: callers may know more than we do."""

    name: str = ""
    arguments: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()  # besides any that stand among the arguments
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    trace: TraceGiven | None = None
    auth: Principal | None = None  # what the gateway says; an agent that must be sure verifies it again
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    target: TargetGiven | None = None
    response: ResponseForm = ResponseForm()
    stream: bool = False
    id: str | int | None = None  # JSON lines only
    cancel: bool = False  # JSON lines only


_decoder = msgspec.json.Decoder(Request)


def decode_request(body: bytes) -> Request:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"The request cannot be read: {exc}") from exc


def call_from(request: Request, agent: Served, *, stream: bool, traceparent: str | None = None) -> Call:
    if not request.name:
        raise BadInput("The request names no capability: send it as 'name'")
    target = request.target or TargetGiven()
    given = input_from(agent.find(request.name), request.arguments)
    if request.attachments:
        given = msgspec.structs.replace(given, attachments=(*given.attachments, *request.attachments))
    return Call(
        trace=_trace_from(request.trace, traceparent),
        auth=request.auth or Principal(),
        target=Target(agent_id=agent.agent_id, capability=request.name, timeout_ms=target.timeout_ms),
        input=given,
        response=ResponseForm(stream=stream, format=request.response.format),
        conversation_id=request.conversation_id,
        delegation_chain=request.delegation_chain,
        on_behalf_of=request.on_behalf_of,
    )


def input_from(capability: Capability | None, arguments: dict[str, Any]) -> Input:
    """The envelope's input for arguments as they came over the wire.

    A gateway that does not know our schema sends task and context as they are; so do we
    when the capability has none. Otherwise the arguments are what the schema describes.
    """
    schema = capability.input_schema if capability else None
    if schema is None:
        rest = {name: value for name, value in arguments.items() if name not in _ENVELOPE}
        return _input({**arguments, "context": rest | _context(arguments)})
    if _ENVELOPE.issuperset(arguments) and not set(arguments) <= set(schema.get("properties", ())):
        return _input(arguments)
    return Input(context=arguments)


def _context(arguments: dict[str, Any]) -> dict[str, Any]:
    context = arguments.get("context")
    if context is None:
        return {}
    if not isinstance(context, dict):
        raise BadInput("Argument 'context' is wrong: Expected `object`", argument="context")
    return context


def _input(arguments: dict[str, Any]) -> Input:
    try:
        task = msgspec.convert(arguments.get("task") or "", str)
        attachments = msgspec.convert(arguments.get("attachments") or (), tuple[Attachment, ...])
    except msgspec.ValidationError as exc:
        raise BadInput(f"The task or its attachments are wrong: {exc}") from exc
    return Input(task=task, context=_context(arguments), attachments=attachments)


def _trace_from(given: TraceGiven | None, traceparent: str | None) -> Trace:
    if given is not None and given.trace_id:
        try:
            return continue_trace(given.trace_id, given.span_id or given.parent_span_id)
        except ValueError as exc:
            raise BadInput(f"The trace is wrong: {exc}") from exc
    continued = from_traceparent(traceparent) if traceparent else None
    return continued or new_trace()


def result_reply(result: Result, trace: Trace) -> dict[str, Any]:
    reply: dict[str, Any] = {"ok": True, "result": result.data, "trace": trace}
    if result.parts:
        reply["parts"] = result.parts
    if result.notes:
        reply["notes"] = result.notes
    return reply


def error_reply(error: FabricError, trace: Trace | None = None) -> dict[str, Any]:
    private = {} if error.private is None else {"private": error.private}  # for the operator of the node that asks
    said = {"code": error.code, "message": error.message, "details": {**error.details, **private}}
    return {"ok": False, "error": said, "trace": trace} if trace else {"ok": False, "error": said}


def event_body(event: Event, trace: Trace) -> dict[str, Any]:
    return {"event": event.kind, "data": event.data, "trace": trace}


def encode(body: dict[str, Any]) -> bytes:
    """JSON bytes. Raises UpstreamFailed if the agent put something into it that JSON cannot carry."""
    try:
        return msgspec.json.encode(body)
    except _UNWRITABLE as exc:
        raise UpstreamFailed(f"The agent answered with something that is not JSON: {exc}") from exc


async def reply_to(agent: Served, call: Call, emit: Emit) -> bytes:
    """The agent's answer as an encoded reply, refusals included."""
    try:
        return encode(result_reply(await agent(call, emit), call.trace))
    except FabricError as exc:
        return msgspec.json.encode(error_reply(exc, call.trace), enc_hook=repr)
