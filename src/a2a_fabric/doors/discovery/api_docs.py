"""Describes the paths of the discovery door for `/docs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a_fabric.doors.api_docs import DoorDescription, PathDescription
from a2a_fabric.doors.discovery.catalog import CATALOG_TYPE, MCP_CARD_TYPE
from a2a_fabric.doors.discovery.search import RegistrySearch

_PART: Mapping[str, Any] = {"type": "object", "properties": {"part": {"type": "integer", "minimum": 0}}}


def describe(search_schema: Mapping[str, Any], *, has_mcp: bool) -> DoorDescription:
    """`search_schema` is that of the arguments of `fabric.agent.search`."""
    cards = (
        PathDescription(
            method="GET", path="/mcp/server-card", summary="The MCP server card of this node.", reply=MCP_CARD_TYPE
        ),
        PathDescription(
            method="GET",
            path="/agents/{agent_id}/mcp/server-card",
            summary="The MCP server card of one agent.",
            values={"agent_id": "percy"},
            reply=MCP_CARD_TYPE,
        ),
    )
    return DoorDescription(
        name="discovery",
        about="What crawlers and registries read: the AI Catalog, server cards, and search.",
        page="discovery.md",
        paths=(
            PathDescription(
                method="GET",
                path="/.well-known/ai-catalog.json",
                summary="The AI Catalog of the agents that the caller may see. A large one is split into parts.",
                query=_PART,
                reply=CATALOG_TYPE,
            ),
            PathDescription(
                method="GET",
                path="/search",
                summary="Search agents, with the arguments of `fabric.agent.search`.",
                query=search_schema,
                values={"query": "sums"},
            ),
            PathDescription(
                method="POST",
                path="/search",
                summary="Search agents as registries do. A `query` that is a string is as with GET.",
                body=RegistrySearch,
                example={"query": {"text": "sums"}, "pageSize": 5},
            ),
            *(cards if has_mcp else ()),
        ),
    )
