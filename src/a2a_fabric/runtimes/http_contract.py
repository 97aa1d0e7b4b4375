"""The plain contract's words: what is sent to an agent, and what it answers, whole or as events.

`{"name": CAPABILITY, "arguments": {…}}` goes out, with the rest of the envelope beside it.
`{"ok": true, "result": {…}}` or `{"ok": false, "error": {…}}` comes back; `parts` may stand
beside the result, and a result with `input_required` is a question. Anything else is
taken as the result itself. A stream ends with the event `final`, which holds the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused, reported_by_agent
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Question
from a2a_fabric.core.result import Result, as_object, asking
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import StreamedReply
from a2a_fabric.runtimes.http_exchange import bad_status, json_of

EVENT_BYTES = 1024 * 1024  # at least; the last event may be as large as a reply
_PRINCIPALS_KEPT = 100


class _Reply(msgspec.Struct):
    ok: bool | None = None
    result: Any = msgspec.UNSET
    error: Any = None
    parts: Any = None
    artifacts: Any = None
    notes: Any = None


class _Line(msgspec.Struct):
    event: str
    data: dict[str, Any] = {}


_replies = msgspec.json.Decoder(_Reply)
_lines = msgspec.json.Decoder(_Line)


class Words:
    """The text of a stream so far, up to a limit: an agent that never stops is stopped."""

    def __init__(self, limit: int) -> None:
        self._parts: list[str] = []
        self._left = limit

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._left -= len(text)
        if self._left < 0:
            raise UpstreamRefused("The agent's stream is larger than this node takes")

    @property
    def text(self) -> str:
        return "".join(self._parts)


class Envelopes:
    """Calls as bodies."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._principals: dict[int, tuple[Principal, msgspec.Raw]] = {}

    def encoded(self, call: Call, arguments: dict[str, Any]) -> bytes:
        body = {
            "name": call.target.capability,
            "arguments": arguments,
            "trace": call.trace,
            "auth": self._spoken(call.auth),
            "target": call.target,
            "response": call.response,
            "delegation_chain": call.delegation_chain or (),
        }
        if call.answers or call.conversation_id or call.input.attachments or call.on_behalf_of:
            body |= _beside(call, arguments)
        return self._encoder.encode(body)

    def _spoken(self, principal: Principal) -> msgspec.Raw:
        """Encoded once: nearly always the same few call."""
        known = self._principals.get(id(principal))
        if known is None or known[0] is not principal:
            if len(self._principals) >= _PRINCIPALS_KEPT:
                self._principals.clear()
            known = self._principals[id(principal)] = (principal, msgspec.Raw(self._encoder.encode(principal)))
        return known[1]


def _beside(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
    """What few calls have. Attachments stand among the arguments of a capability without a schema."""
    attachments = call.input.attachments if "attachments" not in arguments else ()
    told = {
        "attachments": attachments,
        "answers": call.answers,
        "conversation_id": agent_conversation_id(call),
        "on_behalf_of": call.on_behalf_of,
    }
    return {name: value for name, value in told.items() if value}


def result_of(status: int, body: bytes) -> Result:
    """Raises FabricError: what the agent reports, or what its status says."""
    if not 200 <= status < 300:  # redirects included: they are never followed
        raise refusal(status, body)
    try:
        reply = _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Result(data=as_object(json_of(body)))
    if reply.ok is False:
        raise reported(reply.error)
    if reply.ok is None or reply.result is msgspec.UNSET:
        return _whole(as_object(json_of(body)), _Reply())
    return _whole(as_object(reply.result), reply)


def refusal(status: int, body: bytes) -> FabricError:
    try:
        reply = _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        reply = _Reply()
    return reported(reply.error) if reply.ok is False and reply.error is not None else bad_status(status)


def reported(error: Any) -> FabricError:
    """An error as an agent reports it: an object with a code, or a sentence."""
    if not isinstance(error, dict):
        return UpstreamRefused(str(error)[:500] if error else "The agent reported an error without saying which")
    details = error.get("details")
    message = str(error.get("message", "The agent reported an error"))[:500]
    return reported_by_agent(str(error.get("code", "")), message, details if isinstance(details, dict) else None)


def _whole(data: dict[str, Any], beside: _Reply) -> Result:
    """The answer with what came beside it; nearly always nothing did."""
    if "input_required" in data and (asked := _asked(data["input_required"])) is not None:
        return asked
    if beside.parts is None and beside.artifacts is None and beside.notes is None:
        return Result(data=data)
    if isinstance(beside.artifacts, list) and beside.artifacts:
        data = {"artifacts": beside.artifacts, **data}
    notes = tuple(str(note)[:500] for note in beside.notes[:100]) if isinstance(beside.notes, list) else ()
    return Result(data=data, parts=_parts(beside.parts), notes=notes)


def _parts(given: Any) -> tuple[Part, ...]:
    try:
        return msgspec.convert(given or (), tuple[Part, ...])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's content parts cannot be read: {exc}"[:300]) from exc


def _asked(told: Any) -> Result | None:
    """A question, if it can be answered: without a continuation the answer would find nobody."""
    if not isinstance(told, dict) or not isinstance(told.get("continuation"), str):
        return None
    message = str(told.get("message") or "The agent wants to know more")[:2000]
    try:
        questions = msgspec.convert(told.get("questions") or {}, dict[str, Question])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's questions cannot be read: {exc}"[:300]) from exc
    return asking(questions or {"answer": Question(kind="form", message=message)}, told["continuation"])


async def events(reply: StreamedReply, emit: Emit, limit: int) -> Result:
    """Forward events in order of arrival until `final`; words alone make an answer too."""
    words = Words(limit)
    arriving = sse.Events(max(EVENT_BYTES, limit))
    async for chunk in reply.chunks():
        for data in arriving.feed(chunk):
            line = _line(data)
            if line.event == "final":
                return _final(line.data, words)
            if line.event in EVENT_KINDS:
                line.data.pop("trace", None)
                if line.event == "token":
                    words.add(str(line.data.get("text", "")))
                await emit(Event(line.event, line.data))  # type: ignore[arg-type]  # checked against EVENT_KINDS
    for data in arriving.rest():
        line = _line(data)
        if line.event == "final":
            return _final(line.data, words)
    raise UpstreamInterrupted("The agent's stream ended before its final event")


def _line(data: bytes) -> _Line:
    try:
        return _lines.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamInterrupted(f"The agent sent an event that is not JSON: {exc}"[:300]) from exc


def _final(data: dict[str, Any], words: Words) -> Result:
    if data.get("ok") is False:
        raise reported(data.get("error"))
    data.pop("trace", None)
    if "result" not in data:
        answer = {name: value for name, value in data.items() if name != "ok"}
        return _whole(answer or ({"answer": words.text} if words.text else {}), _Reply())
    beside = _Reply(parts=data.get("parts"), artifacts=data.get("artifacts"), notes=data.get("notes"))
    answer = as_object(data["result"])
    return _whole(answer or ({"answer": words.text} if words.text else {}), beside)
