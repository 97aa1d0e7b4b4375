"""What both SQL engines do alike: values to rows and back, filters, cursors, page sizes. The SQL itself is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput, Conflict, JobNotFound
from a2a_fabric.core.job import (
    EventPage,
    Job,
    JobError,
    JobEvent,
    JobOutcome,
    JobPage,
    JobSummary,
    Lease,
    compute_retention_end,
)
from a2a_fabric.core.keys import StoredKey
from a2a_fabric.core.logins import LoginRecord
from a2a_fabric.core.message import InboxEntry, Message, NewMessage
from a2a_fabric.core.receipts import StoredReceipt
from a2a_fabric.core.registration import (
    AgentChange,
    HealthCheck,
    IdHolder,
    Registration,
    RegistrationFilter,
    StoredDescription,
    holder_from_registration,
)
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.spans import StoredCall

Row = Any  # a row of either engine: something like a tuple

encode = msgspec.json.Encoder().encode
decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def encode_optional(value: Any) -> bytes | None:
    return None if value is None else encode(value)


def build_unstorable(address: str, reason: str) -> BadInput:
    return BadInput(f"This request holds text or numbers that {address} cannot store: {reason}")


# Jobs

# The columns that never change after a job was accepted, and those that do.
FIXED_COLUMNS = ("job_id", "owner", "agent_id", "capability", "priority", "expires_at", "key", "digest", "created_at",
         "retention", "meta")  # fmt: skip
MUTABLE_COLUMNS = ("state", "run_at", "attempt", "fence", "worker", "lease_until", "cancel_requested", "updated_at",
            "started_at", "ended_at", "events", "size", "version", "error", "keep_until")  # fmt: skip
JOB_COLUMNS = ", ".join(f"jobs.{name}" for name in ("seq", *FIXED_COLUMNS, *MUTABLE_COLUMNS))
JOB_WIDTH = 1 + len(FIXED_COLUMNS) + len(MUTABLE_COLUMNS)
MAX_SEQ = 2**62

EncodedEvents = Sequence[tuple[str, bytes]]  # kind and data of events

_decode_call = msgspec.json.Decoder(Call).decode
_decode_result = msgspec.json.Decoder(Result).decode
_decode_error = msgspec.json.Decoder(JobError).decode


class EncodedJob:
    """What is written beside a job's row, encoded before its turn to be written comes."""

    __slots__ = ("call", "events", "size")

    def __init__(self, call: Call, events: Sequence[Event] = ()) -> None:
        self.call = encode(call)
        self.events = encode_events(events)
        self.size = len(self.call) + measure_encoded(self.events)


class EncodedOutcome:
    """How a job is left by its worker, encoded before its turn to be written comes."""

    __slots__ = ("events", "outcome", "question", "result", "size")

    def __init__(self, outcome: JobOutcome) -> None:
        self.outcome = outcome
        self.events = encode_events(outcome.events)
        self.result = encode_optional(outcome.result)
        self.question = encode_optional(outcome.question)
        self.size = measure_encoded(self.events) + len(self.result or b"") + len(self.question or b"")


def to_fixed_values(job: JobSummary) -> tuple[Any, ...]:
    """The values of FIXED_COLUMNS."""
    return (
        job.job_id, job.owner, job.agent_id, job.capability, job.priority, job.expires_at, job.key, job.digest,
        job.created_at, job.retention, encode(job.meta) if job.meta else None,
    )  # fmt: skip


def to_mutable_values(job: JobSummary) -> tuple[Any, ...]:
    """The values of MUTABLE_COLUMNS."""
    lease = job.lease
    return (
        job.state, job.run_at, job.attempt, job.fence, lease.worker if lease else None, lease.until if lease else None,
        job.cancel_requested, job.updated_at, job.started_at, job.ended_at, job.events, job.size, job.version,
        encode(job.error) if job.error else None, compute_retention_end(job),
    )  # fmt: skip


def summary_from_row(row: Row) -> JobSummary:
    """From a row of JOB_COLUMNS."""
    return JobSummary(**_read_summary_fields(row))


