"""A search as it is asked over HTTP, and its results as whoever asked expects them.

Two forms: ours, whose fields are the arguments of `fabric.agent.search`, and that of
registries for agentic resources, where `query` is an object and results are catalog entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.datastructures import QueryParams

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.nesting import is_too_deep
from a2a_fabric.doors.discovery.entries import Address, entries_of
from a2a_fabric.doors.http import TOO_DEEP

_ALIASES = {"q": "query", "text": "query", "tags": "tag", "capabilities": "capability"}
_LISTS = frozenset({"tag", "capability"})
_FILTERS = frozenset({"type", "tags", "capabilities", "publisher", "trust_tier", "metadata.trust_tier"})


class RegistryQuery(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    filter: dict[str, str | list[str]] = {}


class RegistrySearch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Other registries are not asked, whatever `federation` says."""

    query: RegistryQuery
    page_size: Annotated[int, Meta(ge=1, le=100)] = 10
    page_token: str | None = None

    def kinds(self, address: Address) -> list[str]:
        """The media types that are wanted and that our agents have."""
        wanted = _several(self.query.filter.get("type"))
        return [kind for kind in address.kinds if not wanted or kind in wanted]

    def arguments(self, address: Address) -> dict[str, Any] | None:
        """Of `fabric.agent.search`; None if nothing can fit. Raises BadInput."""
        given = self.query.filter
        if unknown := sorted(given.keys() - _FILTERS):
            known = ", ".join(sorted(_FILTERS))
            raise BadInput(f"Nothing can be filtered by {unknown[0][:100]!r}, only by: {known}", field="query.filter")
        publishers = _several(given.get("publisher"))
        kinds = self.kinds(address)
        tiers = _several(given.get("trust_tier")) or _several(given.get("metadata.trust_tier"))
        if not kinds or (publishers and address.publisher not in publishers):
            return None
        if len(tiers) > 1:
            raise BadInput("Only one trust_tier can be filtered by", field="query.filter.trust_tier")
        return {
            "query": self.query.text,
            "capability": _several(given.get("capabilities")) or None,
            "tag": _several(given.get("tags")) or None,
            "trust_tier": tiers[0] if tiers else None,
            "limit": max(1, self.page_size // len(kinds)),
            "cursor": self.page_token,
        }

    def told(self, found: dict[str, Any], address: Address, get: Callable[[str], Manifest | None]) -> dict[str, Any]:
        """Each agent once for each way in which it can be reached."""
        narrowed = msgspec.structs.replace(address, kinds=tuple(self.kinds(address)))
        results = [
            {**entry, "metadata": {**entry["metadata"], "why": "; ".join(hit["why"])}, "score": hit["score"]}
            | {"source": f"{address.base}/"}
            for hit in found["results"]
            if (manifest := get(hit["agent_id"])) is not None
            for entry in entries_of(narrowed, manifest)
        ]
        told: dict[str, Any] = {"results": results}
        return {**told, "pageToken": found["cursor"]} if found["cursor"] else told


NOTHING: dict[str, Any] = {"results": [], "count": 0, "total": 0, "cursor": None}


def from_body(body: bytes) -> dict[str, Any] | RegistrySearch:
    """Raises BadInput."""
    if is_too_deep(body):
        raise BadInput(f"The body is no search: {TOO_DEEP}")
    try:
        given = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
        if isinstance(given.get("query"), dict):
            return msgspec.convert(given, RegistrySearch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:  # what cannot be converted is one too
        raise BadInput(f"The body is no search: {exc}"[:300]) from exc
    return _arguments(given.items())


def from_query(params: QueryParams) -> dict[str, Any]:
    """`?q=translate&tag=text&tag=legal&limit=5`"""
    lists = {name: params.getlist(name) for name in params.keys()}  # noqa: SIM118  # not a dict
    named = {_ALIASES.get(name, name) for name in lists}
    plain = {name: values if _ALIASES.get(name, name) in _LISTS else values[-1] for name, values in lists.items()}
    limit = str(plain.get("limit", ""))
    if "limit" in named and limit.isascii() and limit.isdigit() and len(limit) < 10:
        plain["limit"] = int(limit)  # type: ignore[assignment]  # the only number
    return _arguments(plain.items())


def _arguments(given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in given if value is not None}


def _several(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


def linked(found: dict[str, Any], address: Address, get: Callable[[str], Manifest | None]) -> dict[str, Any]:
    """Ours: each hit with the addresses at which the agent can be read about and reached."""
    return {**found, "results": [{**hit, "links": _links(hit["agent_id"], address, get)} for hit in found["results"]]}


def _links(agent_id: str, address: Address, get: Callable[[str], Manifest | None]) -> dict[str, str]:
    manifest = get(agent_id)
    return {} if manifest is None else {entry["type"]: entry["url"] for entry in entries_of(address, manifest)}
