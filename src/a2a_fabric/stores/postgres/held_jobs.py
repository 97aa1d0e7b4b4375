"""Jobs that this process holds, and what their workers write most: events, and the end. One statement for a group.

The store remembers each job that it gave to a worker, so a change can be decided
without reading the row. What holds:
- The statement changes a job only if the row still has the version on which the change was decided. Every change of a
  job has a new version, except a renewed lease, which these changes leave alone. A change that is refused is decided
  again on the locked row, in a transaction.
- Rows are changed in the order of job ids, as in other transactions.
- The moments are those of the server: changes are decided first with any clock, for what is to be written, and again
  with the server's for the replies. None of these decisions depends on the clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.stores import job_topic
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.job_inserts import EVENT_TYPES, ExistingJobs
from a2a_fabric.stores.postgres.job_writes import ChangeBatch, JobChange, to_event_columns
from a2a_fabric.stores.postgres.transactions import (
    SingleStatement,
    build_single_statement,
    to_columns,
    unnest_parameters,
)
from a2a_fabric.stores.rows import encode_optional

_MAX_JOBS = 10_000  # that are remembered; those of workers that lost them are forgotten with time
_GIVEN_TYPES = (
    "int8", "int8", "int8", "text", "int8", "int8", "int8", "bytea", "bool", "float8", "bytea",
)  # fmt: skip
_CHANGE_JOBS = build_single_statement(f"""
given AS (
    SELECT * FROM unnest({unnest_parameters(_GIVEN_TYPES, 3)}) AS given (
        seq, known_version, fence, state, events, size, version, error, has_ended, retention, result
    )
), changed AS (
    UPDATE a2a_fabric.jobs AS jobs SET state = given.state, events = given.events, size = given.size,
        version = given.version, error = given.error, updated_at = mark.at,
        worker = CASE WHEN given.has_ended THEN NULL ELSE jobs.worker END,
        lease_until = CASE WHEN given.has_ended THEN NULL ELSE jobs.lease_until END,
        ended_at = CASE WHEN given.has_ended THEN mark.at END, keep_until = mark.at + given.retention
    FROM given CROSS JOIN mark
    WHERE jobs.seq = given.seq AND jobs.version = given.known_version AND jobs.fence = given.fence
    RETURNING jobs.seq
), ended AS (
    INSERT INTO a2a_fabric.job_bodies (job, result)
    SELECT seq, result FROM changed JOIN given USING (seq) WHERE has_ended
    ON CONFLICT (job) DO UPDATE SET result = excluded.result, question = NULL, answer = NULL
), logged AS (
    INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
    SELECT seq, number, mark.at, kind, data
    FROM unnest({unnest_parameters(EVENT_TYPES, len(_GIVEN_TYPES) + 3)}) AS event (seq, number, at, kind, data)
    JOIN changed USING (seq) CROSS JOIN mark
)
SELECT mark.at, seq FROM mark LEFT JOIN changed ON true
""")  # noqa: S608
# A lease that was renewed since has its own `updated_at`.
_FIND_CHANGED = """
SELECT $1::float8, seq FROM a2a_fabric.jobs AS jobs WHERE seq = ANY($2::int8[]) AND (
    updated_at = $1 OR EXISTS (SELECT 1 FROM a2a_fabric.job_events WHERE job = jobs.seq AND at = $1)
)
"""


class HeldJobs:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._jobs: OrderedDict[str, tuple[int, JobSummary]] = OrderedDict()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, seq: int, job: JobSummary) -> None:
        self._jobs[job.job_id] = (seq, job)
        if len(self._jobs) > _MAX_JOBS:
            self._jobs.popitem(last=False)

    async def apply_changes(self, changes: Sequence[JobChange]) -> list[Any]:
        """A reply or a FabricError for each change of a holder; None if it has to be decided on the row itself."""
        known = {each.job_id: self._jobs[each.job_id] for each in changes if each.job_id in self._jobs}
        decidable = sorted((each for each in changes if each.job_id in known), key=lambda each: each.job_id)
        draft = _apply_all(decidable, known, 0.0)[0]
        if not draft.list_changed():
            return [None] * len(changes)
        now, written = await self._connections.write_single(_build_statement(draft, known))
        written_seqs = {row[1] for row in written}
        for job_id, (seq, _) in known.items():
            if seq not in written_seqs:
                self._jobs.pop(job_id, None)
        final, replies = _apply_all((each for each in decidable if known[each.job_id][0] in written_seqs), known, now)
        topics = set()
        for seq, job, _ in final.list_changed():
            topics.add(job_topic(job.job_id))
            if job.has_ended:
                self._jobs.pop(job.job_id, None)
            else:
                self._jobs[job.job_id] = (seq, job)
        self._connections.on_commit(topics)
        return [replies.get(id(each)) for each in changes]


def _apply_all(
    changes: Iterable[JobChange], jobs: Mapping[str, tuple[int, JobSummary]], now: float
) -> tuple[ChangeBatch, dict[int, Any]]:
    """The replies are by the identity of the change."""
    batch = ChangeBatch(jobs, ExistingJobs(), now)
    return batch, {id(each): batch.apply(each) for each in changes}


def _build_statement(batch: ChangeBatch, known: Mapping[str, tuple[int, JobSummary]]) -> SingleStatement:
    changed = batch.list_changed()
    rows = [
        (
            seq, known[job.job_id][1].version, job.fence, job.state, job.events, job.size, job.version,
            encode_optional(job.error), job.has_ended, job.retention if job.has_ended else None,
            batch.outcome_bodies.get(job.job_id, (None, None))[0],
        )
        for seq, job, _ in changed
    ]  # fmt: skip
    return SingleStatement(
        sql=_CHANGE_JOBS,
        values=[*to_columns(rows, len(_GIVEN_TYPES)), *to_event_columns(changed, 0.0)],
        recovery=_FIND_CHANGED,
        recovery_values=[[seq for seq, _, _ in changed]],
    )
