"""A node's list of agents, read leniently: one entry that cannot be read hides no other."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from a2a_fabric.core.agent import AgentId, Audience, Capability, Manifest, Status
from a2a_fabric.core.delegation import UNNAMED
from a2a_fabric.core.listing import Listed, is_imported

_log = logging.getLogger(__name__)
_MOST = 10_000
_CAPABILITY = frozenset(Capability.__struct_fields__)


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of an agent; what else there is stays there."""

    agent_id: str
    display_name: str = ""
    version: str = ""
    status: Status = "unknown"
    error: str | None = None
    description: str = ""
    node_id: str = UNNAMED
    runtime: str | None = None
    tags: tuple[str, ...] = ()
    audience: Audience | None = None
    delegate_id: str | None = None
    cog_id: str | None = None
    realm: str | None = None
    capabilities: tuple[dict[str, Any], ...] = ()

    @property
    def is_node(self) -> bool:
        """An entry that stands for a further node offers nothing itself."""
        return self.runtime == "fabric" and not self.capabilities


def listed(entries: Any, node_id: str) -> tuple[Listed, ...]:
    """The agents that live there, and no other node: lists that hold what others list would never end."""
    found = (_listed(entry, node_id) for entry in (entries if isinstance(entries, list) else [])[:_MOST])
    return tuple(each for each in found if each is not None)


def _listed(entry: Any, node_id: str) -> Listed | None:
    try:
        told = msgspec.convert(entry, _Entry)
        if is_imported(told.agent_id) or told.is_node:
            return None
        manifest = _manifest(told, node_id)
        msgspec.convert(told.agent_id, AgentId)
    except msgspec.ValidationError as exc:
        _log.info("an agent of node %s is left out: %s", node_id, exc)
        return None
    return Listed(manifest=manifest, status=told.status, error=told.error)


def published(entry: Any) -> Listed | None:
    """One agent that was asked for by name, wherever it lives; None if the entry cannot be read."""
    try:
        told = msgspec.convert(entry, _Entry)
        return Listed(manifest=_manifest(told, UNNAMED), status=told.status, error=told.error)
    except msgspec.ValidationError:
        return None


def _manifest(told: _Entry, node_id: str) -> Manifest:
    return Manifest(
        agent_id=told.agent_id,
        endpoint={},
        capabilities=tuple(_capability(each) for each in told.capabilities),
        display_name=told.display_name if told.display_name != told.agent_id else "",
        description=told.description,
        version=told.version,
        node_id=told.node_id if told.node_id != UNNAMED else node_id,
        audience=told.audience,
        tags=told.tags,
        delegate_id=told.delegate_id,
        cog_id=told.cog_id,
        realm=told.realm,
    )


def _capability(told: dict[str, Any]) -> Capability:
    """Words of a later version are left out, and an empty schema is none."""
    known = {name: value for name, value in told.items() if name in _CAPABILITY}
    for name in ("input_schema", "output_schema"):
        known[name] = known.get(name) or None
    return msgspec.convert(known, Capability)
