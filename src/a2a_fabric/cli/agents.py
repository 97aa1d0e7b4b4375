"""`a2a-fabric agents`: list the agents of a node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark
from a2a_fabric.core.agent import Status


def run(
    capability: Annotated[str | None, typer.Option(help="Only agents with this capability.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only agents with this tag.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only agents in this state.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the agents of a node.

    Example: a2a-fabric agents --capability summarize
    """
    client = connect(url, token)
    agents = run_request(client, lambda node: node.agents(capability, tag, status), as_json=as_json)
    if as_json:
        print_json({"agents": agents, "count": len(agents)})
        return
    if not agents:
        remark(f"No such agents at {client.url}.")
        return
    print_table(("agent", "status", "runtime", "capabilities", "description"), map(_build_row, agents))


def _build_row(agent: dict[str, Any]) -> tuple[str, ...]:
    names = ", ".join(capability["name"] for capability in agent["capabilities"])
    description = agent["description"] or agent.get("error", "")
    return agent["agent_id"], agent["status"], agent["runtime"] or "", names, description
