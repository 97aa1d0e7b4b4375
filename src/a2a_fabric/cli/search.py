"""`a2a-fabric search`: find agents for a task."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark
from a2a_fabric.core.agent import TrustTier


def run(
    words: Annotated[
        list[str] | None, typer.Argument(help="What is looked for. None: all that fit the filters.")
    ] = None,
    capability: Annotated[str | None, typer.Option(help="Only agents with this capability.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only agents with this tag, or one of these.")] = None,
    trust: Annotated[TrustTier | None, typer.Option(help="Only agents of this trust tier.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 10,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Find agents for what you want done, and why they fit.

    Example: a2a-fabric search summarize a text
    """
    client = connect(url, token)
    query = " ".join(words or ())
    hits = run_request(
        client,
        lambda node: node.search(query, capability=capability, tag=tag, trust_tier=trust, limit=limit),
        as_json=as_json,
    )
    if as_json:
        print_json({"results": hits, "count": len(hits)})
        return
    if not hits:
        remark(f"Nobody at {client.url} fits that.")
        return
    print_table(("score", "agent", "status", "capabilities", "why"), map(_build_row, hits))


def _build_row(hit: dict[str, Any]) -> tuple[str, ...]:
    reasons = "; ".join(hit["why"][:2])
    return str(hit["score"]), hit["agent_id"], hit["status"], ", ".join(hit["capabilities"][:5]), reasons