def job_from_row(row: Row) -> Job:
    """From a row of JOB_COLUMNS, followed by call, result, question and answer."""
    return Job(**_read_summary_fields(row), **_read_body_fields(row[JOB_WIDTH : JOB_WIDTH + 4]))


def job_from_optional_row(row: Row | None) -> Job | None:
    return None if row is None else job_from_row(row)


def job_from_summary(summary: JobSummary, body: Row) -> Job:
    """The job with its call, result, question and answer."""
    return Job(**{name: getattr(summary, name) for name in JobSummary.__struct_fields__}, **_read_body_fields(body))


def job_page_from_rows(rows: Sequence[Row], limit: int) -> JobPage:
    """From rows of JOB_COLUMNS, one more than `limit` if there are more jobs than that."""
    jobs = tuple(summary_from_row(row) for row in rows[:limit])
    return JobPage(jobs, str(rows[limit - 1][0]) if len(rows) > limit else None)


def read_cursor(cursor: str | None) -> int:
    """The page begins with jobs older than this. Raises BadInput for a cursor that no page gave."""
    if cursor is None:
        return MAX_SEQ
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadInput("Invalid cursor: no list of jobs returned it. Start again without one", field="cursor")
    return int(cursor)


def event_from_row(row: Row) -> JobEvent:
    """From number, at, kind and data."""
    number, at, kind, data = row
    return JobEvent(number, at, Event(kind, decode_object(data)))


def event_page(rows: Iterable[Row], job_id: str, after: int, max_bytes: int) -> EventPage:
    """From rows of the job's state, its last number, and an event (None if there is none after this number).

    As many events as fit into `max_bytes`, and at least one. Raises JobNotFound if there is no row.
    """
    events: list[JobEvent] = []
    row = None
    for row in rows:
        if row[2] is None:
            break
        max_bytes -= len(row[5])
        if events and max_bytes < 0:
            break
        events.append(event_from_row(row[2:]))
    if row is None:
        raise JobNotFound(job_id)
    return EventPage(events=tuple(events), state=row[0], last=row[1], upto=events[-1].number if events else after)


def encode_events(events: Sequence[Event]) -> EncodedEvents:
    return [(event.kind, encode(event.data)) for event in events]


def measure_encoded(encoded_events: EncodedEvents) -> int:
    return sum(len(data) for _, data in encoded_events)


def take_fitting(rows: Iterable[Row], max_bytes: int) -> Iterator[Row]:
    """As many rows as fit into `max_bytes` of their last column, and at least one."""
    budget = max_bytes
    for position, row in enumerate(rows):
        budget -= len(row[-1])
        if budget < 0 and position:
            return
        yield row


def select_excess(rows: Iterable[Row], excess: int) -> tuple[list[tuple[int, int]], bool]:
    """Jobs (seq, size), oldest first, until `excess` bytes are gone; and whether these jobs are enough."""
    selected = []
    for seq, size in rows:
        if excess <= 0:
            break
        excess -= size
        selected.append((seq, size))
    return selected, excess <= 0


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


# Registrations and health checks

AGENT_COLUMNS = "agent_id, revision, removed, owner, registered_at, updated_at, seen_at, lease_until, manifest"
PUT_COLUMNS = (
    "agent_id", "revision", "owner", "registered_at", "updated_at", "seen_at", "lease_until", "node_id", "runtime",
    "transport", "endpoint_uri", "display_name", "description", "version", "trust_tier", "audience", "realm", "cog_id",
    "delegate_id", "manifest",
)  # fmt: skip
HEALTH_COLUMNS = "agent_id, checked_at, node_id, status, latency, error"

_decode_manifest = msgspec.json.Decoder(Manifest).decode


def registration_from_row(row: Row) -> Registration:
    """From a row of AGENT_COLUMNS."""
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


def holder_from_row(row: Row, now: float) -> IdHolder:
    """From a row of AGENT_COLUMNS. The update time of a removed agent is the time of its removal."""
    removed, owner, registered_at, updated_at = row[2:6]
    if removed:
        return IdHolder(owner=owner, registered_at=registered_at, lapsed_at=updated_at)
    return holder_from_registration(registration_from_row(row), now)


