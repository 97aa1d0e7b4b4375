"""Store: nothing outlives the process. For tests, and for `store: memory`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.stores.memory.archive import MemoryArchive
from a2a_fabric.stores.memory.jobs import MemoryJobs
from a2a_fabric.stores.memory.messages import MemoryMessages
from a2a_fabric.stores.memory.registrations import MemoryHealthLog, MemoryRegistrations
from a2a_fabric.stores.notices import NoticeBoard


class MemoryStore:
    """All ports over plain dictionaries; every method is one step of the event loop, so nothing interleaves."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.notices = NoticeBoard()
        self.jobs = MemoryJobs(self.notices, clock)
        self.messages = MemoryMessages(self.notices, clock, self.jobs.accept_at)
        self.registrations = MemoryRegistrations(self.notices, clock, self.messages.forget_inbox)
        self.health = MemoryHealthLog()
        self.archive = MemoryArchive(self.jobs, self.registrations, self.health, self.messages)

    async def status(self) -> StoreStatus:
        states = Counter(str(job.state) for job in self.jobs.by_id.values())
        return StoreStatus(
            kind="memory",
            place="memory",
            schema=0,
            jobs=dict(states),
            agents=len(self.registrations.by_id),
            messages=len(self.messages.by_id),
        )

    async def aclose(self) -> None:
        pass


async def build(address: str) -> MemoryStore:
    """The store for `memory` or `memory:`; the address says nothing more."""
    return MemoryStore()
