"""Requests, replies and events of the plain contract, shared by its HTTP and JSON-lines servers."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import DEFAULT_TIMEOUT_MS, Attachment, Call, Emit, Input, Principal, ResponseForm, Target
from a2a_fabric.core.errors import AuthInvalid, BadInput, FabricError, UpstreamFailed
from a2a_fabric.core.forwarding import IDENTITY_HEADER, IdentityVerifier
from a2a_fabric.core.propagation import Trace, continue_trace, new_trace, trace_from_traceparent
from a2a_fabric.core.result import Event, Result

BODY_LIMIT = 16 * 1024 * 1024  # larger than a gateway's limit, so that every accepted call fits

_ENVELOPE = frozenset({"task", "context", "attachments"})
_UNENCODABLE = (
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)  # what msgspec raises for values JSON cannot carry


class ServedAgent(Protocol):
    """The interface of an agent that the servers need."""

    agent_id: str
    verifier: IdentityVerifier | None  # None: calls need no identity

    def find(self, name: str) -> Capability | None: ...

    def manifest(self, endpoint: dict[str, Any] | None = None) -> Manifest: ...

    async def __call__(self, call: Call, emit: Emit) -> Result: ...


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


class RequestTarget(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class ContractRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Unknown fields are ignored, because callers may be of a later version."""

    name: str = ""
    arguments: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()  # besides any among the arguments
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    trace: RequestTrace | None = None
    auth: Principal | None = None  # as the gateway states it; an agent may verify it again
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET
    identity: str | None = None  # JSON lines only; HTTP requests have it in a header
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    target: RequestTarget | None = None
    response: ResponseForm = ResponseForm()
    stream: bool = False
    id: str | int | None = None  # JSON lines only
    cancel: bool = False  # JSON lines only


_decoder = msgspec.json.Decoder(ContractRequest)


def decode_request(body: bytes) -> ContractRequest:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"The request cannot be read: {exc}") from exc


def call_from_request(
    request: ContractRequest, agent: ServedAgent, *, stream: bool, traceparent: str | None = None
) -> Call:
    if not request.name:
        raise BadInput("The request names no capability: send it as 'name'")
    target = request.target or RequestTarget()
    call_input = input_from_arguments(agent.find(request.name), request.arguments)
    if request.attachments:
        call_input = msgspec.structs.replace(call_input, attachments=(*call_input.attachments, *request.attachments))
    return Call(
        trace=_build_trace(request.trace, traceparent),
        auth=request.auth or Principal(),
        target=Target(agent_id=agent.agent_id, capability=request.name, timeout_ms=target.timeout_ms),
        input=call_input,
        response=ResponseForm(stream=stream, format=request.response.format),
        conversation_id=request.conversation_id,
        delegation_chain=request.delegation_chain,
        on_behalf_of=request.on_behalf_of,
    )


def check_identity(agent: ServedAgent, token: str | None, content: Any, capability: str) -> None:
    """Check the identity of a call, if the agent wants one. Raises AuthInvalid or AuthExpired."""
    if agent.verifier is None:
        return
    if not token:
        raise AuthInvalid(f"Agent '{agent.agent_id}' answers only calls with a signed identity ({IDENTITY_HEADER})")
    agent.verifier.verify(token, content, capability=capability)


def input_from_arguments(capability: Capability | None, arguments: dict[str, Any]) -> Input:
    """The envelope's input for arguments as they came over the wire.

    A gateway without the agent's schema sends task and context as they are; so they
    are taken as they are if the capability has no schema. Otherwise the schema describes the arguments.
    """
    schema = capability.input_schema if capability else None
    if schema is None:
        other_arguments = {name: value for name, value in arguments.items() if name not in _ENVELOPE}
        return _build_input({**arguments, "context": other_arguments | _read_context(arguments)})
    if _ENVELOPE.issuperset(arguments) and not set(arguments) <= set(schema.get("properties", ())):
        return _build_input(arguments)
    return Input(context=arguments)


def _read_context(arguments: dict[str, Any]) -> dict[str, Any]:
    context = arguments.get("context")
    if context is None:
        return {}
    if not isinstance(context, dict):
        raise BadInput("Argument 'context' is wrong: Expected `object`", argument="context")
    return context


def _build_input(arguments: dict[str, Any]) -> Input:
    try:
        task = msgspec.convert(arguments.get("task") or "", str)
        attachments = msgspec.convert(arguments.get("attachments") or (), tuple[Attachment, ...])
    except msgspec.ValidationError as exc:
        raise BadInput(f"The task or its attachments are wrong: {exc}") from exc
    return Input(task=task, context=_read_context(arguments), attachments=attachments)


def _build_trace(request_trace: RequestTrace | None, traceparent: str | None) -> Trace:
    if request_trace is not None and request_trace.trace_id:
        try:
            return continue_trace(request_trace.trace_id, request_trace.span_id or request_trace.parent_span_id)
        except ValueError as exc:
            raise BadInput(f"The trace is wrong: {exc}") from exc
    continued = trace_from_traceparent(traceparent) if traceparent else None
    return continued or new_trace()


def build_result_reply(result: Result, trace: Trace) -> dict[str, Any]:
    reply: dict[str, Any] = {"ok": True, "result": result.data, "trace": trace}
    if result.parts:
        reply["parts"] = result.parts
    if result.notes:
        reply["notes"] = result.notes
    return reply


def build_error_reply(error: FabricError, trace: Trace | None = None) -> dict[str, Any]:
    private = {} if error.private is None else {"private": error.private}  # for the operator of the calling node
    error_body = {"code": error.code, "message": error.message, "details": {**error.details, **private}}
    return {"ok": False, "error": error_body, "trace": trace} if trace else {"ok": False, "error": error_body}


def build_event(event: Event, trace: Trace) -> dict[str, Any]:
    return {"event": event.kind, "data": event.data, "trace": trace}


def encode_json(body: dict[str, Any]) -> bytes:
    """JSON bytes. Raises UpstreamFailed if the agent put something into it that JSON cannot carry."""
    try:
        return msgspec.json.encode(body)
    except _UNENCODABLE as exc:
        raise UpstreamFailed(f"The agent answered with something that is not JSON: {exc}") from exc


async def answer_call(agent: ServedAgent, call: Call, emit: Emit) -> bytes:
    """The agent's answer as an encoded reply, refusals included."""
    try:
        return encode_json(build_result_reply(await agent(call, emit), call.trace))
    except FabricError as exc:
        return msgspec.json.encode(build_error_reply(exc, call.trace), enc_hook=repr)
