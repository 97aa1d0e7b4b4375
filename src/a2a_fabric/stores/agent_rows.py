"""Registrations as the rows that the SQL engines share, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, fold
from a2a_fabric.core.registration import AgentChange, Holder, Registration, holder_of

COLUMNS = "agent_id, revision, removed, owner, registered_at, updated_at, seen_at, lease_until, manifest"

_decode_manifest = msgspec.json.Decoder(Manifest).decode


def registration_from(row: Sequence[Any]) -> Registration:
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


def holder_from(row: Sequence[Any], now: float) -> Holder:
    """From a row of COLUMNS, which may be that of an agent that is gone; it went when it was last updated."""
    removed, owner, registered_at, updated_at = row[2:6]
    if removed:
        return Holder(owner=owner, registered_at=registered_at, lapsed_at=updated_at)
    return holder_of(registration_from(row), now)


def change_from(row: Sequence[Any]) -> AgentChange:
    """From a row of COLUMNS, which may be that of an agent that is gone."""
    agent_id, revision, removed = row[:3]
    registration = None if removed else registration_from(row)
    return AgentChange(revision=revision, agent_id=agent_id, registration=registration)


def capability_row(agent_id: str, capability: Capability) -> tuple[Any, ...]:
    return (
        agent_id, fold(capability.name), capability.name, capability.description, capability.streaming,
        ",".join(capability.modalities), _json(capability.input_schema), _json(capability.output_schema),
        capability.max_timeout_ms,
    )  # fmt: skip


def _json(value: Any) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)
