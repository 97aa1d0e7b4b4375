"""Words that the shell completes: the ids of agents and jobs and the names of capabilities, asked of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import typer

from a2a_fabric.cli.connection import connect
from a2a_fabric.client.client import FabricClient
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


def job_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    async def listed(node: FabricClient) -> list[dict[str, Any]]:
        return await node.jobs()

    return [
        (job["job_id"], f"{job['state']}: {job['agent_id']} {job['capability']}")
        for job in _asked(ctx, listed)
        if job["job_id"].startswith(incomplete)
    ]


def _agents(ctx: typer.Context) -> list[dict[str, Any]]:
    async def listed(node: FabricClient) -> list[dict[str, Any]]:
        return await node.agents()

    return _asked(ctx, listed)


def _asked(
    ctx: typer.Context, question: Callable[[FabricClient], Awaitable[list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Nothing if there is no node to ask: completion is silent about trouble."""

    async def exchange() -> list[dict[str, Any]]:
        async with connect(ctx.params.get("url"), ctx.params.get("token"), _PATIENCE) as client:
            return await question(client)

    try:
        return asyncio.run(exchange())
    except FabricError:
        return []
