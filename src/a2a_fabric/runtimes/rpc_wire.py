"""The words of document 002, as an agent of its kind is asked and answers: a task in, an outcome or an error out."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS, arguments_for
from a2a_fabric.core.call import Input
from a2a_fabric.core.content import left_behind
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamRefused, reported_by_agent
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Question
from a2a_fabric.core.result import Result, as_object, asking

METHOD_NOT_FOUND = -32601
BESIDE = "_fabric"  # in an output: what another gateway has to say of it
_CODES = {-32602: "BAD_INPUT", -32002: "TIMEOUT"}
_WORDS = 500


def input_for(capability: Capability | None, given: Input) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the agent gets as `input`, and notes on what it does not get.

    The document knows no schemas: where none was written down, words and attachments
    stand beside the rest, under the names that our own doors read them from.
    """
    has_schema = capability is not None and capability.input_schema is not None
    if has_schema or given.arguments is not msgspec.UNSET:
        arguments = arguments_for(capability, given)
        return arguments, left_behind(given, arguments, capability.name if capability else "it")
    beside: dict[str, Any] = {"task": given.task} if given.task else {}
    if given.attachments:
        beside[ATTACHMENTS] = msgspec.to_builtins(given.attachments)
    return {**beside, **given.context}, ()


def answered(reply: dict[str, Any], *, errors_in_output: bool) -> Result:
    """Of a whole reply. Raises FabricError for what is no good outcome."""
    if reply.get("error") is not None:
        raise reported(reply["error"])
    outcome = reply.get("result", reply)
    if not isinstance(outcome, dict):
        raise UpstreamFailed("The agent's answer holds no result")
    status = str(outcome.get("status", "completed")).lower()
    output = as_object(outcome.get("output")) if "output" in outcome or "status" in outcome else outcome
    if status == "completed":
        return _completed(output, errors_in_output=errors_in_output)
    if status == "input_required":
        return _asked(output, str(outcome.get("taskId", "")))
    raise _ended_as(status, output)


def _completed(output: dict[str, Any], *, errors_in_output: bool) -> Result:
    """Many agents of this kind report failures as good outcomes with an `error` inside."""
    beside = output.pop(BESIDE, None)
    error = output.get("error")
    if error and errors_in_output:
        raise UpstreamRefused(_words_of(error))
    notes = (f"The agent's output holds an error: {_words_of(error)}",) if error else ()
    if not isinstance(beside, dict):
        return Result(data=output, notes=notes)
    told = [note for note in beside.get("notes") or () if isinstance(note, str)]
    return Result(data=output, parts=_parts(beside.get("parts")), notes=(*notes, *told))


def _parts(given: Any) -> tuple[Part, ...]:
    try:
        return msgspec.convert(given or (), tuple[Part, ...])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's answer has parts that are none: {exc}"[:_WORDS]) from exc


def _asked(output: dict[str, Any], task_id: str) -> Result:
    asked = output.get("input_required")
    try:
        questions = msgspec.convert(asked["questions"], dict[str, Question])  # type: ignore[index]  # it may be anything
    except (msgspec.ValidationError, KeyError, TypeError) as exc:
        raise UpstreamFailed("The agent asks something, and does not say what") from exc
    return asking(questions, task_id)


def _ended_as(status: str, output: dict[str, Any]) -> FabricError:
    error = output.get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        return reported_by_agent(error["code"], _words_of(error), _details(error.get("details")))
    words = _words_of(error) if error else f"The agent's task ended as '{status[:32]}'"
    if status == "timeout":
        return reported_by_agent("TIMEOUT", words, {"status": status})
    return UpstreamRefused(words, status=status[:32])


def reported(error: Any) -> FabricError:
    """An error of JSON-RPC, or the bare words that some send instead."""
    if not isinstance(error, dict):
        return UpstreamRefused(_words_of(error))
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    code = data.get("code")
    if isinstance(code, str):  # another node's: it says the same in our words
        return reported_by_agent(
            code, str(data.get("detail") or error.get("message"))[:_WORDS], _details(data.get("details"))
        )
    reason = data.get("reason")
    words = f"{_words_of(error)}: {reason}"[:_WORDS] if isinstance(reason, str) else _words_of(error)
    number = error.get("code")
    ours = _CODES.get(number) if isinstance(number, int) else None
    if reason == "timeout":
        ours = "TIMEOUT"
    return reported_by_agent(ours, words) if ours else UpstreamRefused(words, upstream_code=number)


def _words_of(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_WORDS] if message else "The agent reported an error without saying which"


def _details(given: Any) -> dict[str, Any] | None:
    return given if isinstance(given, dict) else None
