"""The step *guard*: runs the operator's guards on the arguments of a call, and on its result or its error.

Everything that reaches the agent or the caller is in a payload, also the message in the words of its own protocol
(`original`), so nothing passes beside a guard. Pieces of an answer (`token`, `artifact` and `tool_call` events) are not
sent while a guard is to see the result: a secret that is split over two of them would pass. The result, which holds the
whole answer, is checked and sent. Other events carry whole messages and are checked one by one."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from a2a_fabric.core.call import Attachment, Call, Emit, Handler, Step, add_notes
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.guards import ActiveGuard, Guards, GuardSubject, Phase, guard_error, guard_events, run_guards
from a2a_fabric.core.result import Answers, OriginalMessage, Part, Questions, Result

_MaybeOriginal = OriginalMessage | msgspec.UnsetType
_Content = dict[str, Any] | msgspec.UnsetType
C = TypeVar("C", bound=msgspec.Struct)


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    task: str = ""
    context: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()
    answers: Answers | msgspec.UnsetType = UNSET
    original: _Content = UNSET


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    asked: Questions | None = None
    original: _Content = UNSET


def guard_calls(guards: Guards) -> Step:
    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            agent = (call.target.agent_id,)
            before, after = guards.select(agent, "arguments"), guards.select(agent, "result")
            if not before and not after:
                return await inner(call, emit)
            subject = _describe(call)
            checked = await run_guards(before, subject, "arguments", read_arguments(call))
            if checked.payload is not None:
                call = replace_arguments(call, checked.payload, before[-1])
            if not after:
                return add_notes(await inner(call, emit), checked.notes)
            try:
                result = await inner(call, guard_events(after, subject, emit))
            except FabricError as error:
                await guard_error(after, subject, error)
                raise
            reply = await run_guards(after, subject, "result", read_result(result))
            if reply.payload is not None:
                result = replace_result(result, reply.payload, after[-1])
            return add_notes(result, [*checked.notes, *reply.notes])

        return handle

    return step


def _describe(call: Call) -> GuardSubject:
    return GuardSubject(call.target.agent_id, call.target.capability, call.auth.principal_id, call.trace.trace_id)


def read_arguments(call: Call) -> dict[str, Any]:
    """The payload of a call."""
    call_input = call.input
    return _to_payload(
        _Arguments(
            task=call_input.task,
            context=call_input.context,
            attachments=call_input.attachments,
            answers=call.answers,
            original=_read_original(call.original),
        )
    )


def replace_arguments(call: Call, payload: dict[str, Any], guard: ActiveGuard) -> Call:
    """Raises Forbidden for a payload that is no call."""
    changed = _convert(guard, "arguments", payload, _Arguments)
    answers = changed.answers
    if answers and call.answers:  # where answers lead is not the guard's business
        answers = replace(call.answers, answers=answers.answers)
    call_input = replace(call.input, task=changed.task, context=changed.context, attachments=changed.attachments)
    original = _replace_original(call.original, changed.original)
    return replace(call, input=call_input, answers=answers, original=original)


def read_result(result: Result) -> dict[str, Any]:
    """The payload of a result."""
    original = _read_original(result.original)
    return _to_payload(
        _Reply(data=result.data, parts=result.parts, notes=result.notes, asked=result.asked, original=original)
    )


def replace_result(result: Result, payload: dict[str, Any], guard: ActiveGuard) -> Result:
    """Raises Forbidden for a payload that is no result."""
    changed = _convert(guard, "result", payload, _Reply)
    asked = changed.asked
    if asked is not None and result.asked is not None:
        asked = replace(asked, continuation=result.asked.continuation)
    original = _replace_original(result.original, changed.original)
    return replace(result, data=changed.data, parts=changed.parts, notes=changed.notes, asked=asked, original=original)


def _to_payload(content: _Arguments | _Reply) -> dict[str, Any]:
    payload: dict[str, Any] = msgspec.to_builtins(content)
    return payload


def _convert(guard: ActiveGuard, phase: Phase, payload: dict[str, Any], kind: type[C]) -> C:
    """Raises Forbidden."""
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as exc:
        what = "a call" if phase == "arguments" else "a result"
        raise guard.refuse(phase, f"what it returned is not {what}") from exc


def _read_original(original: _MaybeOriginal) -> _Content:
    return original.content if original else UNSET


def _replace_original(original: _MaybeOriginal, content: _Content) -> _MaybeOriginal:
    """None of its own if the guard left it out."""
    return UNSET if not original or content is UNSET else replace(original, content=content)
