"""The node that a command talks to: its address, the key, one request, and shell completion."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import typer

from a2a_fabric.cli.output import remark, report_errors
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.local_node import find_node
from a2a_fabric.config import read_environment
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.propagation import DELEGATION_VARIABLE, TRACE_VARIABLE, chain_from_header

T = TypeVar("T")


def connect(url: str | None, token: str | None, timeout: float = 60.0, view: str | None = None) -> FabricClient:
    environ = read_environment()
    url, found_token = find_node({**environ, "FABRIC_URL": url} if url else environ)
    chain = chain_from_header(environ.get(DELEGATION_VARIABLE))  # set if an agent of a node runs this command
    address = url if view is None else f"{url.rstrip('/')}/views/{quote(view, safe='')}"
    return FabricClient(
        address, token or found_token, timeout, delegation_chain=chain, traceparent=environ.get(TRACE_VARIABLE)
    )


def run_request(client: FabricClient, request: Callable[[FabricClient], Awaitable[T]], *, as_json: bool) -> T:
    """Run one request and close the client. With `as_json`, an error is printed as JSON too."""

    async def exchange() -> T:
        async with client:
            return await request(client)

    with report_errors(as_json=as_json):
        return asyncio.run(exchange())


class Reconnection:
    """The pauses of a command that follows a node while that node is away, which the user is told once."""

    def __init__(self) -> None:
        self._is_away = False

    async def pause(self, error: FabricError) -> None:
        if not self._is_away:
            remark(f"The node does not answer; waiting for it: {error.message}")
        self._is_away = True
        await asyncio.sleep(_PAUSE)

    def note_answer(self) -> None:
        self._is_away = False


def administer(
    url: str | None, token: str | None, request: str, timeout: float | None = None, /, **arguments: Any
) -> dict[str, Any]:
    """One request to the admin API of the node. Raises FabricError."""

    async def exchange() -> dict[str, Any]:
        async with connect(url, token, timeout or _ADMIN_TIMEOUT) as node:
            return await node.administer(request, **arguments)

    return asyncio.run(exchange())


_ADMIN_TIMEOUT = 15.0
_COMPLETION_TIMEOUT = 1.0
_PAUSE = 1.0  # before the next try, while the node is away


def complete_agent_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return [
        (agent["agent_id"], agent.get("description", ""))
        for agent in _list_agents(ctx)
        if agent["agent_id"].startswith(incomplete)
    ]


def complete_capabilities(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    agent_id = ctx.params.get("agent")
    return [
        (capability["name"], capability.get("description", ""))
        for agent in _list_agents(ctx)
        if agent["agent_id"] == agent_id
        for capability in agent.get("capabilities", [])
        if capability["name"].startswith(incomplete)
    ]


def complete_job_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    async def list_jobs(node: FabricClient) -> list[dict[str, Any]]:
        return await node.jobs()

    return [
        (job["job_id"], f"{job['state']}: {job['agent_id']} {job['capability']}")
        for job in _run_quietly(ctx, list_jobs)
        if job["job_id"].startswith(incomplete)
    ]


def _list_agents(ctx: typer.Context) -> list[dict[str, Any]]:
    async def list_agents(node: FabricClient) -> list[dict[str, Any]]:
        return await node.agents()

    return _run_quietly(ctx, list_agents)


def _run_quietly(
    ctx: typer.Context, request: Callable[[FabricClient], Awaitable[list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Completion shows no errors: without a node there is nothing to complete."""

    async def exchange() -> list[dict[str, Any]]:
        async with connect(ctx.params.get("url"), ctx.params.get("token"), _COMPLETION_TIMEOUT) as client:
            return await request(client)

    try:
        return asyncio.run(exchange())
    except FabricError:
        return []
