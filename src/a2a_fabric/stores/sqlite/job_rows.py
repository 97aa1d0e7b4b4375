"""Jobs as rows, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobError, JobEvent, JobSummary, Lease
from a2a_fabric.core.lifecycle import keep_until
from a2a_fabric.core.result import Result
from a2a_fabric.stores.sqlite.reader import Row

encode = msgspec.json.Encoder().encode
_decode_call = msgspec.json.Decoder(Call).decode
_decode_result = msgspec.json.Decoder(Result).decode
_decode_error = msgspec.json.Decoder(JobError).decode
decode_object = msgspec.json.Decoder(dict[str, Any]).decode

_FIXED = ("job_id", "owner", "agent_id", "capability", "priority", "expires_at", "key", "digest", "created_at",
          "retention", "meta")  # fmt: skip
_CHANGING = ("state", "run_at", "attempt", "fence", "worker", "lease_until", "cancel_requested", "updated_at",
             "started_at", "ended_at", "events", "size", "version", "error", "keep_until")  # fmt: skip

COLUMNS = ", ".join(f"jobs.{name}" for name in ("seq", *_FIXED, *_CHANGING))
WIDTH = 1 + len(_FIXED) + len(_CHANGING)

INSERT = (
    f"INSERT INTO jobs ({', '.join((*_FIXED, *_CHANGING))}) "  # noqa: S608
    f"VALUES ({', '.join('?' * (WIDTH - 1))}) ON CONFLICT DO NOTHING"
)
UPDATE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE seq = ?"  # noqa: S608

SELECT = f"SELECT {COLUMNS} FROM jobs"  # noqa: S608
SELECT_WHOLE = (
    f"SELECT {COLUMNS}, job_calls.call, job_bodies.result, job_bodies.question, job_bodies.answer "  # noqa: S608
    "FROM jobs JOIN job_calls ON job_calls.job = jobs.seq LEFT JOIN job_bodies ON job_bodies.job = jobs.seq"
)


def inserted(job: JobSummary) -> tuple[Any, ...]:
    return (
        job.job_id, job.owner, job.agent_id, job.capability, job.priority, job.expires_at, job.key, job.digest,
        job.created_at, job.retention, encode(job.meta) if job.meta else None, *changing(job),
    )  # fmt: skip


def changing(job: JobSummary) -> tuple[Any, ...]:
    lease = job.lease
    return (
        job.state, job.run_at, job.attempt, job.fence, lease.worker if lease else None, lease.until if lease else None,
        job.cancel_requested, job.updated_at, job.started_at, job.ended_at, job.events, job.size, job.version,
        encode(job.error) if job.error else None, keep_until(job),
    )  # fmt: skip


def _fields(row: Row) -> dict[str, Any]:
    (
        _, job_id, owner, agent_id, capability, priority, expires_at, key, digest, created_at, retention, meta,
        state, run_at, attempt, fence, worker, lease_until, cancel_requested, updated_at, started_at, ended_at,
        events, size, version, error, _,
    ) = row[:WIDTH]  # fmt: skip
    return {
        "job_id": job_id, "owner": owner, "agent_id": agent_id, "capability": capability, "state": state,
        "priority": priority, "run_at": run_at, "expires_at": expires_at, "key": key, "digest": digest,
        "attempt": attempt, "fence": fence,
        "lease": None if worker is None else Lease(worker=worker, until=lease_until),
        "cancel_requested": bool(cancel_requested), "created_at": created_at, "updated_at": updated_at,
        "started_at": started_at, "ended_at": ended_at, "retention": retention, "events": events, "size": size,
        "version": version, "error": None if error is None else _decode_error(error),
        "meta": {} if meta is None else decode_object(meta),
    }  # fmt: skip


def summary_from(row: Row) -> JobSummary:
    return JobSummary(**_fields(row))


def job_from(row: Row) -> Job:
    """From a row of SELECT_WHOLE."""
    call, result, question, answer = row[WIDTH:]
    return Job(
        **_fields(row),
        call=_decode_call(call),
        result=None if result is None else _decode_result(result),
        question=None if question is None else decode_object(question),
        answer=None if answer is None else decode_object(answer),
    )


def event_from(row: Row) -> JobEvent:
    number, at, kind, data = row
    return JobEvent(number, at, Event(kind, decode_object(data)))
