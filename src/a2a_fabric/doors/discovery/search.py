"""Search requests over HTTP and their results, in two forms.

Our own form has the arguments of `fabric.agent.search`. In the form of registries for agentic resources, `query` is
an object and the results are catalog entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.doors.discovery.catalog import CatalogNode, build_agent_entries

_ALIASES = {"q": "query", "text": "query", "tags": "tag", "capabilities": "capability"}
_LIST_ARGUMENTS = frozenset({"tag", "capability"})
_FILTERS = frozenset({"type", "tags", "capabilities", "publisher", "trust_tier", "metadata.trust_tier"})


class RegistryQuery(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    filter: dict[str, str | list[str]] = {}


class RegistrySearch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`federation` has no effect: this node does not ask other registries."""

    query: RegistryQuery
    page_size: Annotated[int, Meta(ge=1, le=100)] = 10
    page_token: str | None = None

    def list_media_types(self, node: CatalogNode) -> list[str]:
        """The requested media types that the agents of this node have."""
        requested = _to_list(self.query.filter.get("type"))
        return [media_type for media_type in node.media_types if not requested or media_type in requested]

    def build_arguments(self, node: CatalogNode) -> dict[str, Any] | None:
        """The arguments of `fabric.agent.search`; None if no agent can match. Raises BadInput."""
        filters = self.query.filter
        if unknown := sorted(filters.keys() - _FILTERS):
            allowed = ", ".join(sorted(_FILTERS))
            raise BadInput(f"Nothing can be filtered by {unknown[0][:100]!r}, only by: {allowed}", field="query.filter")
        publishers = _to_list(filters.get("publisher"))
        media_types = self.list_media_types(node)
        tiers = _to_list(filters.get("trust_tier")) or _to_list(filters.get("metadata.trust_tier"))
        if not media_types or (publishers and node.publisher not in publishers):
            return None
        if len(tiers) > 1:
            raise BadInput("Only one trust_tier can be filtered by", field="query.filter.trust_tier")
        return {
            "query": self.query.text,
            "capability": _to_list(filters.get("capabilities")) or None,
            "tag": _to_list(filters.get("tags")) or None,
            "trust_tier": tiers[0] if tiers else None,
            "limit": max(1, self.page_size // len(media_types)),
            "cursor": self.page_token,
        }

    def render_results(
        self, search_result: dict[str, Any], node: CatalogNode, find_manifest: Callable[[str], Manifest | None]
    ) -> dict[str, Any]:
        """One result for each endpoint of an agent."""
        filtered_node = msgspec.structs.replace(node, media_types=tuple(self.list_media_types(node)))
        results = [
            {**entry, "metadata": {**entry["metadata"], "why": "; ".join(hit["why"])}, "score": hit["score"]}
            | {"source": f"{node.base_url}/"}
            for hit in search_result["results"]
            if (manifest := find_manifest(hit["agent_id"])) is not None
            for entry in build_agent_entries(filtered_node, manifest)
        ]
        body: dict[str, Any] = {"results": results}
        return {**body, "pageToken": search_result["cursor"]} if search_result["cursor"] else body


EMPTY_RESULT: dict[str, Any] = {"results": [], "count": 0, "total": 0, "cursor": None}


def parse_body(body: bytes) -> dict[str, Any] | RegistrySearch:
    """Raises BadInput."""
    if problem := find_json_problem(body):
        raise BadInput(f"The body is no search: {problem}")
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
        if isinstance(fields.get("query"), dict):
            return msgspec.convert(fields, RegistrySearch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:  # ValidationError is a DecodeError
        raise BadInput(f"The body is no search: {exc}"[:300]) from exc
    return _apply_aliases(fields.items())


def parse_query(lists: Mapping[str, list[str]]) -> dict[str, Any]:
    """`?q=translate&tag=text&tag=legal&limit=5`"""
    argument_names = {_ALIASES.get(name, name) for name in lists}
    arguments = {
        name: values if _ALIASES.get(name, name) in _LIST_ARGUMENTS else values[-1] for name, values in lists.items()
    }
    limit = str(arguments.get("limit", ""))
    if "limit" in argument_names and limit.isascii() and limit.isdigit() and len(limit) < 10:
        arguments["limit"] = int(limit)  # type: ignore[assignment]  # the only number
    return _apply_aliases(arguments.items())


def _apply_aliases(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in items if value is not None}


def _to_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def add_links(
    search_result: dict[str, Any], node: CatalogNode, find_manifest: Callable[[str], Manifest | None]
) -> dict[str, Any]:
    """Fabric's own form: each hit has links to the agent's cards and endpoints."""
    return {
        **search_result,
        "results": [
            {**hit, "links": _build_links(hit["agent_id"], node, find_manifest)} for hit in search_result["results"]
        ],
    }


def _build_links(agent_id: str, node: CatalogNode, find_manifest: Callable[[str], Manifest | None]) -> dict[str, str]:
    manifest = find_manifest(agent_id)
    return {} if manifest is None else {entry["type"]: entry["url"] for entry in build_agent_entries(node, manifest)}
