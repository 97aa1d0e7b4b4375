"""Words that the shell completes: the ids of agents and the names of their capabilities, asked of the node."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from a2a_fabric.cli.connection import connect
from a2a_fabric.core.errors import FabricError

_PATIENCE = 1.0


def agent_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return [
        (agent["agent_id"], agent.get("description", ""))
        for agent in _agents(ctx)
        if agent["agent_id"].startswith(incomplete)
    ]


def capabilities(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    asked = ctx.params.get("agent")
    return [
        (capability["name"], capability.get("description", ""))
        for agent in _agents(ctx)
        if agent["agent_id"] == asked
        for capability in agent.get("capabilities", [])
        if capability["name"].startswith(incomplete)
    ]


def _agents(ctx: typer.Context) -> list[dict[str, Any]]:
    """None if there is no node to ask: completion is silent about trouble."""

    async def listed() -> list[dict[str, Any]]:
        async with connect(ctx.params.get("url"), ctx.params.get("token"), _PATIENCE) as client:
            return await client.agents()

    try:
        return asyncio.run(listed())
    except FabricError:
        return []
