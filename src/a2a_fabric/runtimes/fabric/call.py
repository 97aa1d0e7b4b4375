"""One call to an agent of another node, from the request to its end.

The node may answer with a job instead of a result. Then the job is followed through broken
connections until it ends, and cancelled when the caller here leaves, so no work is left
running there unnoticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import (
    AgentOffline,
    FabricError,
    RateLimited,
    StoreUnavailable,
    UpstreamInterrupted,
)
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers, Questions
from a2a_fabric.core.result import Fallback, Result, make_input_required
from a2a_fabric.runtimes import remote_work
from a2a_fabric.runtimes.fabric.client import (
    NodeClient,
    NodeFrame,
    NodeReply,
    build_call_arguments,
    questions_from_reply,
    read_event_data,
    read_final,
)
from a2a_fabric.runtimes.remote_work import BackgroundCancels, OutputLimit

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 2.0
_CALL, _JOB = "call", "job"  # the kinds of continuation


class NodeCall:
    """`agent_id` and `capability` are the names on the other node; `prefix` makes its agent ids valid here."""

    def __init__(
        self,
        node: NodeClient,
        cancels: BackgroundCancels,
        agent_id: str,
        capability: str,
        *,
        prefix: str,
        call: Call,
        emit: Emit,
    ) -> None:
        self._node = node
        self._cancels = cancels
        self._agent_id = agent_id
        self._capability = capability
        self._prefix = prefix
        self._call = call
        self._emit = emit
        self._output_limit = OutputLimit(node.reply_bytes)
        self._ends_at = time.monotonic() + call.target.timeout_ms / 1000

    async def get_result(self) -> Result:
        """Raises FabricError. Cancelling it cancels the work on the other node."""
        kind, continued_id = _parse_continuation(self._call.answers)
        reply = await (self._send_answers(continued_id) if kind == _JOB else self._send_call(continued_id))
        if reply.job_id is not None:
            reply = await self._follow_or_cancel(reply)
        return self._result_from_reply(reply)

    async def _send_call(self, continuation: str | None) -> NodeReply:
        arguments = build_call_arguments(self._call, self._agent_id, self._capability)
        if continuation is not None and self._call.answers:
            arguments |= {"continuation": continuation, "answers": self._call.answers.answers}
        if not self._call.response.stream:
            return await self._node.call_operation("fabric.call", arguments, self._remaining_seconds)
        async with self._node.stream_operation("fabric.call", arguments, self._remaining_seconds) as reply:
            return reply if isinstance(reply, NodeReply) else await self._relay_frames(reply)

    async def _relay_frames(self, frames: AsyncIterator[NodeFrame]) -> NodeReply:
        async for frame in frames:
            if frame.event == "final":
                return read_final(frame)
            await self._relay_event(frame)
        raise UpstreamInterrupted(f"The stream of node '{self._node.name}' ended before its final event")

    async def _relay_event(self, frame: NodeFrame) -> None:
        """Relay all events except those that this node emits again: the start of the work, and questions."""
        if frame.event not in EVENT_KINDS or frame.event == "input_required":
            return
        event = Event(frame.event, read_event_data(frame))  # type: ignore[arg-type]  # one of EVENT_KINDS
        if event.kind != "status" or "message" in event.data or "reset" in event.data:
            await self._emit(self._output_limit.check(event))

    async def _send_answers(self, job_id: str | None) -> NodeReply:
        """Send the answers to the agent's questions; the job continues."""
        answers = self._call.answers.answers if self._call.answers else {}
        reply = await self._node.call_operation(
            "fabric.job.answer", {"job_id": job_id, "answers": answers}, self._remaining_seconds
        )
        return msgspec.structs.replace(reply, job_id=job_id)

    async def _follow_or_cancel(self, handle: NodeReply) -> NodeReply:
        job_id, event_count = str(handle.job_id), handle.data.get("events")
        after = event_count if isinstance(event_count, int) and event_count >= 0 else 0
        try:
            return await self._follow_job(job_id, after) if questions_from_reply(handle) is None else handle
        except FabricError as error:
            if not _is_job_outcome(error, job_id):
                self._cancel(job_id)
            raise
        except BaseException:
            self._cancel(job_id)
            raise

    async def _follow_job(self, job_id: str, after: int) -> NodeReply:
        """Follow the job to its end. After a broken connection, the missed events are read from its log."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._node.stream_operation(
                    "fabric.job.stream", {"job_id": job_id, "after": after}, self._remaining_seconds
                ) as reply:
                    if isinstance(reply, NodeReply):
                        return reply
                    async for frame in reply:
                        if frame.event == "final":
                            return read_final(frame)
                        after, pause = frame.number or after, _FIRST_PAUSE
                        if self._call.response.stream:
                            await self._relay_event(frame)
            except FabricError as error:
                if _is_job_outcome(error, job_id) or not _may_reconnect(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def _cancel(self, job_id: str) -> None:
        self._cancels.start(
            self._node.call_operation("fabric.job.cancel", {"job_id": job_id}, remote_work.CANCEL_TIMEOUT)
        )

    def _result_from_reply(self, reply: NodeReply) -> Result:
        questions = questions_from_reply(reply)
        if questions is not None:
            return _build_question_result(questions, reply.job_id)
        return Result(
            data=reply.data, parts=reply.parts, notes=reply.notes, fallback=self._translate_fallback(reply.fallback)
        )

    def _translate_fallback(self, fallback: Fallback | None) -> Fallback | None:
        """The agent that answered on the other node, under the id that it has here."""
        if fallback is None:
            return None
        used = f"{self._prefix}{fallback.used}"
        attempts = tuple(f"{self._prefix}{attempt}" for attempt in fallback.attempts)
        return msgspec.structs.replace(fallback, requested=self._call.target.agent_id, used=used, attempts=attempts)

    @property
    def _remaining_seconds(self) -> float:
        return self._ends_at - time.monotonic()


def _parse_continuation(answers: Answers | msgspec.UnsetType) -> tuple[str, str | None]:
    """The kind and id that the answers belong to. Raises BadInput for an unknown continuation."""
    if not answers:
        return _CALL, None
    kind, _, continued_id = answers.continuation.partition(":")
    if kind not in (_CALL, _JOB) or not continued_id:
        raise unknown_continuation()
    return kind, continued_id


def _build_question_result(questions: Questions, job_id: str | None) -> Result:
    """The continuation of a job is its id."""
    return make_input_required(
        questions.questions, f"{_JOB}:{job_id}" if job_id else f"{_CALL}:{questions.continuation}"
    )


def _is_job_outcome(error: FabricError, job_id: str) -> bool:
    """Whether the error is the outcome of the job, and not of the connection."""
    return error.details.get("job_id") == job_id


def _may_reconnect(error: FabricError) -> bool:
    """Whether the node is unreachable, busy or about to stop for a while; the job is kept."""
    is_unavailable = isinstance(error, AgentOffline | UpstreamInterrupted | RateLimited)
    return is_unavailable or error.details.get("upstream_code") == StoreUnavailable.code
