"""Rows of jobs by PostgreSQL's types. What stands in the rows is known to stores/job_rows.py."""

from __future__ import annotations

from a2a_fabric.stores.job_rows import CHANGING, COLUMNS, FIXED

_TYPES = {
    "job_id": "text", "owner": "text", "agent_id": "text", "capability": "text", "priority": "int4",
    "expires_at": "float8", "key": "text", "digest": "text", "created_at": "float8", "retention": "float8",
    "meta": "bytea", "state": "text", "run_at": "float8", "attempt": "int8", "fence": "int8", "worker": "text",
    "lease_until": "float8", "cancel_requested": "bool", "updated_at": "float8", "started_at": "float8",
    "ended_at": "float8", "events": "int8", "size": "int8", "version": "int8", "error": "bytea",
    "keep_until": "float8",
}  # fmt: skip
FIXED_TYPES = tuple(_TYPES[name] for name in FIXED)
CHANGING_TYPES = tuple(_TYPES[name] for name in CHANGING)

SELECT = f"SELECT {COLUMNS} FROM a2a_fabric.jobs AS jobs"  # noqa: S608
