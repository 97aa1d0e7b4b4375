"""`a2a-fabric log`: the calls of a running node, as they happen."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import Reconnection, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json_line, print_line, remark, replace_unprintable, report_errors
from a2a_fabric.client.local_node import StateFolder
from a2a_fabric.config import read_environment
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, FabricError, Forbidden, Unauthenticated

_WAIT = 20.0  # seconds that the node keeps a request open
_TIMEOUT = 10.0  # beyond that
_MAX_LINES = 1000


def show_log(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each new call, until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, max=1000, help="Begin with so many lines.")] = 10,
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the last calls of a running node, and follow new ones.

    Needs the node's own key. If the node is restarted, following goes on.

    Example: a2a-fabric log -f --failed
    """
    query = {"last": last, "calls": True, "agent_id": agent, "failed": failed}
    with report_errors(as_json=as_json):
        try:
            asyncio.run(_show(query, url, token, follow=follow, as_json=as_json))
        except KeyboardInterrupt:
            raise typer.Exit from None


async def _show(query: dict[str, Any], url: str | None, token: str | None, *, follow: bool, as_json: bool) -> None:
    """Raises what the first request raises; later, a node that is away is waited for."""
    node_id: str | None = None
    position: Any = None
    reconnection = Reconnection()
    missing: list[str] = []
    address: str | None = None
    while True:
        address = _find_address(url) or address  # not the default one: another node may have it
        wait = _WAIT if follow and position is not None else 0.0
        sent = {**query, "last": query["last"] if node_id is None else _MAX_LINES, "after": position}
        try:
            async with connect(address, token, _TIMEOUT) as node:
                page = await node.administer("log", **sent, wait_ms=int(wait * 1000), wait=wait)
        except FabricError as error:
            if node_id is None or isinstance(error, Unauthenticated | AuthInvalid | AuthExpired | Forbidden):
                raise
            await reconnection.pause(error)
            continue
        reconnection.note_answer()
        if node_id not in (None, page["node"]):  # it was started again, and its log begins anew
            remark(f"The node was started again at {time.strftime('%H:%M:%S')}")
            node_id, position = page["node"], None
            continue
        node_id, position = page["node"], page["next"]
        if page["missing"] != missing:
            missing = page["missing"]
            for name in missing:
                remark(f"The process {name} of the node does not answer, so its lines are missing")
        for line in page["lines"]:
            print_json_line(line) if as_json else print_line(_format_line(line))
        if not follow:
            if not page["lines"]:
                is_filtered = query["agent_id"] is not None or query["failed"]
                remark("The log of this node has no such call." if is_filtered else "Nothing was called yet.")
            return


def _find_address(url: str | None) -> str | None:
    """The address that was named, else that of the node started last, if it runs."""
    environ = read_environment()
    running = StateFolder(environ).read_node()
    return url or environ.get("FABRIC_URL") or (running.url if running is not None else None)


def _format_line(line: dict[str, Any]) -> str:
    target, capability = line.get("target"), line.get("capability")
    what = f"{target}.{capability}" if target else str(line.get("operation", ""))
    if line.get("event") == "job":
        what = f"job {line.get('job_id', '')} {what}"
    duration = f"{line['duration_ms']:.1f} ms" if line.get("duration_ms") is not None else ""
    outcome = f"{line['error_code']}: {line.get('error', '')}" if line.get("error_code") else line.get("status") or ""
    caller = line.get("principal") or line.get("owner") or line.get("auth_mode") or ""
    text = f"{str(line.get('time', ''))[11:19]}  {what}  {duration}  {outcome}  {caller}"
    return replace_unprintable(text.replace("\n", " ")).rstrip()
