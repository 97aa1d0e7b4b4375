"""Guards: checks of the operator on what goes to an agent and what comes back. A guard lets it pass, refuses it, or
returns it with parts redacted.

A guard sees a payload: the arguments of a call, or its result, as plain JSON. Everything that reaches the agent or the
caller is in it, also the message in the words of its own protocol (`original`), so nothing passes beside a guard."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta

from a2a_fabric.core.call import Attachment, Call
from a2a_fabric.core.result import Answers, Part, Questions, Result

Phase = Literal["arguments", "result"]


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One guard. Guards run in the order of the list."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64, description="The guard's name in refusals and logs."
        ),
    ]
    kind: Annotated[
        str,
        Meta(
            min_length=1,
            description="`secrets` (built in), `http` (your address decides), a plug-in's name, or MODULE:FUNCTION.",
        ),
    ]
    phases: Annotated[
        tuple[Phase, ...], Meta(min_length=1, description="What it sees: `arguments` of calls, `result`s, or both.")
    ] = ("arguments", "result")
    agents: Annotated[
        tuple[str, ...] | None, Meta(description="Only calls to these agents and tools; `*` and `?`. Unset: all.")
    ] = None
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000, description="How long it may take for each check.")] = 2000
    on_failure: Annotated[
        Literal["refuse", "allow"],
        Meta(description="What happens if it fails or takes too long: the call is refused, or goes on unchecked."),
    ] = "refuse"
    options: Annotated[dict[str, Any], Meta(description="The guard's own settings.")] = {}


class GuardRequest(msgspec.Struct, frozen=True, kw_only=True):
    phase: Phase
    agent_id: str
    capability: str
    principal_id: str | None
    trace_id: str
    payload: dict[str, Any]


class GuardVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`replace` brings the payload to go on with; `reason` is for the caller, so it must not repeat what was found."""

    action: Literal["allow", "refuse", "replace"] = "allow"
    payload: dict[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=500)] = ""


class CallGuard(Protocol):
    """Called for every call that it concerns; cancelled when its time is over. What it raises counts as a failure."""

    async def __call__(self, request: GuardRequest, /) -> GuardVerdict: ...


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    task: str = ""
    context: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()
    answers: Answers | msgspec.UnsetType = UNSET
    original: dict[str, Any] | msgspec.UnsetType = UNSET


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    asked: Questions | None = None
    original: dict[str, Any] | msgspec.UnsetType = UNSET


def read_arguments(call: Call) -> dict[str, Any]:
    """The payload of a call."""
    call_input = call.input
    arguments = _Arguments(
        task=call_input.task,
        context=call_input.context,
        attachments=call_input.attachments,
        answers=call.answers,
        original=call.original.content if call.original else UNSET,
    )
    payload: dict[str, Any] = msgspec.to_builtins(arguments)
    return payload


def replace_arguments(call: Call, payload: dict[str, Any]) -> Call:
    """Raises msgspec.ValidationError."""
    arguments = msgspec.convert(payload, _Arguments)
    original = call.original
    if original:
        given = arguments.original
        original = UNSET if given is UNSET else msgspec.structs.replace(original, content=given)
    call_input = msgspec.structs.replace(
        call.input, task=arguments.task, context=arguments.context, attachments=arguments.attachments
    )
    answers = arguments.answers
    if answers and call.answers:  # where answers lead is not the guard's business
        answers = msgspec.structs.replace(call.answers, answers=answers.answers)
    return msgspec.structs.replace(call, input=call_input, answers=answers, original=original)


def read_result(result: Result) -> dict[str, Any]:
    """The payload of a result."""
    reply = _Reply(
        data=result.data,
        parts=result.parts,
        notes=result.notes,
        asked=result.asked,
        original=result.original.content if result.original else UNSET,
    )
    payload: dict[str, Any] = msgspec.to_builtins(reply)
    return payload


def replace_result(result: Result, payload: dict[str, Any]) -> Result:
    """Raises msgspec.ValidationError."""
    reply = msgspec.convert(payload, _Reply)
    original, asked = result.original, reply.asked
    if original:
        given = reply.original
        original = UNSET if given is UNSET else msgspec.structs.replace(original, content=given)
    if asked is not None and result.asked is not None:
        asked = msgspec.structs.replace(asked, continuation=result.asked.continuation)
    return msgspec.structs.replace(
        result, data=reply.data, parts=reply.parts, notes=reply.notes, asked=asked, original=original
    )