def change_from_row(row: Row) -> AgentChange:
    """From a row of AGENT_COLUMNS, which may be that of a removed agent."""
    agent_id, revision, removed = row[:3]
    registration = None if removed else registration_from_row(row)
    return AgentChange(revision=revision, agent_id=agent_id, registration=registration)


def to_agent_values(row: Registration) -> tuple[Any, ...]:
    """The values of PUT_COLUMNS."""
    manifest = row.manifest
    transport, uri = (
        value if isinstance(value, str) else None for value in map(manifest.endpoint.get, ("transport", "uri"))
    )
    return (
        row.agent_id, row.revision, row.owner, row.registered_at, row.updated_at, row.seen_at, row.lease_until,
        manifest.node_id, manifest.runtime, transport, uri,
        manifest.display_name, manifest.description, manifest.version, manifest.trust_tier, manifest.audience,
        manifest.realm, manifest.cog_id, manifest.delegate_id, encode(manifest),
    )  # fmt: skip


def to_capability_rows(agent_id: str, capabilities: Iterable[Capability]) -> list[tuple[Any, ...]]:
    """One row for each normalized name; of two capabilities with the same one, the later counts."""
    rows = {}
    for each in capabilities:
        name = normalize_name(each.name)
        rows[name] = (
            agent_id, name, each.name, each.description, each.streaming, ",".join(each.modalities),
            encode_optional(each.input_schema), encode_optional(each.output_schema), each.max_timeout_ms,
        )  # fmt: skip
    return list(rows.values())


def build_conditions(
    query: RegistrationFilter, schema: str, build_parameter: Callable[[int], str]
) -> tuple[list[str], list[Any]]:
    """SQL conditions for a filter and their values. `schema` stands before table names, as in `a2a_fabric.`."""
    columns = ("owner", "runtime", "node_id", "trust_tier", "realm", "cog_id", "delegate_id")
    candidates = [(f"{name} = ", "", getattr(query, name)) for name in columns]
    candidates.append((f"agent_id IN (SELECT agent_id FROM {schema}agent_tags WHERE tag = ", ")", query.tag))  # noqa: S608
    capability = None if query.capability is None else normalize_name(query.capability)
    candidates.append(
        (f"agent_id IN (SELECT agent_id FROM {schema}agent_capabilities WHERE folded = ", ")", capability)  # noqa: S608
    )
    active = [each for each in candidates if each[2] is not None]
    conditions = [f"{start}{build_parameter(index)}{end}" for index, (start, end, _) in enumerate(active)]
    return conditions, [value for _, _, value in active]


def to_health_values(check: HealthCheck) -> tuple[Any, ...]:
    """The values of HEALTH_COLUMNS."""
    return (check.agent_id, check.checked_at, check.node_id, check.status, check.latency, check.error)


def health_check_from_row(row: Row) -> HealthCheck:
    """From a row of HEALTH_COLUMNS."""
    agent_id, checked_at, node_id, status, latency, error = row
    return HealthCheck(
        agent_id=agent_id, checked_at=checked_at, node_id=node_id, status=status, latency=latency, error=error
    )


DESCRIPTION_COLUMNS = "agent_id, connection, body, seen_at"
DESCRIPTIONS_BYTES = 16 << 20  # that are read at a time


def description_from_row(row: Row) -> StoredDescription:
    """From a row of DESCRIPTION_COLUMNS."""
    agent_id, connection, body, seen_at = row
    return StoredDescription(agent_id=agent_id, connection=connection, body=bytes(body), seen_at=seen_at)


def to_description_values(description: StoredDescription) -> tuple[Any, ...]:
    """The values of DESCRIPTION_COLUMNS."""
    return description.agent_id, description.connection, description.body, description.seen_at


# Messages

decode_message = msgspec.json.Decoder(Message).decode


def message_from_optional_row(row: Row | None) -> Message | None:
    return None if row is None else decode_message(row[0])


def to_message_values(message: Message) -> tuple[Any, ...]:
    """The values of message_id, conversation_id, number, owner, key, sent_at and message."""
    return (
        message.message_id, message.conversation_id, message.number, message.owner, message.key, message.sent_at,
        encode(message),
    )  # fmt: skip


