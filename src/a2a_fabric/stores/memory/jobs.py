"""Jobs in dictionaries. core/lifecycle.py decides every change; this module only remembers the result."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core import job_lifecycle
from a2a_fabric.core.errors import JobNotFound
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    AcceptResult,
    ClaimRequest,
    EventPage,
    FencingToken,
    HeartbeatReply,
    HoldRequest,
    Job,
    JobEvent,
    JobFilter,
    JobOutcome,
    JobPage,
    JobSummary,
    NewJob,
    PruneResult,
    RetentionPolicy,
)
from a2a_fabric.core.job_lifecycle import AgentQuota, measure_events, summary_from_job
from a2a_fabric.core.stores import PAGE_BYTES, WORK_TOPIC, job_topic
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.rows import read_cursor

QueuePosition = tuple[int, float, int, str]  # in the queue: priority, run_at, age, id


class MemoryJobs:
    def __init__(self, signals: TopicSignals, clock: Callable[[], float]) -> None:
        self.by_id: dict[str, Job] = {}
        self.logs: dict[str, list[JobEvent]] = {}
        self._seqs: dict[str, int] = {}
        self._by_seq: list[tuple[int, str]] = []
        self._last_seq = 0
        self._keys: dict[tuple[str, str], str] = {}
        self._queue: list[QueuePosition] = []
        self._signals = signals
        self._clock = clock

    async def accept(self, new: NewJob) -> AcceptResult:
        return self.accept_at(new, self._clock())

    async def get(self, job_id: str) -> Job | None:
        return self.by_id.get(job_id)

    async def find(self, owner: str, key: str) -> Job | None:
        return self.by_id.get(self._keys.get((owner, key), ""))

    async def list(self, query: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        summaries: list[JobSummary] = []
        for index in range(bisect_left(self._by_seq, (read_cursor(cursor), "")) - 1, -1, -1):
            job = self.by_id[self._by_seq[index][1]]
            if not _matches(job, query):
                continue
            if len(summaries) == limit:
                return JobPage(tuple(summaries), str(self._seqs[summaries[-1].job_id]))
            summaries.append(summary_from_job(job))
        return JobPage(tuple(summaries))

    async def count_waiting(self, owner: str, most: int) -> int:
        return min(most, sum(job.owner == owner and job.state == "queued" for job in self.by_id.values()))

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        now = self._clock()
        quota = AgentQuota(
            request, Counter(job.agent_id for job in self.by_id.values() if job.state == "running").__getitem__
        )
        chosen = list(
            quota.choose(
                ((job.agent_id, job) for job in self._list_due(now) if job.owner not in request.blocked_owners),
                request.limit,
            )
        )
        size = measure_events(request.events)
        return [
            self._write(job_lifecycle.claim_job(job, request.hold, len(request.events), size, now), request.events)
            for job in chosen
        ]

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        now = self._clock()
        abandoned = [job for job in self.by_id.values() if job_lifecycle.is_abandoned(job, now)]
        return [self._write(job_lifecycle.take_over_job(job, hold, now)) for job in abandoned[:limit]]

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        return [self._renew_lease(each, lease) for each in tokens]

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        added = tuple(events)
        job = job_lifecycle.append_events(
            self._require_job(token.job_id), token, len(added), measure_events(added), self._clock()
        )
        return self._write(job, added).events

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        now = self._clock()
        job = job_lifecycle.settle_job(self._require_job(token.job_id), token, outcome, _measure_outcome(outcome), now)
        return self._apply_outcome(job, outcome, now)

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        added = tuple(events)
        size = measure_events(added) + len(msgspec.json.encode(answer))
        job = job_lifecycle.answer_job(self._require_job(job_id), len(added), size, self._clock(), part_of)
        return summary_from_job(self._write(replace(job, answer=answer), added))

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        now, current = self._clock(), self._require_job(job_id)
        job = job_lifecycle.cancel_job(current, outcome, _measure_outcome(outcome), now)
        if job is current:
            return summary_from_job(current)
        return self._apply_outcome(job, outcome, now) if job.has_ended else summary_from_job(self._write(job))

    async def events(
        self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES
    ) -> EventPage:  # fmt: skip
        job, log = self._require_job(job_id), self.logs[job_id]
        page: list[JobEvent] = []
        budget = max_bytes
        for event in log[max(0, after) : max(0, after) + limit]:
            budget -= len(msgspec.json.encode(event.event.data))
            if budget < 0 and page:
                break
            page.append(event)
        upto = page[-1].number if page else max(0, after)
        return EventPage(events=tuple(page), state=job.state, last=job.events, upto=upto)

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        now = self._clock()
        ended = sorted((job for job in self.by_id.values() if job.has_ended), key=lambda job: job.ended_at or 0)
        expired = [job for job in ended if _is_expired(job, retention, now)]
        expired += _select_excess([job for job in ended if job not in expired], retention)
        for job in expired[:limit]:
            self._delete(job)
        return PruneResult(len(expired[:limit]), sum(job.size for job in expired[:limit]), len(expired) <= limit)

    def restore(self, job: Job) -> bool:
        if job.job_id in self.by_id or (job.key is not None and (job.owner, job.key) in self._keys):
            return False
        self._insert(job)
        return True

    def restore_event(self, job_id: str, event: JobEvent) -> bool:
        log = self.logs.get(job_id)
        if log is None or event.number != len(log) + 1 or event.number > self.by_id[job_id].events:
            return False
        log.append(event)
        return True

    def accept_at(self, new: NewJob, now: float) -> AcceptResult:
        existing = self._find_duplicate(new)
        if existing is not None:
            return AcceptResult(summary_from_job(existing), False)
        size = len(msgspec.json.encode(new.call)) + measure_events(new.events)
        summary = job_lifecycle.create_job(new, size, now)
        self._insert(Job(**msgspec.structs.asdict(summary), call=new.call))
        self._append_events(new.job_id, new.events, now)
        return AcceptResult(summary, True)

    def _find_duplicate(self, new: NewJob) -> Job | None:
        key = self._keys.get((new.owner, new.key)) if new.key is not None else None
        existing = self.by_id.get(key or new.job_id)
        return None if existing is None else job_lifecycle.match_existing_job(existing, new)

    def _insert(self, job: Job) -> None:
        self.by_id[job.job_id] = job
        self.logs[job.job_id] = []
        self._last_seq += 1
        self._seqs[job.job_id] = self._last_seq
        self._by_seq.append((self._last_seq, job.job_id))
        if job.key is not None:
            self._keys[job.owner, job.key] = job.job_id
        self._enqueue(job)

    def _write(self, job: Job, events: Sequence[Event] = ()) -> Job:
        self._dequeue(self.by_id[job.job_id])
        self.by_id[job.job_id] = job
        self._enqueue(job)
        self._append_events(job.job_id, events, job.updated_at)
        self._signals.post(job_topic(job.job_id))
        return job

    def _apply_outcome(self, job: Job, outcome: JobOutcome, now: float) -> JobSummary:
        for new in outcome.follow_ups:
            self._find_duplicate(new)  # may refuse; nothing is written yet
        for new in outcome.follow_ups:
            self.accept_at(new, now)
        return summary_from_job(self._write(job_lifecycle.apply_outcome(job, outcome), outcome.events))

    def _append_events(self, job_id: str, events: Sequence[Event], now: float) -> None:
        log = self.logs[job_id]
        log.extend(JobEvent(number, now, event) for number, event in enumerate(events, len(log) + 1))

    def _renew_lease(self, token: FencingToken, lease: float) -> HeartbeatReply:
        job = self.by_id.get(token.job_id)
        reply = job_lifecycle.make_heartbeat_reply(job, token)
        if reply.is_held and job is not None:
            self.by_id[token.job_id] = job_lifecycle.renew_lease(job, lease, self._clock())
        return reply

    def _require_job(self, job_id: str) -> Job:
        job = self.by_id.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def _list_due(self, now: float) -> Iterator[Job]:
        for _, _, _, job_id in list(self._queue):
            if job_lifecycle.is_claimable(self.by_id[job_id], now):
                yield self.by_id[job_id]

    def _queue_position(self, job: Job) -> QueuePosition:
        return (-job.priority, job.run_at, self._seqs[job.job_id], job.job_id)

    def _enqueue(self, job: Job) -> None:
        if job.state == "queued":
            insort(self._queue, self._queue_position(job))
            self._signals.post(WORK_TOPIC)

    def _dequeue(self, job: Job) -> None:
        if job.state == "queued":
            del self._queue[bisect_left(self._queue, self._queue_position(job))]

    def _delete(self, job: Job) -> None:
        del self.by_id[job.job_id], self.logs[job.job_id]
        del self._by_seq[bisect_left(self._by_seq, (self._seqs.pop(job.job_id), job.job_id))]
        if job.key is not None:
            del self._keys[job.owner, job.key]


def _matches(job: Job, query: JobFilter) -> bool:
    return (
        (query.owner is None or job.owner == query.owner)
        and (query.agent_id is None or job.agent_id == query.agent_id)
        and (query.states is None or job.state in query.states)
    )


def _measure_outcome(outcome: JobOutcome) -> int:
    contents = [each for each in (outcome.result, outcome.question) if each is not None]
    return measure_events(outcome.events) + sum(len(msgspec.json.encode(each)) for each in contents)


def _is_expired(job: Job, retention: RetentionPolicy, now: float) -> bool:
    own_limit = job_lifecycle.compute_retention_end(job)
    if own_limit is not None:
        return own_limit <= now
    return retention.max_age is not None and (job.ended_at or now) + retention.max_age <= now


def _select_excess(ended: Sequence[Job], retention: RetentionPolicy) -> list[Job]:
    """The oldest of those that together are too large."""
    if retention.max_bytes is None:
        return []
    excess = sum(job.size for job in ended) - retention.max_bytes
    selected = []
    for job in ended:
        if excess <= 0:
            break
        excess -= job.size
        selected.append(job)
    return selected
