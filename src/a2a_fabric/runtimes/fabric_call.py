"""One call to another node's agent, from the request to its end, wherever the work goes in between.

The node may answer with a job's handle instead of an answer. Then the job is followed
through broken connections until it ends, and cancelled if nobody waits for it any
longer: no work is left behind there that nobody here knows of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, RateLimited, UpstreamInterrupted
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers, Questions
from a2a_fabric.core.result import Fallback, Result, asking
from a2a_fabric.core.store_errors import StoreUnavailable
from a2a_fabric.runtimes import farewells
from a2a_fabric.runtimes.fabric_node import NodeWay
from a2a_fabric.runtimes.fabric_wire import Frame, Said, asked_in, call_arguments, event_data, final_of
from a2a_fabric.runtimes.farewells import Farewells
from a2a_fabric.runtimes.room import Room

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_CALL, _JOB = "call", "job"  # what a continuation leads back to


class NodeCall:
    """`agent_id` and `capability` are the node's own names; `prefix` makes ids of its agents ours."""

    def __init__(
        self, way: NodeWay, farewells: Farewells, agent_id: str, capability: str, *, prefix: str, call: Call, emit: Emit
    ) -> None:
        self._way = way
        self._farewells = farewells
        self._agent_id = agent_id
        self._capability = capability
        self._prefix = prefix
        self._call = call
        self._emit = emit
        self._room = Room(way.reply_bytes)
        self._ends_at = time.monotonic() + call.target.timeout_ms / 1000

    async def result(self) -> Result:
        """Raises FabricError. Cancelling it cancels the work there."""
        kind, rest = _led_back(self._call.answers)
        said = await (self._answered(rest) if kind == _JOB else self._asked(rest))
        if said.job_id is not None:
            said = await self._seen_through(said)
        return self._understood(said)

    async def _asked(self, continuation: str | None) -> Said:
        arguments = call_arguments(self._call, self._agent_id, self._capability)
        if continuation is not None and self._call.answers:
            arguments |= {"continuation": continuation, "answers": self._call.answers.answers}
        if not self._call.response.stream:
            return await self._way.ask("fabric.call", arguments, self._left)
        async with self._way.listen("fabric.call", arguments, self._left) as heard:
            return heard if isinstance(heard, Said) else await self._heard(heard)

    async def _heard(self, frames: AsyncIterator[Frame]) -> Said:
        async for frame in frames:
            if frame.event == "final":
                return final_of(frame)
            await self._pass_on(frame)
        raise UpstreamInterrupted(f"The stream of node '{self._way.name}' ended before its final event")

    async def _pass_on(self, frame: Frame) -> None:
        """All but what is said again here: that work has begun, and what is asked."""
        if frame.event not in EVENT_KINDS or frame.event == "input_required":
            return
        event = Event(frame.event, event_data(frame))  # type: ignore[arg-type]  # one of EVENT_KINDS
        if event.kind != "status" or "message" in event.data or "reset" in event.data:
            await self._emit(self._room.check(event))

    async def _answered(self, job_id: str | None) -> Said:
        """What its agent asked; the job goes on."""
        answers = self._call.answers.answers if self._call.answers else {}
        said = await self._way.ask("fabric.job.answer", {"job_id": job_id, "answers": answers}, self._left)
        return msgspec.structs.replace(said, job_id=job_id)

    async def _seen_through(self, handle: Said) -> Said:
        job_id, after = str(handle.job_id), _number(handle.data.get("events"))
        try:
            return await self._followed(job_id, after) if asked_in(handle) is None else handle
        except FabricError as error:
            if not _is_the_jobs_own(error, job_id):
                self._cancel(job_id)
            raise
        except BaseException:
            self._cancel(job_id)
            raise

    async def _followed(self, job_id: str, after: int) -> Said:
        """To its end, through broken connections: its log is kept, so nothing is missed."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._way.listen(
                    "fabric.job.stream", {"job_id": job_id, "after": after}, self._left
                ) as said:
                    if isinstance(said, Said):
                        return said
                    async for frame in said:
                        if frame.event == "final":
                            return final_of(frame)
                        after, pause = frame.number or after, _FIRST_PAUSE
                        if self._call.response.stream:
                            await self._pass_on(frame)
            except FabricError as error:
                if _is_the_jobs_own(error, job_id) or not _may_listen_again(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _cancel(self, job_id: str) -> None:
        self._farewells.say(self._way.ask("fabric.job.cancel", {"job_id": job_id}, farewells.SECONDS))

    def _understood(self, said: Said) -> Result:
        asked = asked_in(said)
        if asked is not None:
            return _asking(asked, said.job_id)
        return Result(data=said.data, parts=said.parts, notes=said.notes, fallback=self._as_here(said.fallback))

    def _as_here(self, fallback: Fallback | None) -> Fallback | None:
        """Whoever answered there, under the id that it has here."""
        if fallback is None:
            return None
        used = f"{self._prefix}{fallback.used}"
        attempts = tuple(f"{self._prefix}{attempt}" for attempt in fallback.attempts)
        return msgspec.structs.replace(fallback, requested=self._call.target.agent_id, used=used, attempts=attempts)

    @property
    def _left(self) -> float:
        return self._ends_at - time.monotonic()


def _led_back(answers: Answers | msgspec.UnsetType) -> tuple[str, str | None]:
    """What the answers belong to; raises BadInput if nothing here has asked."""
    if not answers:
        return _CALL, None
    kind, _, rest = answers.continuation.partition(":")
    if kind not in (_CALL, _JOB) or not rest:
        raise BadInput("Nobody waits for an answer with this continuation", field="continuation")
    return kind, rest


def _asking(asked: Questions, job_id: str | None) -> Result:
    """A job has no continuation of its own that we need: its id is one."""
    return asking(asked.questions, f"{_JOB}:{job_id}" if job_id else f"{_CALL}:{asked.continuation}")


def _is_the_jobs_own(error: FabricError, job_id: str) -> bool:
    """Whether this is how the job ended, and not how listening to it did."""
    return error.details.get("job_id") == job_id


def _may_listen_again(error: FabricError) -> bool:
    """The node is away or busy for a while, or about to stop; the job is kept."""
    is_away = isinstance(error, AgentOffline | UpstreamInterrupted | RateLimited)
    return is_away or error.details.get("upstream_code") == StoreUnavailable.code


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
