"""What is done for jobs that bring a message to its agent: they are tried as long as the message waits, and what the
agent says is written into the conversation.

A message is for its recipient: nobody else is asked. At least once: one whose job was
interrupted is brought again, unless its capability forbids that. The first reply that is written stands.
"""

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
from a2a_fabric.core.stores import Conversations
from a2a_fabric.jobs.patience import patiently
from a2a_fabric.jobs.work import Work
from a2a_fabric.messages.bells import Bells
from a2a_fabric.messages.content import metadata_of, parts_of_result
from a2a_fabric.messages.settings import MessageSettings

MESSAGE = "message"  # in a job's meta: which message it brings
_UNTIL_ITS_TIME_IS_OVER = RetryPolicy(max_attempts=10**9, pause_seconds=0.5, factor=1.5, max_pause_seconds=15.0)
_STORE_PATIENCE = 60.0
_AWAY = (": offline", ": busy")


class Replies:
    def __init__(
        self,
        store: Conversations,
        settings: MessageSettings,
        bells: Bells,
        capability_of: Callable[[str, str], Capability | None],
        ask: Handler,
    ) -> None:
        self._store = store
        self._settings = settings
        self._bells = bells
        self._capability_of = capability_of
        self._ask = ask  # the agent that a call names, and no other

    def around(self, job: JobSummary, work: Work) -> Work:
        """The same work, if the job brings no message."""
        message_id = job.meta.get(MESSAGE)
        if message_id is None:
            return work
        capability = self._capability_of(job.agent_id, job.capability)
        is_forbidden = capability is not None and capability.idempotent is False

        async def bring(call: Call, emit: Emit) -> Result:
            try:
                result = await self._ask(call, emit)
            except AllAttemptsFailed as error:
                raise _later(error) from error
            await self._write_down(message_id, job.agent_id, result)
            return result

        return Work(handler=bring, may_repeat=work.may_repeat, retry=_UNTIL_ITS_TIME_IS_OVER, restarts=not is_forbidden)

    async def _write_down(self, message_id: str, agent_id: str, result: Result) -> None:
        message = await patiently(lambda: self._store.get(message_id), _STORE_PATIENCE)
        if message is None:
            return  # nobody remembers it any more
        if result.asked is not None:
            await self._say(message, agent_id, _question(result.asked), *_asked(result.asked))
        else:
            await self._say(message, agent_id, "", parts_of_result(result), metadata_of(result))

    async def _say(
        self, message: Message, agent_id: str, which: str, parts: Sequence[Part], metadata: dict[str, Any]
    ) -> None:
        reply = NewMessage(
            message_id=new_message_id(),
            conversation_id=message.conversation_id,
            owner=message.owner,
            sender=Party(id=agent_id),
            recipients=(message.sender,),
            parts=tuple(parts),
            metadata=metadata,
            key=reply_key(message.message_id, which),
            reply_to=message.message_id,
            priority=message.priority,
            expires_at=time.time() + self._settings.ttl_seconds,
        )
        with suppress(Conflict):  # it was brought twice, and the first reply stands
            await patiently(lambda: self._store.append(reply), _STORE_PATIENCE)
        self._bells.ring(message.conversation_id)


def reply_key(message_id: str, which: str = "") -> str:
    """Under which the reply to a message is found by whoever wrote that."""
    return f"re:{message_id}{which}"


def _question(asked: Questions) -> str:
    return f":{hashlib.sha256(asked.continuation.encode()).hexdigest()[:16]}"


def _asked(asked: Questions) -> tuple[tuple[Part, ...], dict[str, Any]]:
    questions = {
        key: {"kind": question.kind, "message": question.message, "schema": question.schema}
        for key, question in asked.questions.items()
    }
    return (Part(kind="text", text=asked.words),), {"input_required": {"questions": questions}}


def _later(error: AllAttemptsFailed) -> AgentOffline | AllAttemptsFailed:
    """If nobody was there, nothing has been done, and later somebody may be."""
    hops = [error.details.get("primary", ""), *error.details.get("fallbacks", ())]
    if not all(str(hop).endswith(_AWAY) for hop in hops):
        return error
    return AgentOffline(error.message, **error.details)