def to_entry_values(entry: InboxEntry, seq: int, message: Message) -> tuple[Any, ...]:
    """The values of inbox, message, priority, expires_at, attempt and visible_at."""
    return (entry.inbox, seq, message.priority, message.expires_at, entry.attempt, entry.visible_at)


def number_message(new: NewMessage, number: int, now: float, topic: str | None) -> Message:
    return Message(
        message_id=new.message_id,
        conversation_id=new.conversation_id,
        owner=new.owner,
        sender=new.sender,
        recipients=new.recipients,
        parts=new.parts,
        metadata=new.metadata,
        key=new.key,
        reply_to=new.reply_to,
        priority=new.priority,
        expires_at=new.expires_at,
        is_brought=new.is_brought,
        number=number,
        sent_at=now,
        topic=topic,
    )


def build_duplicate_message(new: NewMessage) -> Conflict:
    return Conflict(f"There is a message '{new.message_id[:64]}' already; choose another id")


KEY_COLUMNS = "key_id, name, digest, scopes, trust, view, created_at, expires_at, revoked_at, last_used_at, replaced"


def to_key_values(key: StoredKey) -> tuple[Any, ...]:
    """In the order of `KEY_COLUMNS`."""
    return (
        key.key_id,
        key.name,
        key.digest,
        " ".join(key.scopes),
        key.trust,
        key.view,
        key.created_at,
        key.expires_at,
        key.revoked_at,
        key.last_used_at,
        key.replaced,
    )


def key_from_row(row: Row) -> StoredKey:
    key_id, name, digest, scopes, trust, view, created_at, expires_at, revoked_at, last_used_at, replaced = row
    return StoredKey(
        key_id=key_id,
        name=name,
        digest=bytes(digest),
        scopes=tuple(scopes.split()),
        trust=trust,
        view=view,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
        replaced=bool(replaced),
    )


RECEIPT_COLUMNS = "chain, seq, at, digest, body"


def to_receipt_values(receipt: StoredReceipt) -> tuple[str, int, float, str, bytes]:
    return receipt.chain, receipt.seq, receipt.at, receipt.digest, receipt.body


def receipt_from_row(row: Row) -> StoredReceipt:
    chain, seq, at, digest, body = row
    return StoredReceipt(chain=chain, seq=seq, at=at, digest=digest, body=bytes(body))


CALL_COLUMNS = (
    "trace_id, span_id, started_at, owner, principal, door, agent_id, used, capability, is_failed, is_call, size, body"
)
STORED_CALL_COLUMNS = (
    "seq, trace_id, span_id, started_at, owner, principal, door, agent_id, used, capability, is_failed, is_call, body"
)


def to_call_values(call: StoredCall) -> tuple[Any, ...]:
    return (
        call.trace_id,
        call.span_id,
        call.started_at,
        call.owner,
        call.principal,
        call.door,
        call.agent_id,
        call.used,
        call.capability,
        call.is_failed,
        call.is_call,
        len(call.body),
        call.body,
    )


def call_from_row(row: Row) -> StoredCall:
    seq, trace_id, span_id, started_at, owner, principal, door, agent_id, used, capability, is_failed, is_call, body = (
        row
    )
    return StoredCall(
        seq=seq,
        trace_id=trace_id,
        span_id=span_id,
        started_at=started_at,
        owner=owner,
        principal=principal,
        door=door,
        agent_id=agent_id,
        used=used,
        capability=capability,
        is_failed=bool(is_failed),
        is_call=bool(is_call),
        body=bytes(body),
    )


LOGIN_COLUMNS = "owner, agent_id, issuer, scopes, secret, created_at, updated_at, revision, listing"


def to_login_values(record: LoginRecord) -> tuple[str, str, str, str, bytes]:
    """The columns that a caller decides; the store sets the others."""
    return record.owner, record.agent_id, record.issuer, " ".join(record.scopes), record.secret


def login_from_row(row: Row) -> LoginRecord:
    owner, agent_id, issuer, scopes, secret, created_at, updated_at, revision, listing = row
    return LoginRecord(
        owner=owner,
        agent_id=agent_id,
        issuer=issuer,
        scopes=tuple(scopes.split()),
        secret=secret,
        created_at=created_at,
        updated_at=updated_at,
        revision=revision,
        listing=listing,
    )
