"""`a2a-fabric route`: show which agents would answer a call, in which order, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import complete_agent_ids, complete_capabilities, connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark


def run(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="Which agent would be asked.", autocompletion=complete_agent_ids)
    ],
    capability: Annotated[
        str, typer.Argument(metavar="CAPABILITY", help="For what.", autocompletion=complete_capabilities)
    ],
    stream: Annotated[bool, typer.Option("--stream", help="Plan for a caller who wants events.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show who would answer a call, in which order, and why.

    Example: a2a-fabric route scribe summarize
    """
    plan = run_request(connect(url, token), lambda node: node.route(agent, capability, stream), as_json=as_json)
    if as_json:
        print_json(plan)
        return
    if not plan["policy"]["allowed"]:
        remark(f"Nobody would be asked. {plan['policy']['reason']}")
        raise typer.Exit(1)
    print_table(("order", "agent", "tier", "why"), _build_rows(plan))


def _build_rows(plan: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("1", plan["selected_agent"], "", plan["policy"]["reason"])]
    rows += [(str(n), hop["agent_id"], hop["tier"], hop["reason"]) for n, hop in enumerate(plan["fallbacks"], start=2)]
    rows += [("-", refused["agent_id"], "refused", refused["reason"]) for refused in plan["refused"]]
    return rows
