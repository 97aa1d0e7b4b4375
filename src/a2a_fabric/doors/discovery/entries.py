"""Agents as others list them: entries of an AI Catalog, and MCP server cards. Plain functions from values to values.

An entry names a document by its media type and its address: an agent's A2A card, or the
server card of its MCP endpoint. Readers of older drafts look for `mediaType`, so both
names of the type are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.version import __version__

CATALOG = "application/ai-catalog+json"
A2A_CARD = "application/a2a-agent-card+json"
MCP_CARD = "application/mcp-server-card+json"
REGISTRY = "application/ai-registry+json"
SPEC_VERSION = "1.0"
MCP_VERSIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

_CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_GATEWAY = "a2a-fabric"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_IN_A_DOMAIN = re.compile(r"[^A-Za-z0-9.-]+")
_SHORT = 100  # characters that a server card has for a title and a description
_WORDS = 1000
_CAPABILITIES = 100


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """`base` is the node as this caller reaches it, `kinds` the media types of what its agents have."""

    base: str
    publisher: str
    kinds: tuple[str, ...]

    def entry(self, name: str, kind: str, url: str, title: str) -> dict[str, Any]:
        identifier = f"urn:air:{self.publisher}:{name}"
        return {"identifier": identifier, "displayName": title, "type": kind, "mediaType": kind, "url": url}


def address_of(base: str, publisher: str | None, doors: frozenset[str]) -> Address:
    known = {A2A_CARD: "a2a", MCP_CARD: "mcp"}
    kinds = tuple(kind for kind, door in known.items() if door in doors)
    return Address(base=base, publisher=publisher or _domain(base), kinds=kinds)


def catalog(address: Address, host: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "specVersion": SPEC_VERSION,
        "host": {"displayName": host, "identifier": address.publisher},
        "entries": entries,
    }


def own_entries(address: Address) -> Iterator[dict[str, Any]]:
    """The gateway itself: one agent that routes, one MCP server with everything, and the search."""
    base, title = address.base, "A2A Fabric"
    if A2A_CARD in address.kinds:
        yield address.entry("gateway:a2a", A2A_CARD, f"{base}/.well-known/agent-card.json", title)
    if MCP_CARD in address.kinds:
        yield address.entry("gateway:mcp", MCP_CARD, f"{base}/mcp/server-card", title)
    yield address.entry("gateway:search", REGISTRY, base, f"{title}: search")


def entries_of(address: Address, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """One for each way in which the agent can be reached."""
    place = f"{address.base}/agents/{quote(manifest.agent_id, safe='/')}"
    urls = {A2A_CARD: ("a2a", f"{place}/.well-known/agent-card.json"), MCP_CARD: ("mcp", f"{place}/mcp/server-card")}
    for kind in address.kinds:
        way, url = urls[kind]
        named = f"{way}:{':'.join(_NOT_IN_A_NAME.sub('-', step) for step in manifest.agent_id.split('/'))}"
        yield {**address.entry(named, kind, url, manifest.display_name or manifest.agent_id), **_about(manifest)}


def part_entry(address: Address, number: int, of: int, first: str, last: str) -> dict[str, Any]:
    """One document of a catalog that has too many agents for one."""
    url = f"{address.base}/.well-known/ai-catalog.json?part={number}"
    entry = address.entry(f"catalog:part-{number}", CATALOG, url, f"Agents, part {number} of {of}")
    return {**entry, "description": f"{first} to {last}"}


def server_card(address: Address, manifest: Manifest | None, *, with_key: bool) -> dict[str, Any]:
    """Of one agent's MCP endpoint, or of the gateway's own."""
    name = _GATEWAY if manifest is None else manifest.agent_id
    path = "/mcp" if manifest is None else f"/agents/{quote(name, safe='/')}/mcp"
    remote: dict[str, Any] = {"type": "streamable-http", "url": address.base + path}
    remote["supportedProtocolVersions"] = list(MCP_VERSIONS)
    if with_key:
        about = "Bearer and the caller's key."
        remote["headers"] = [{"name": "Authorization", "description": about, "isRequired": True, "isSecret": True}]
    title = "A2A Fabric" if manifest is None else manifest.display_name or name
    described = "All agents of this node as tools." if manifest is None else manifest.description
    return {
        "$schema": _CARD_SCHEMA,
        "name": f"{'.'.join(reversed(address.publisher.split('.')))}/{_NOT_IN_A_NAME.sub('.', name)}",
        "version": (__version__ if manifest is None else manifest.version) or "0.0.0",
        "title": title[:_SHORT],
        "description": _short(described or f"The agent {name}."),
        "remotes": [remote],
    }


def _about(manifest: Manifest) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if manifest.description:
        about["description"] = manifest.description[:_WORDS]
    if manifest.version:
        about["version"] = manifest.version
    if manifest.tags:
        about["tags"] = list(manifest.tags)
    if manifest.capabilities:
        about["capabilities"] = [capability.name for capability in manifest.capabilities[:_CAPABILITIES]]
    return {**about, "metadata": {"agent_id": manifest.agent_id, "trust_tier": manifest.trust_tier}}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else line[: _SHORT - 1].rstrip() + "…"


def _domain(base: str) -> str:
    try:
        host = urlsplit(base).hostname
    except ValueError:
        host = None
    return _NOT_IN_A_DOMAIN.sub("-", host or "").strip("-") or "localhost"
