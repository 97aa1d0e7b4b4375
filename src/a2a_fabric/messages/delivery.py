"""Delivery of messages to agents: the job handler that retries until the message expires and stores the agent's reply.

Only the recipient is called, never a fallback. Delivery is at least once: after an
interruption the message is delivered again, unless its capability forbids that. The
first stored reply counts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentOffline, AllAttemptsFailed, Conflict
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.message import Message, NewMessage, Party, new_message_id
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.question import Questions
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.core.store_calls import retry_store_call
from a2a_fabric.core.stores import ConversationStore
from a2a_fabric.jobs.run import JobHandler
from a2a_fabric.messages.content import metadata_from_result, parts_from_result
from a2a_fabric.messages.conversations import ConversationSignals
from a2a_fabric.messages.settings import MessageSettings

MESSAGE_META = "message"  # in a job's meta: the id of the message that it delivers
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
            await self._store_answer(message_id, job.agent_id, result)
            return result

        return JobHandler(
            handler=deliver,
            may_repeat=job_handler.may_repeat,
            retry=_RETRY_UNTIL_EXPIRED,
            restarts=not is_repeat_forbidden,
        )

    async def _store_answer(self, message_id: str, agent_id: str, result: Result) -> None:
        message = await retry_store_call(lambda: self._store.get(message_id), _STORE_RETRY_SECONDS)
        if message is None:
            return  # the message was pruned
        if result.asked is not None:
            suffix = f":{hashlib.sha256(result.asked.continuation.encode()).hexdigest()[:16]}"
            await self._store_reply(message, agent_id, suffix, *_parts_from_questions(result.asked))
        else:
            await self._store_reply(message, agent_id, "", parts_from_result(result), metadata_from_result(result))

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
            await retry_store_call(lambda: self._store.append(reply), _STORE_RETRY_SECONDS)
        self._signals.post(message.conversation_id)


def reply_key(message_id: str, suffix: str = "") -> str:
    """The key under which the sender finds the reply to a message."""
    return f"re:{message_id}{suffix}"


def _parts_from_questions(asked: Questions) -> tuple[tuple[Part, ...], dict[str, Any]]:
    rendered = {
        key: {"kind": question.kind, "message": question.message, "schema": question.schema}
        for key, question in asked.questions.items()
    }
    return (Part(kind="text", text=asked.message),), {"input_required": {"questions": rendered}}


def _retryable_error(error: AllAttemptsFailed) -> AgentOffline | AllAttemptsFailed:
    """If every agent was offline or busy, nothing was done, and a later attempt may succeed."""
    hops = [error.details.get("primary", ""), *error.details.get("fallbacks", ())]
    if not all(str(hop).endswith(_UNAVAILABLE) for hop in hops):
        return error
    return AgentOffline(error.message, **error.details)
