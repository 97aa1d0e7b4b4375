"""`a2a-fabric calls`: the recent calls of a node, as a list or as they end."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing
from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import Reconnection, complete_agent_ids, connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import (
    clip_text,
    print_json,
    print_json_line,
    print_line,
    print_table,
    remark,
    replace_unprintable,
    report_errors,
)
from a2a_fabric.cli.program import NAME
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamInterrupted

_WAIT_MS = 25_000
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_AWAY = (AgentOffline, UpstreamInterrupted)


def list_calls(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show each call as it ends, until Ctrl-C.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT", help="Only calls to this agent, or answered by it.", autocompletion=complete_agent_ids
        ),
    ] = None,
    capability: Annotated[str | None, typer.Option(metavar="NAME", help="Only calls of this capability.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed.")] = False,
    principal: Annotated[str | None, typer.Option(metavar="NAME", help="Only calls of this caller.")] = None,
    door: Annotated[str | None, typer.Option(metavar="DOOR", help="Only calls that came in at this door.")] = None,
    since: Annotated[str | None, typer.Option(metavar="AGE", help="Not older than: 90s, 15m, 2h, 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the recent calls of a node, newest first, or follow them.

    With the node's own key you see all calls, with any other key those made with it. The first column names the trace:
    a2a-fabric trace ID shows what happened.

    Example: a2a-fabric calls --failed --since 15m
    """
    filters = {"agent": agent, "capability": capability, "principal": principal, "door": door}
    query: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if failed:
        query["failed"] = True
    if since is not None:
        query["since"] = time.time() - _parse_age(since)
    node = connect(url, token)
    if not follow:
        calls = run_request(node, lambda client: _read_pages(client, query, limit), as_json=as_json)
        _print_list(calls, as_json=as_json)
        return
    try:
        with report_errors(as_json=as_json):
            asyncio.run(_follow(node, query, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _read_pages(node: FabricClient, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while len(calls) < limit:
        page = await node.administer("calls", **query, **cursor, limit=min(500, limit - len(calls)))
        calls += page["calls"]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}
    return calls


async def _follow(node: FabricClient, query: dict[str, Any], *, as_json: bool) -> None:
    """Raises what the first request raises; later, a node that is away is waited for."""
    reconnection = Reconnection()
    async with aclosing(node):
        page = await node.administer("calls", **query, limit=10)
        _print_lines(page["calls"][::-1], as_json=as_json)
        lost = page["lost"]
        while True:
            try:
                page = await node.administer("calls", **query, follow=page["follow"], wait_ms=_WAIT_MS)
            except FabricError as error:
                if not isinstance(error, _AWAY):
                    raise
                await reconnection.pause(error)
                continue
            reconnection.note_answer()
            _print_lines(page["calls"], as_json=as_json)
            if page["lost"] > lost:
                remark(f"{page['lost'] - lost} calls were left out: there were more than the node records")
            lost = page["lost"]


def _print_list(calls: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(calls)
        return
    if not calls:
        remark("The history of this node has no such call.")
        return
    columns = ("trace", "time", "call", "caller", "ms", "outcome")
    rows = [(call["trace_id"].partition("-")[0], *_describe(call)) for call in calls]
    print_table(columns, rows)
    remark(f"Show one of them with: {NAME} trace {calls[0]['trace_id']}")


def _print_lines(calls: list[dict[str, Any]], *, as_json: bool) -> None:
    for call in calls:
        if as_json:
            print_json_line(call)
            continue
        moment, what, caller, milliseconds, outcome = _describe(call)
        print_line(f"{call['trace_id'].partition('-')[0]}  {moment}  {what}  {caller}  {milliseconds} ms  {outcome}")


def _describe(call: dict[str, Any]) -> tuple[str, str, str, str, str]:
    moment = time.strftime("%H:%M:%S", time.localtime(call["started_at"]))
    target = f"{call['agent_id']}.{call['capability']}"
    what = target if call["used"] is None else f"{target} by {call['used']}"
    caller = f"{call['principal'] or '-'} ({call['door']})" if call["door"] else call["principal"] or "-"
    outcome = f"{call['error_code']}: {call['error'] or ''}" if call["error_code"] else call["status"]
    if call["attempts"] > 1:
        outcome = f"{outcome} ({call['attempts']} attempts)"
    return (
        moment,
        replace_unprintable(what),
        replace_unprintable(caller),
        f"{call['duration_ms']:.1f}",
        replace_unprintable(clip_text(outcome, 60)),
    )


def _parse_age(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"--since: '{text[:40]}' is not an age; write 90s, 15m, 2h or 7d")
    return float(match[1]) * _SECONDS[match[2]]
