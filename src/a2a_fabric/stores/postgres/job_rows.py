"""Jobs as rows, and back; many at a time as one array per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobError, JobEvent, JobSummary, Lease
from a2a_fabric.core.lifecycle import keep_until
from a2a_fabric.core.result import Result
from a2a_fabric.stores.postgres.transaction import Row

encode = msgspec.json.Encoder().encode
_decode_call = msgspec.json.Decoder(Call).decode
_decode_result = msgspec.json.Decoder(Result).decode
_decode_error = msgspec.json.Decoder(JobError).decode
decode_object = msgspec.json.Decoder(dict[str, Any]).decode

FIXED = {
    "job_id": "text", "owner": "text", "agent_id": "text", "capability": "text", "priority": "int4",
    "expires_at": "float8", "key": "text", "digest": "text", "created_at": "float8", "retention": "float8",
    "meta": "bytea",
}  # fmt: skip
CHANGING = {
    "state": "text", "run_at": "float8", "attempt": "int8", "fence": "int8", "worker": "text",
    "lease_until": "float8", "cancel_requested": "bool", "updated_at": "float8", "started_at": "float8",
    "ended_at": "float8", "events": "int8", "size": "int8", "version": "int8", "error": "bytea",
    "keep_until": "float8",
}  # fmt: skip

COLUMNS = ", ".join(f"jobs.{name}" for name in ("seq", *FIXED, *CHANGING))
WIDTH = 1 + len(FIXED) + len(CHANGING)
SELECT = f"SELECT {COLUMNS} FROM a2a_fabric.jobs AS jobs"  # noqa: S608

Lines = Sequence[tuple[str, bytes]]  # kind and data of events


def arrays(types: Sequence[str], first: int = 1) -> str:
    """Parameters for `unnest`: one array per column."""
    return ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(types, first))


def columns_of(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as one list per column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def fixed(job: JobSummary) -> tuple[Any, ...]:
    return (
        job.job_id, job.owner, job.agent_id, job.capability, job.priority, job.expires_at, job.key, job.digest,
        job.created_at, job.retention, encode(job.meta) if job.meta else None,
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
        "cancel_requested": cancel_requested, "created_at": created_at, "updated_at": updated_at,
        "started_at": started_at, "ended_at": ended_at, "retention": retention, "events": events, "size": size,
        "version": version, "error": None if error is None else _decode_error(error),
        "meta": {} if meta is None else decode_object(meta),
    }  # fmt: skip


def summary_from(row: Row) -> JobSummary:
    return JobSummary(**_fields(row))


def whole(summary: JobSummary, body: Row) -> Job:
    """The job with its call, result, question and answer."""
    call, result, question, answer = body
    return Job(
        **{name: getattr(summary, name) for name in JobSummary.__struct_fields__},
        call=_decode_call(call),
        result=None if result is None else _decode_result(result),
        question=None if question is None else decode_object(question),
        answer=None if answer is None else decode_object(answer),
    )


def job_from(row: Row) -> Job:
    """From a row of the summary's columns, followed by call, result, question and answer."""
    return whole(summary_from(row), row[WIDTH : WIDTH + 4])


def event_from(row: Row) -> JobEvent:
    number, at, kind, data = row
    return JobEvent(number, at, Event(kind, decode_object(data)))


def lines_of(events: Sequence[Event]) -> Lines:
    return [(event.kind, encode(event.data)) for event in events]


def size_of(lines: Lines) -> int:
    return sum(len(data) for _, data in lines)
