"""Jobs, events and registrations as the rows that both SQL engines share, and the cursor of a job list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobError, JobEvent, JobSummary, Lease
from a2a_fabric.core.job_lifecycle import compute_retention_end
from a2a_fabric.core.registration import AgentChange, IdHolder, Registration, holder_from_registration
from a2a_fabric.core.result import Result

Row = Any  # of either engine: something like a tuple

FIXED_COLUMNS = ("job_id", "owner", "agent_id", "capability", "priority", "expires_at", "key", "digest", "created_at",
         "retention", "meta")  # fmt: skip
MUTABLE_COLUMNS = ("state", "run_at", "attempt", "fence", "worker", "lease_until", "cancel_requested", "updated_at",
            "started_at", "ended_at", "events", "size", "version", "error", "keep_until")  # fmt: skip
JOB_COLUMNS = ", ".join(f"jobs.{name}" for name in ("seq", *FIXED_COLUMNS, *MUTABLE_COLUMNS))
JOB_WIDTH = 1 + len(FIXED_COLUMNS) + len(MUTABLE_COLUMNS)

EncodedEvents = Sequence[tuple[str, bytes]]  # kind and data of events

encode = msgspec.json.Encoder().encode
decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_call = msgspec.json.Decoder(Call).decode
_decode_result = msgspec.json.Decoder(Result).decode
_decode_error = msgspec.json.Decoder(JobError).decode


def to_fixed_values(job: JobSummary) -> tuple[Any, ...]:
    """The values of FIXED."""
    return (
        job.job_id, job.owner, job.agent_id, job.capability, job.priority, job.expires_at, job.key, job.digest,
        job.created_at, job.retention, encode(job.meta) if job.meta else None,
    )  # fmt: skip


def to_mutable_values(job: JobSummary) -> tuple[Any, ...]:
    """The values of CHANGING."""
    lease = job.lease
    return (
        job.state, job.run_at, job.attempt, job.fence, lease.worker if lease else None, lease.until if lease else None,
        job.cancel_requested, job.updated_at, job.started_at, job.ended_at, job.events, job.size, job.version,
        encode(job.error) if job.error else None, compute_retention_end(job),
    )  # fmt: skip


def summary_from_row(row: Row) -> JobSummary:
    """From a row of COLUMNS."""
    return JobSummary(**_read_summary_fields(row))


def job_from_row(row: Row) -> Job:
    """From a row of COLUMNS, followed by call, result, question and answer."""
    return Job(**_read_summary_fields(row), **_read_body_fields(row[JOB_WIDTH : JOB_WIDTH + 4]))


def job_from_summary(summary: JobSummary, body: Row) -> Job:
    """The job with its call, result, question and answer."""
    return Job(**{name: getattr(summary, name) for name in JobSummary.__struct_fields__}, **_read_body_fields(body))


def event_from_row(row: Row) -> JobEvent:
    """From number, at, kind and data."""
    number, at, kind, data = row
    return JobEvent(number, at, Event(kind, decode_object(data)))


def encode_events(events: Sequence[Event]) -> EncodedEvents:
    return [(event.kind, encode(event.data)) for event in events]


def measure_encoded(encoded_events: EncodedEvents) -> int:
    return sum(len(data) for _, data in encoded_events)


def _read_summary_fields(row: Row) -> dict[str, Any]:
    (
        _, job_id, owner, agent_id, capability, priority, expires_at, key, digest, created_at, retention, meta,
        state, run_at, attempt, fence, worker, lease_until, cancel_requested, updated_at, started_at, ended_at,
        events, size, version, error, _,
    ) = row[:JOB_WIDTH]  # fmt: skip
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


def _read_body_fields(row: Row) -> dict[str, Any]:
    call, result, question, answer = row
    return {
        "call": _decode_call(call),
        "result": None if result is None else _decode_result(result),
        "question": None if question is None else decode_object(question),
        "answer": None if answer is None else decode_object(answer),
    }


AGENT_COLUMNS = "agent_id, revision, removed, owner, registered_at, updated_at, seen_at, lease_until, manifest"

_decode_manifest = msgspec.json.Decoder(Manifest).decode


def registration_from_row(row: Sequence[Any]) -> Registration:
    """From a row of COLUMNS."""
    _, revision, _, owner, registered_at, updated_at, seen_at, lease_until, manifest = row
    return Registration(
        manifest=_decode_manifest(manifest),
        owner=owner,
        revision=revision,
        registered_at=registered_at,
        updated_at=updated_at,
        seen_at=seen_at,
        lease_until=lease_until,
    )


def holder_from_row(row: Sequence[Any], now: float) -> IdHolder:
    """From a row of COLUMNS, which may be that of an agent that is gone; it went when it was last updated."""
    removed, owner, registered_at, updated_at = row[2:6]
    if removed:
        return IdHolder(owner=owner, registered_at=registered_at, lapsed_at=updated_at)
    return holder_from_registration(registration_from_row(row), now)


def change_from_row(row: Sequence[Any]) -> AgentChange:
    """From a row of COLUMNS, which may be that of an agent that is gone."""
    agent_id, revision, removed = row[:3]
    registration = None if removed else registration_from_row(row)
    return AgentChange(revision=revision, agent_id=agent_id, registration=registration)


def row_from_capability(agent_id: str, capability: Capability) -> tuple[Any, ...]:
    return (
        agent_id, normalize_name(capability.name), capability.name, capability.description, capability.streaming,
        ",".join(capability.modalities), _encode_json(capability.input_schema), _encode_json(capability.output_schema),
        capability.max_timeout_ms,
    )  # fmt: skip


def _encode_json(value: Any) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


MAX_SEQ = 2**62


def read_cursor(cursor: str | None) -> int:
    """The page begins with jobs older than this. Raises BadInput for what was never handed out."""
    if cursor is None:
        return MAX_SEQ
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadInput("The cursor is not one that a list of jobs gave back", field="cursor")
    return int(cursor)
