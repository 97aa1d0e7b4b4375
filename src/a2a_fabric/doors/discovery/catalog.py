"""The AI Catalog: entries, MCP server cards, and the documents that hold them, one or several for a large catalog.

An entry names a document by media type and URL: an agent's A2A card, or the server card of its MCP endpoint. Clients
of older drafts read `mediaType`, so both names of the type are present. A document depends on the caller's trust tier
and scopes and on the base URL; it is cached until the catalog changes."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.edge import compute_etag
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.views import render_profile_metadata
from a2a_fabric.protocols.a2a.card import CARD_PATH
from a2a_fabric.version import __version__

CATALOG_TYPE = "application/ai-catalog+json"
A2A_CARD_TYPE = "application/a2a-agent-card+json"
MCP_CARD_TYPE = "application/mcp-server-card+json"
REGISTRY_TYPE = "application/ai-registry+json"
SPEC_VERSION = "1.0"
MCP_VERSIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

_CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_GATEWAY_NAME = "a2a-fabric"
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_INVALID_DOMAIN_CHARACTERS = re.compile(r"[^A-Za-z0-9.-]+")
_MAX_CARD_TEXT = 100  # characters that a server card has for a title and a description
_MAX_DESCRIPTION = 1000
_MAX_CAPABILITIES = 100


class CatalogNode(msgspec.Struct, frozen=True, kw_only=True):
    """The node as this caller reaches it, and the media types that its doors serve."""

    base_url: str
    publisher: str
    media_types: tuple[str, ...]

    def build_entry(self, name: str, media_type: str, url: str, title: str) -> dict[str, Any]:
        identifier = f"urn:air:{self.publisher}:{name}"
        return {"identifier": identifier, "displayName": title, "type": media_type, "mediaType": media_type, "url": url}


def build_node(base_url: str, publisher: str | None, doors: frozenset[str]) -> CatalogNode:
    doors_by_media_type = {A2A_CARD_TYPE: "a2a", MCP_CARD_TYPE: "mcp"}
    media_types = tuple(media_type for media_type, door in doors_by_media_type.items() if door in doors)
    return CatalogNode(base_url=base_url, publisher=publisher or _domain_from_url(base_url), media_types=media_types)


def render_catalog(node: CatalogNode, host: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "specVersion": SPEC_VERSION,
        "host": {"displayName": host, "identifier": node.publisher},
        "entries": entries,
    }


def build_gateway_entries(node: CatalogNode) -> Iterator[dict[str, Any]]:
    """The gateway itself: one agent that routes, one MCP server with everything, and the search."""
    base_url, title = node.base_url, "A2A Fabric"
    if A2A_CARD_TYPE in node.media_types:
        yield node.build_entry("gateway:a2a", A2A_CARD_TYPE, base_url + CARD_PATH, title)
    if MCP_CARD_TYPE in node.media_types:
        yield node.build_entry("gateway:mcp", MCP_CARD_TYPE, f"{base_url}/mcp/server-card", title)
    yield node.build_entry("gateway:search", REGISTRY_TYPE, base_url, f"{title}: search")


def build_agent_entries(node: CatalogNode, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """One entry for each endpoint of the agent."""
    agent_url = f"{node.base_url}/agents/{quote(manifest.agent_id, safe='/')}"
    urls = {
        A2A_CARD_TYPE: ("a2a", agent_url + CARD_PATH),
        MCP_CARD_TYPE: ("mcp", f"{agent_url}/mcp/server-card"),
    }
    for media_type in node.media_types:
        protocol, url = urls[media_type]
        segments = [_INVALID_NAME_CHARACTERS.sub("-", segment) for segment in manifest.agent_id.split("/")]
        name, display_name = ":".join([protocol, *segments]), manifest.display_name or manifest.agent_id
        yield {**node.build_entry(name, media_type, url, display_name), **_render_details(manifest)}


def build_part_entry(node: CatalogNode, number: int, count: int, first: str, last: str) -> dict[str, Any]:
    """One document of a catalog that has too many agents for one."""
    url = f"{node.base_url}/.well-known/ai-catalog.json?part={number}"
    entry = node.build_entry(f"catalog:part-{number}", CATALOG_TYPE, url, f"Agents, part {number} of {count}")
    return {**entry, "description": f"{first} to {last}"}


def build_server_card(node: CatalogNode, manifest: Manifest | None, *, needs_key: bool) -> dict[str, Any]:
    """The card of one agent's MCP endpoint, or of the gateway's own."""
    name = _GATEWAY_NAME if manifest is None else manifest.agent_id
    path = "/mcp" if manifest is None else f"/agents/{quote(name, safe='/')}/mcp"
    remote: dict[str, Any] = {"type": "streamable-http", "url": node.base_url + path}
    remote["supportedProtocolVersions"] = list(MCP_VERSIONS)
    if needs_key:
        header_description = "Bearer and the caller's key."
        remote["headers"] = [
            {"name": "Authorization", "description": header_description, "isRequired": True, "isSecret": True}
        ]
    title = "A2A Fabric" if manifest is None else manifest.display_name or name
    description = "All agents of this node as tools." if manifest is None else manifest.description
    return {
        "$schema": _CARD_SCHEMA,
        "name": f"{'.'.join(reversed(node.publisher.split('.')))}/{_INVALID_NAME_CHARACTERS.sub('.', name)}",
        "version": (__version__ if manifest is None else manifest.version) or "0.0.0",
        "title": title[:_MAX_CARD_TEXT],
        "description": _shorten(description or f"The agent {name}."),
        "remotes": [remote],
    }


def _render_details(manifest: Manifest) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if manifest.description:
        details["description"] = manifest.description[:_MAX_DESCRIPTION]
    if manifest.version:
        details["version"] = manifest.version
    if manifest.tags:
        details["tags"] = list(manifest.tags)
    if manifest.capabilities:
        details["capabilities"] = [capability.name for capability in manifest.capabilities[:_MAX_CAPABILITIES]]
    own = {"agent_id": manifest.agent_id, "trust_tier": manifest.trust_tier}
    return {**details, "metadata": {**own, **render_profile_metadata(manifest)}}


def _shorten(text: str) -> str:
    collapsed = " ".join(text.split())
    return collapsed if len(collapsed) <= _MAX_CARD_TEXT else collapsed[: _MAX_CARD_TEXT - 1].rstrip() + "…"


def _domain_from_url(base_url: str) -> str:
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        host = None
    return _INVALID_DOMAIN_CHARACTERS.sub("-", host or "").strip("-") or "localhost"


_MAX_CACHED = 64
_CacheKey = tuple[object, CatalogNode, int | None]  # the part of the catalog that a caller sees


class CatalogDocument(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    etag: str


def encode_document(body: dict[str, Any]) -> CatalogDocument:
    encoded = msgspec.json.encode(body)
    return CatalogDocument(body=encoded, etag=compute_etag(encoded))


class CatalogDocuments:
    def __init__(self, gateway: Gateway, host: str, max_agents: int) -> None:
        self._gateway = gateway
        self._host = host
        self._max_agents = max_agents
        self._catalog: object = None
        self._cache: OrderedDict[_CacheKey, CatalogDocument | None] = OrderedDict()

    async def get(self, principal: Principal, node: CatalogNode, part: int | None) -> CatalogDocument | None:
        """None if there is no such part."""
        registry = self._gateway.registry
        visible = await registry.prepare_view(principal)
        if registry.catalog is not self._catalog:
            self._catalog = registry.catalog
            self._cache.clear()
        key = (visible, node, part)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        document = await self._build_document(visible.sort_by_id(visible.agents), node, part)
        if registry.catalog is self._catalog:
            self._cache[key] = document
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return document

    async def _build_document(
        self, agents: Sequence[Manifest], node: CatalogNode, part: int | None
    ) -> CatalogDocument | None:
        agent_groups = [agents[start : start + self._max_agents] for start in range(0, len(agents), self._max_agents)]
        if part is not None and not 1 <= part <= len(agent_groups):
            return None
        listed: list[dict[str, Any]] = [] if part is not None else list(build_gateway_entries(node))
        if part is None and len(agent_groups) > 1:
            listed += [
                build_part_entry(node, number, len(agent_groups), group[0].agent_id, group[-1].agent_id)
                for number, group in enumerate(agent_groups, 1)
            ]
        else:
            group = agent_groups[part - 1 if part is not None else 0] if agent_groups else ()
            async for manifests in iterate_in_slices(group):
                listed += [entry for manifest in manifests for entry in build_agent_entries(node, manifest)]
        return encode_document(render_catalog(node, self._host, listed))
