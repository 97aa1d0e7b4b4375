"""Jobs in dictionaries. The rules are those of core/lifecycle.py; here they are only remembered."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core import lifecycle
from a2a_fabric.core.claiming import Room
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    Accepted,
    ClaimWish,
    EventPage,
    Held,
    Hold,
    Job,
    JobEvent,
    JobFilter,
    JobPage,
    JobSummary,
    Keep,
    NewJob,
    Outcome,
    Pruned,
    Pulse,
)
from a2a_fabric.core.lifecycle import events_size, summary_of
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import PAGE_BYTES, WORK, job_topic
from a2a_fabric.stores.cursors import read_cursor
from a2a_fabric.stores.notices import NoticeBoard

Place = tuple[int, float, int, str]  # in the queue: priority, run_at, age, id


class MemoryJobs:
    def __init__(self, notices: NoticeBoard, clock: Callable[[], float]) -> None:
        self.by_id: dict[str, Job] = {}
        self.logs: dict[str, list[JobEvent]] = {}
        self._ages: dict[str, int] = {}
        self._by_age: list[tuple[int, str]] = []
        self._born = 0
        self._keys: dict[tuple[str, str], str] = {}
        self._queue: list[Place] = []
        self._notices = notices
        self._clock = clock

    async def accept(self, new: NewJob) -> Accepted:
        return self.accept_at(new, self._clock())

    async def get(self, job_id: str) -> Job | None:
        return self.by_id.get(job_id)

    async def find(self, owner: str, key: str) -> Job | None:
        return self.by_id.get(self._keys.get((owner, key), ""))

    async def list(self, wish: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        found: list[JobSummary] = []
        for at in range(bisect_left(self._by_age, (read_cursor(cursor), "")) - 1, -1, -1):
            job = self.by_id[self._by_age[at][1]]
            if not _is_wanted(job, wish):
                continue
            if len(found) == limit:
                return JobPage(tuple(found), str(self._ages[found[-1].job_id]))
            found.append(summary_of(job))
        return JobPage(tuple(found))

    async def waiting(self, owner: str, most: int) -> int:
        return min(most, sum(job.owner == owner and job.state == "queued" for job in self.by_id.values()))

    async def claim(self, wish: ClaimWish) -> Sequence[Job]:
        now = self._clock()
        room = Room(wish, Counter(job.agent_id for job in self.by_id.values() if job.state == "running").__getitem__)
        chosen = list(
            room.choose(((job.agent_id, job) for job in self._due(now) if job.owner not in wish.held_back), wish.limit)
        )
        size = events_size(wish.events)
        return [
            self._write(lifecycle.claimed(job, wish.hold, len(wish.events), size, now), wish.events) for job in chosen
        ]

    async def take_over(self, hold: Hold, limit: int = 100) -> Sequence[Job]:
        now = self._clock()
        abandoned = [job for job in self.by_id.values() if lifecycle.is_abandoned(job, now)]
        return [self._write(lifecycle.taken_over(job, hold, now)) for job in abandoned[:limit]]

    async def heartbeat(self, held: Sequence[Held], lease: float) -> Sequence[Pulse]:
        return [self._beat(each, lease) for each in held]

    async def append(self, held: Held, events: Sequence[Event]) -> int:
        added = tuple(events)
        job = lifecycle.appended(self._known(held.job_id), held, len(added), events_size(added), self._clock())
        return self._write(job, added).events

    async def settle(self, held: Held, outcome: Outcome) -> JobSummary:
        now = self._clock()
        job = lifecycle.settled(self._known(held.job_id), held, outcome, _outcome_size(outcome), now)
        return self._leave(job, outcome, now)

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        added = tuple(events)
        size = events_size(added) + len(msgspec.json.encode(answer))
        job = lifecycle.answered(self._known(job_id), len(added), size, self._clock(), part_of)
        return summary_of(self._write(replace(job, answer=answer), added))

    async def cancel(self, job_id: str, outcome: Outcome) -> JobSummary:
        now, known = self._clock(), self._known(job_id)
        job = lifecycle.cancelled(known, outcome, _outcome_size(outcome), now)
        if job is known:
            return summary_of(known)
        return self._leave(job, outcome, now) if job.has_ended else summary_of(self._write(job))

    async def events(
        self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES
    ) -> EventPage:  # fmt: skip
        job, log = self._known(job_id), self.logs[job_id]
        page: list[JobEvent] = []
        room = max_bytes
        for line in log[max(0, after) : max(0, after) + limit]:
            room -= len(msgspec.json.encode(line.event.data))
            if room < 0 and page:
                break
            page.append(line)
        upto = page[-1].number if page else max(0, after)
        return EventPage(events=tuple(page), state=job.state, last=job.events, upto=upto)

    async def prune(self, keep: Keep, limit: int = 1000) -> Pruned:
        now = self._clock()
        ended = sorted((job for job in self.by_id.values() if job.has_ended), key=lambda job: job.ended_at or 0)
        doomed = [job for job in ended if _is_over(job, keep, now)]
        doomed += _beyond_size([job for job in ended if job not in doomed], keep)
        for job in doomed[:limit]:
            self._forget(job)
        return Pruned(len(doomed[:limit]), sum(job.size for job in doomed[:limit]), len(doomed) <= limit)

    def restore(self, job: Job) -> bool:
        if job.job_id in self.by_id or (job.key is not None and (job.owner, job.key) in self._keys):
            return False
        self._insert(job)
        return True

    def restore_event(self, job_id: str, line: JobEvent) -> bool:
        log = self.logs.get(job_id)
        if log is None or line.number != len(log) + 1 or line.number > self.by_id[job_id].events:
            return False
        log.append(line)
        return True

    def accept_at(self, new: NewJob, now: float) -> Accepted:
        known = self._same(new)
        if known is not None:
            return Accepted(summary_of(known), False)
        size = len(msgspec.json.encode(new.call)) + events_size(new.events)
        summary = lifecycle.accepted(new, size, now)
        self._insert(Job(**msgspec.structs.asdict(summary), call=new.call))
        self._log(new.job_id, new.events, now)
        return Accepted(summary, True)

    def _same(self, new: NewJob) -> Job | None:
        key = self._keys.get((new.owner, new.key)) if new.key is not None else None
        known = self.by_id.get(key or new.job_id)
        return None if known is None else lifecycle.same_again(known, new)

    def _insert(self, job: Job) -> None:
        self.by_id[job.job_id] = job
        self.logs[job.job_id] = []
        self._born += 1
        self._ages[job.job_id] = self._born
        self._by_age.append((self._born, job.job_id))
        if job.key is not None:
            self._keys[job.owner, job.key] = job.job_id
        self._enqueue(job)

    def _write(self, job: Job, events: Sequence[Event] = ()) -> Job:
        self._dequeue(self.by_id[job.job_id])
        self.by_id[job.job_id] = job
        self._enqueue(job)
        self._log(job.job_id, events, job.updated_at)
        self._notices.post(job_topic(job.job_id))
        return job

    def _leave(self, job: Job, outcome: Outcome, now: float) -> JobSummary:
        for new in outcome.follow_ups:
            self._same(new)  # may refuse; nothing is written yet
        for new in outcome.follow_ups:
            self.accept_at(new, now)
        return summary_of(self._write(lifecycle.with_body(job, outcome), outcome.events))

    def _log(self, job_id: str, events: Sequence[Event], now: float) -> None:
        log = self.logs[job_id]
        log.extend(JobEvent(number, now, event) for number, event in enumerate(events, len(log) + 1))

    def _beat(self, held: Held, lease: float) -> Pulse:
        job = self.by_id.get(held.job_id)
        said = lifecycle.pulse(job, held)
        if said.is_held and job is not None:
            self.by_id[held.job_id] = lifecycle.renewed(job, lease, self._clock())
        return said

    def _known(self, job_id: str) -> Job:
        job = self.by_id.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def _due(self, now: float) -> Iterator[Job]:
        for _, _, _, job_id in list(self._queue):
            if lifecycle.is_claimable(self.by_id[job_id], now):
                yield self.by_id[job_id]

    def _place(self, job: Job) -> Place:
        return (-job.priority, job.run_at, self._ages[job.job_id], job.job_id)

    def _enqueue(self, job: Job) -> None:
        if job.state == "queued":
            insort(self._queue, self._place(job))
            self._notices.post(WORK)

    def _dequeue(self, job: Job) -> None:
        if job.state == "queued":
            del self._queue[bisect_left(self._queue, self._place(job))]

    def _forget(self, job: Job) -> None:
        del self.by_id[job.job_id], self.logs[job.job_id]
        del self._by_age[bisect_left(self._by_age, (self._ages.pop(job.job_id), job.job_id))]
        if job.key is not None:
            del self._keys[job.owner, job.key]


def _is_wanted(job: Job, wish: JobFilter) -> bool:
    return (
        (wish.owner is None or job.owner == wish.owner)
        and (wish.agent_id is None or job.agent_id == wish.agent_id)
        and (wish.states is None or job.state in wish.states)
    )


def _outcome_size(outcome: Outcome) -> int:
    kept = [each for each in (outcome.result, outcome.question) if each is not None]
    return events_size(outcome.events) + sum(len(msgspec.json.encode(each)) for each in kept)


def _is_over(job: Job, keep: Keep, now: float) -> bool:
    own = lifecycle.keep_until(job)
    if own is not None:
        return own <= now
    return keep.max_age is not None and (job.ended_at or now) + keep.max_age <= now


def _beyond_size(ended: Sequence[Job], keep: Keep) -> list[Job]:
    """The oldest of those that together are too large."""
    if keep.max_bytes is None:
        return []
    excess = sum(job.size for job in ended) - keep.max_bytes
    doomed = []
    for job in ended:
        if excess <= 0:
            break
        excess -= job.size
        doomed.append(job)
    return doomed
