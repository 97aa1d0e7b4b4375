"""Jobs and their events as the rows that the SQL engines share, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobError, JobEvent, JobSummary, Lease
from a2a_fabric.core.lifecycle import keep_until
from a2a_fabric.core.result import Result

Row = Any  # of either engine: something like a tuple

FIXED = ("job_id", "owner", "agent_id", "capability", "priority", "expires_at", "key", "digest", "created_at",
         "retention", "meta")  # fmt: skip
CHANGING = ("state", "run_at", "attempt", "fence", "worker", "lease_until", "cancel_requested", "updated_at",
            "started_at", "ended_at", "events", "size", "version", "error", "keep_until")  # fmt: skip
COLUMNS = ", ".join(f"jobs.{name}" for name in ("seq", *FIXED, *CHANGING))
WIDTH = 1 + len(FIXED) + len(CHANGING)

Lines = Sequence[tuple[str, bytes]]  # kind and data of events

encode = msgspec.json.Encoder().encode
decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_call = msgspec.json.Decoder(Call).decode
_decode_result = msgspec.json.Decoder(Result).decode
_decode_error = msgspec.json.Decoder(JobError).decode


def fixed(job: JobSummary) -> tuple[Any, ...]:
    """The values of FIXED."""
    return (
        job.job_id, job.owner, job.agent_id, job.capability, job.priority, job.expires_at, job.key, job.digest,
        job.created_at, job.retention, encode(job.meta) if job.meta else None,
    )  # fmt: skip


def changing(job: JobSummary) -> tuple[Any, ...]:
    """The values of CHANGING."""
    lease = job.lease
    return (
        job.state, job.run_at, job.attempt, job.fence, lease.worker if lease else None, lease.until if lease else None,
        job.cancel_requested, job.updated_at, job.started_at, job.ended_at, job.events, job.size, job.version,
        encode(job.error) if job.error else None, keep_until(job),
    )  # fmt: skip


def summary_from(row: Row) -> JobSummary:
    """From a row of COLUMNS."""
    return JobSummary(**_fields(row))


def job_from(row: Row) -> Job:
    """From a row of COLUMNS, followed by call, result, question and answer."""
    return Job(**_fields(row), **_body(row[WIDTH : WIDTH + 4]))


def whole(summary: JobSummary, body: Row) -> Job:
    """The job with its call, result, question and answer."""
    return Job(**{name: getattr(summary, name) for name in JobSummary.__struct_fields__}, **_body(body))


def event_from(row: Row) -> JobEvent:
    """From number, at, kind and data."""
    number, at, kind, data = row
    return JobEvent(number, at, Event(kind, decode_object(data)))


def lines_of(events: Sequence[Event]) -> Lines:
    return [(event.kind, encode(event.data)) for event in events]


def size_of(lines: Lines) -> int:
    return sum(len(data) for _, data in lines)


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


def _body(row: Row) -> dict[str, Any]:
    call, result, question, answer = row
    return {
        "call": _decode_call(call),
        "result": None if result is None else _decode_result(result),
        "question": None if question is None else decode_object(question),
        "answer": None if answer is None else decode_object(answer),
    }
