"""Messages that are answered with a message: nothing is written down, unless it takes long.

That is what `tasks: never` and `auto` ask for. A caller who will not wait, wants to be told
of changes or goes on with a task gets a task all the same.
"""

from __future__ import annotations

from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import new_id
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.beginning import Beginning
from a2a_fabric.doors.a2a.incoming import Asking
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.shapes import Message, Task
from a2a_fabric.doors.a2a.tasks import Tasks
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.wish import JobWish

CONTINUATION = "a2a-fabric/continuation"


class Quick:
    def __init__(
        self, gateway: Gateway, desk: JobDesk, beginning: Beginning, tasks: Tasks, settings: A2ADoorSettings
    ) -> None:
        self._gateway = gateway
        self._desk = desk
        self._beginning = beginning
        self._tasks = tasks
        self._settings = settings

    def takes(self, asking: Asking) -> bool:
        is_wanted = self._settings.tasks != "always"
        return is_wanted and asking.waits and not asking.task_id and asking.push is None

    async def answer(self, asking: Asking, visit: Visit) -> Task | Message:
        """Raises Fault and what the call does."""
        call = self._beginning.call(asking, visit, self._gateway.time_for(None))
        if self._settings.tasks == "never":
            result = await self._gateway.call(call, ignore)
        else:
            wish = JobWish(job_after=self._settings.task_after_ms / 1000)
            result = await self._desk.call(call, ignore, wish)
        if result.job_id is not None:
            job = await self._desk.get(visit.principal, result.job_id)
            return await self._tasks.finished(job, asking, visit)
        return _message(result, asking, str(call.conversation_id))


def _message(result: Result, asking: Asking, context_id: str) -> Message:
    if result.asked is not None:
        parts = seen.question_parts(result.asked)
        return Message(
            id=new_id(), parts=parts, context_id=context_id, metadata={CONTINUATION: result.asked.continuation}
        )
    parts = seen.result_parts(result, asking.modes)
    return Message(id=new_id(), parts=parts, context_id=context_id, metadata=seen.beside(result))
