"""Calls, results, events and descriptions as the messages of `proto/agent.proto`, and back."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call, Input, Principal
from a2a_fabric.core.content import parts_of
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, reported_by_agent
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Answers, Question, Questions
from a2a_fabric.core.result import Result, as_object, asking
from a2a_fabric.runtimes.proto import messages

T = TypeVar("T")
_MALFORMED = (msgspec.DecodeError, RecursionError)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
_AUTH = ("principal_id", "agent_passport_id", "signature", "key_id", "delegate_id", "mandate_id", "cog_id")


def request_of(call: Call, arguments: dict[str, Any]) -> messages.CallRequest:
    """Raises BadInput for what protobuf or JSON cannot hold."""
    try:
        return messages.CallRequest(
            trace=messages.Trace(
                trace_id=call.trace.trace_id,
                span_id=call.trace.span_id,
                parent_span_id=call.trace.parent_span_id or "",
            ),
            auth=_auth(call.auth),
            target=messages.Target(
                agent_id=call.target.agent_id, capability=call.target.capability, timeout_ms=call.target.timeout_ms
            ),
            input=_input(call.input, arguments),
            response=messages.ResponseForm(stream=call.response.stream, format=call.response.format),
            answers=_answers(call.answers) if call.answers else None,
            conversation_id=agent_conversation_id(call) or "",
            delegation_chain=call.delegation_chain or (),
            on_behalf_of=_auth(call.on_behalf_of) if call.on_behalf_of else None,
        )
    except _UNWRITABLE as exc:
        raise BadInput(f"The call cannot be sent by gRPC: {exc}"[:300]) from exc


def _auth(principal: Principal) -> messages.Auth:
    auth = messages.Auth(mode=principal.mode, trust=principal.trust, **{n: getattr(principal, n) for n in _AUTH})
    for name in ("cap", "scp"):
        if (held := getattr(principal, name)) is not None:
            getattr(auth, name).CopyFrom(messages.Scopes(names=held))
    return auth


def _input(given: Input, arguments: dict[str, Any]) -> messages.Input:
    return messages.Input(
        arguments_json=_json(arguments),
        task=given.task,
        context_json=_json(given.context),
        attachments=[_sent(part) for part in parts_of(given)],
    )


def _sent(part: Part) -> messages.Part:
    held = messages.Part(kind=part.kind, mime_type=part.mime_type, name=part.name)
    if part.meta:
        held.meta_json = _json(part.meta)
    if part.text is not None:
        held.text = part.text
    elif part.url is not None:
        held.url = part.url
    elif part.blob is not None:
        held.blob = base64.b64decode(part.blob, validate=True)
    else:
        held.data_json = _json(part.data)
    return held


def _answers(answers: Answers) -> messages.Answers:
    told = {
        key: messages.Answer(action=each.action, content_json=_json(each.content))
        for key, each in answers.answers.items()
    }
    return messages.Answers(continuation=answers.continuation, answers=told)


def result_of(outcome: messages.Outcome) -> Result:
    """Raises the agent's error, or UpstreamFailed for an outcome that cannot be read."""
    match outcome.WhichOneof("outcome"):
        case "result":
            said = outcome.result
            data = as_object(_read(said.data_json, Any, "the result")) if said.data_json else {}
            return Result(data=data, parts=tuple(_part(part) for part in said.parts), notes=tuple(said.notes))
        case "error":
            raise _error(outcome.error)
        case "input_required":
            asked = _questions(outcome.input_required)
            return asking(asked.questions, asked.continuation)
    raise UpstreamFailed("The agent answered with neither a result nor an error")


def _error(error: messages.Error) -> FabricError:
    details = _read(error.details_json, dict[str, Any], "the details of its error") if error.details_json else None
    return reported_by_agent(error.code, error.message[:1000] or "The agent reported an error", details)


def _part(part: messages.Part) -> Part:
    content: dict[str, Any] = {}
    match part.WhichOneof("content"):
        case "text":
            content["text"] = part.text
        case "url":
            content["url"] = part.url
        case "blob":
            content["blob"] = base64.b64encode(part.blob).decode("ascii")
        case "data_json":
            content["data"] = _read(part.data_json, Any, "a part")
        case _:
            content["text"] = ""
    meta = _read(part.meta_json, dict[str, Any], "a part") if part.meta_json else {}
    media = part.mime_type if part.HasField("mime_type") else None
    name = part.name if part.HasField("name") else None
    return _checked({"kind": part.kind, **content, "mime_type": media, "name": name, "meta": meta}, Part, "a part")


def _questions(asked: messages.InputRequired) -> Questions:
    questions = {key: _question(each) for key, each in asked.questions.items()}
    return Questions(questions=questions, continuation=asked.continuation)


def _question(asked: messages.Question) -> Question:
    schema = _read(asked.schema_json, dict[str, Any], "a question") if asked.schema_json else None
    params = _read(asked.params_json, dict[str, Any], "a question") if asked.params_json else {}
    told = {"kind": asked.kind or "form", "message": asked.message, "schema": schema, "params": params}
    return _checked(told, Question, "a question")


def event_of(event: messages.Event) -> Event | None:
    """None for a kind that is not known here; what is asked is told by the outcome."""
    if event.kind not in EVENT_KINDS or event.kind == "input_required":
        return None
    data = _read(event.data_json, dict[str, Any], "an event") if event.data_json else {}
    return Event(event.kind, data)  # type: ignore[arg-type]  # checked against EVENT_KINDS


def published_in(told: messages.Description, manifest: Manifest) -> Manifest:
    """What the agent says of itself, as a manifest in the place of this one."""
    return Manifest(
        agent_id=manifest.agent_id,
        endpoint=manifest.endpoint,
        display_name=told.display_name,
        description=told.description,
        version=told.version,
        tags=tuple(told.tags),
        capabilities=tuple(_capability(each) for each in told.capabilities),
    )


def _capability(told: messages.Capability) -> Capability:
    fields: dict[str, Any] = {
        "name": told.name,
        "description": told.description,
        "streaming": told.streaming,
        "idempotent": told.idempotent if told.HasField("idempotent") else None,
        "max_timeout_ms": told.max_timeout_ms if told.HasField("max_timeout_ms") else None,
    }
    for name, text in (("input_schema", told.input_schema_json), ("output_schema", told.output_schema_json)):
        fields[name] = _read(text, dict[str, Any], "a schema") if text else None
    if told.modalities:
        fields["modalities"] = list(told.modalities)
    return _checked(fields, Capability, f"capability '{told.name[:128]}'")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(text: str, kind: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"The agent sent {what} that cannot be read: {exc}"[:300]) from exc


def _checked(fields: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent sent {what} that cannot be read: {exc}"[:300]) from exc
