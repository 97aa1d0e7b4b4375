"""A message becomes a job: for whom, with what, under which id.

Clients repeat a message whose answer was lost. So a task's id comes from who sent what,
and for a while the same again leads to the same task; what differs is another task.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, ResponseForm, Target
from a2a_fabric.core.delegation import META_KEY, from_metadata, longer
from a2a_fabric.core.job import Job, JobSummary, new_job_id, owner_of
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.trace import new_id
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.choosing import Gateways, chosen, named_skill
from a2a_fabric.doors.a2a.faults import invalid
from a2a_fabric.doors.a2a.incoming import Asking
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.wish import JobWish

TIMEOUT = "a2a-fabric/timeout_ms"


class Beginning:
    def __init__(
        self, gateway: Gateway, desk: JobDesk, replay_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._gateway = gateway
        self._desk = desk
        self._gateways = Gateways(gateway)
        self._window = replay_seconds
        self._clock = clock

    async def accept(self, asking: Asking, visit: Visit) -> tuple[Call, JobSummary]:
        """Raises Fault, and whatever can be said of the call before it runs."""
        call = self.call(asking, visit, self._time_for(asking))
        if not self._window:
            return call, await self._written(call, asking, new_job_id())
        now = self._clock()
        before, job_id = (self._id(call, asking, visit, now - back) for back in (self._window, 0.0))
        known = await self._replayed(before, visit, now)
        return (known.call, known) if known is not None else (call, await self._written(call, asking, job_id))

    def call(self, asking: Asking, visit: Visit, timeout_ms: int) -> Call:
        """Raises Fault."""
        agent = self.target(asking, visit)
        visit.extensions.check(agent, asking.extensions)
        capability, given = chosen(agent, asking)
        return Call(
            trace=visit.trace,
            auth=visit.principal,
            target=Target(agent_id=agent.agent_id, capability=capability, timeout_ms=timeout_ms),
            input=given,
            response=ResponseForm(format="json"),  # a job's agent streams anyway, for whoever may follow it
            conversation_id=asking.context_id or new_id(),
            delegation_chain=longer(from_metadata(asking.told(META_KEY)), visit.delegation_chain),
            any_agent=True if visit.agent is None and named_skill(asking) is not None else msgspec.UNSET,
        )

    def target(self, asking: Asking, visit: Visit) -> Manifest:
        return visit.agent if visit.agent is not None else self._gateways.agent_for(asking, visit.principal)

    def _time_for(self, asking: Asking) -> int:
        wished = asking.told(TIMEOUT)
        if wished is not None and (isinstance(wished, bool) or not isinstance(wished, int | float) or wished < 1):
            raise invalid(f"metadata.{TIMEOUT} is a number of milliseconds", "metadata")
        return self._desk.settings.time_for(None if wished is None else int(wished))

    async def _written(self, call: Call, asking: Asking, job_id: str) -> JobSummary:
        kept = seen.kept_from(asking, str(call.conversation_id))
        meta = {seen.KEY: msgspec.to_builtins(kept)}
        return await self._desk.accept(call, JobWish(at_once=True, job_id=job_id, key=job_id, meta=meta))

    def _id(self, call: Call, asking: Asking, visit: Visit, now: float) -> str:
        asked = (owner_of(visit.principal), call.target.agent_id, int(now / self._window), asking.raw)
        digest = hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()
        return f"task_{digest[:40]}"

    async def _replayed(self, job_id: str, visit: Visit, now: float) -> Job | None:
        """The same message, sent shortly before in the last window."""
        try:
            known = await self._desk.get(visit.principal, job_id)
        except JobNotFound:
            return None
        return known if known.created_at > now - self._window else None
