"""Delivery of messages to agents: the job handler that retries until the message expires and stores the agent's reply.

Only the recipient is called, never a fallback. Delivery is at least once: after an
interruption the message is delivered again, unless its capability forbids that. The
first stored reply counts.

The call is made from the parts of the message: text parts are the task; a single JSON object
is the arguments; all other parts are attached unchanged, including parts of unknown types."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import ATTACHMENTS, Attachment, Call, Emit, Handler, Input, attachment_from_part
from a2a_fabric.core.capability_choice import CapabilityChoice, choose_unnamed_capability
from a2a_fabric.core.errors import AgentOffline, AllAttemptsFailed, CapabilityNotFound, Conflict
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.message import EXTENSION_KEY, Message, NewMessage, Party, new_message_id
from a2a_fabric.core.result import Part, Questions, Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.core.stores import ConversationStore, retry_store_call_for
from a2a_fabric.jobs.run import JobHandler
from a2a_fabric.messages.conversations import ConversationSignals
from a2a_fabric.messages.settings import MessageSettings

ANSWER = "answer"


def input_from_parts(parts: Sequence[Part], context: dict[str, Any] | None = None) -> Input:
    """`context` holds arguments that were sent in addition to the parts."""
    if len(parts) == 1 and is_plain_text(parts[0]):
        return Input(task=parts[0].text or "", context=dict(context or {}))
    text = "\n".join(part.text for part in parts if is_plain_text(part) and part.text)
    objects = [part for part in parts if _is_object(part)]
    arguments = dict(objects[0].data) if len(objects) == 1 else {}
    argument_parts = objects if len(objects) == 1 else []
    attached_parts = [part for part in parts if not is_plain_text(part) and part not in argument_parts]
    return Input(
        task=text,
        context={**arguments, **(context or {})},
        attachments=tuple(attachment_from_part(part) for part in attached_parts),
    )


def split_input(call_input: Input, capability: Capability | None) -> Input:
    """Take `task` and `attachments` out of the arguments, unless the capability has arguments of these names."""
    properties = ((capability.input_schema if capability else None) or {}).get("properties", {})
    remaining, task, attachments = dict(call_input.context), call_input.task, call_input.attachments
    if not task and isinstance(remaining.get("task"), str) and "task" not in properties:
        task = remaining.pop("task")
    if ATTACHMENTS in remaining and ATTACHMENTS not in properties:
        try:
            attachments = (*attachments, *msgspec.convert(remaining[ATTACHMENTS], tuple[Attachment, ...]))
            del remaining[ATTACHMENTS]
        except msgspec.ValidationError:
            pass  # the argument belongs to the agent, although it has this name
    return Input(task=task, context=remaining, attachments=attachments)


def is_plain_text(part: Part) -> bool:
    """Named text is an attachment, not plain text."""
    return part.kind == "text" and part.name is None and part.text is not None


def _is_object(part: Part) -> bool:
    is_plain = part.kind == "json" and part.name is None and EXTENSION_KEY not in part.meta
    return is_plain and isinstance(part.data, dict)


def parts_from_result(result: Result) -> tuple[Part, ...]:
    """The parts of the result, with the answer first unless one of them contains it."""
    if _contains_answer(result):
        return result.parts
    answer = result.data.get(ANSWER)
    if isinstance(answer, str) and result.data.keys() == {ANSWER}:
        return (Part(kind="text", text=answer), *result.parts)
    return (Part(kind="json", data=result.data), *result.parts)


def _contains_answer(result: Result) -> bool:
    if not result.data:
        return bool(result.parts)
    text = "\n".join(part.text for part in result.parts if part.kind == "text" and part.text)
    return result.data == {ANSWER: text} or any(part.data == result.data for part in result.parts)


def choose_capability(
    manifest: Manifest, requested_name: str | None, call_input: Input, *, is_learnt: bool
) -> CapabilityChoice:
    """The named capability, else the one that the rule for all doors chooses. Raises CapabilityNotFound."""
    if requested_name is None:
        return choose_unnamed_capability(manifest.capabilities, call_input, is_learnt=is_learnt)
    capability = manifest.find_capability(requested_name)
    if capability is None and not manifest.is_open_ended:
        raise CapabilityNotFound(manifest.agent_id, requested_name, [each.name for each in manifest.capabilities])
    return CapabilityChoice(capability=capability or Capability(name=requested_name))


def describe_choice(capability: str, reason: str | None) -> dict[str, Any]:
    """For metadata: which capability answers, and why, if its name was not given."""
    return {} if reason is None else {"capability": capability, "capability_reason": reason}


def metadata_from_result(result: Result) -> dict[str, Any]:
    """The notes and the fallback of a result, as metadata of its message."""
    fields = {"notes": list(result.notes), "fallback": msgspec.to_builtins(result.fallback)}
    return {name: value for name, value in fields.items() if value}


QUESTION_KEY = "input_required"  # in the metadata of a message that asks something
MESSAGE_META = "message"  # in a job's meta: the id of the message that it delivers
CHOICE_META = "capability_reason"  # in a job's meta: why this capability was chosen
_RETRY_UNTIL_EXPIRED = RetryPolicy(max_attempts=10**9, pause_seconds=0.5, factor=1.5, max_pause_seconds=15.0)
_STORE_RETRY_SECONDS = 60.0
_UNAVAILABLE = (": offline", ": busy")


class MessageDelivery:
    def __init__(
        self,
        store: ConversationStore,
        settings: MessageSettings,
        signals: ConversationSignals,
        find_capability: Callable[[str, str], Capability | None],
        call_agent: Handler,
    ) -> None:
        self._store = store
        self._settings = settings
        self._signals = signals
        self._find_capability = find_capability
        self._call_agent = call_agent  # calls the named agent, without fallbacks

    def wrap_handler(self, job: JobSummary, job_handler: JobHandler) -> JobHandler:
        """The handler that delivers the job's message; unchanged if the job delivers none."""
        message_id = job.meta.get(MESSAGE_META)
        if message_id is None:
            return job_handler
        capability = self._find_capability(job.agent_id, job.capability)
        is_repeat_forbidden = capability is not None and capability.idempotent is False

        async def deliver(call: Call, emit: Emit) -> Result:
            try:
                result = await self._call_agent(call, emit)
            except AllAttemptsFailed as error:
                raise _retryable_error(error) from error
            await self._store_answer(message_id, job, result)
            return result

        return JobHandler(
            handler=deliver,
            may_repeat=job_handler.may_repeat,
            retry=_RETRY_UNTIL_EXPIRED,
            restarts=not is_repeat_forbidden,
            refusal_is_final=True,
        )

    async def _store_answer(self, message_id: str, job: JobSummary, result: Result) -> None:
        message = await retry_store_call_for(_STORE_RETRY_SECONDS, self._store.get, message_id)
        if message is None:
            return  # the message was pruned
        if result.asked is not None:
            suffix = question_suffix(result.asked.continuation)
            parts, metadata = _parts_from_questions(result.asked)
        else:
            suffix, parts, metadata = "", parts_from_result(result), metadata_from_result(result)
        metadata |= describe_choice(job.capability, job.meta.get(CHOICE_META))
        await self._store_reply(message, job.agent_id, suffix, parts, metadata)

    async def _store_reply(
        self, message: Message, agent_id: str, suffix: str, parts: Sequence[Part], metadata: dict[str, Any]
    ) -> None:
        reply = NewMessage(
            message_id=new_message_id(),
            conversation_id=message.conversation_id,
            owner=message.owner,
            sender=Party(id=agent_id),
            recipients=(message.sender,),
            parts=tuple(parts),
            metadata=metadata,
            key=reply_key(message.message_id, suffix),
            reply_to=message.message_id,
            priority=message.priority,
            expires_at=time.time() + self._settings.ttl_seconds,
        )
        with suppress(Conflict):  # it was delivered twice, and the first reply counts
            await retry_store_call_for(_STORE_RETRY_SECONDS, self._store.append, reply)
        self._signals.post(message.conversation_id)


REPLY_PREFIX = "re:"  # of the keys of agents' replies; no sender can choose such a key


def reply_key(message_id: str, suffix: str = "") -> str:
    """The key under which the sender finds the reply to a message, or with `question_suffix` a question about it."""
    return f"{REPLY_PREFIX}{message_id}{suffix}"


def question_suffix(continuation: str) -> str:
    return f":{hashlib.sha256(continuation.encode()).hexdigest()[:16]}"


def _parts_from_questions(form: Questions) -> tuple[tuple[Part, ...], dict[str, Any]]:
    rendered = {
        key: {"kind": question.kind, "message": question.message, "schema": question.schema}
        for key, question in form.questions.items()
    }
    return (Part(kind="text", text=form.message),), {QUESTION_KEY: {"questions": rendered}}


def _retryable_error(error: AllAttemptsFailed) -> AgentOffline | AllAttemptsFailed:
    """If every agent was offline or busy, nothing was done, and a later attempt may succeed."""
    hops = [error.details.get("primary", ""), *error.details.get("fallbacks", ())]
    if not all(str(hop).endswith(_UNAVAILABLE) for hop in hops):
        return error
    return AgentOffline(error.message, **error.details)
