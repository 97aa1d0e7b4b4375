"""The caller's own logins at agents that want OAuth: the commands `login`, `logout` and `logins`."""

from __future__ import annotations

import asyncio
import time
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from a2a_fabric.cli.agents import AgentId
from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, print_table, remark
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.errors import CallTimeout, UpstreamRefused

_PATH = "/callback"
_MAX_HEAD_BYTES = 16 * 1024
_READ_TIMEOUT = 5.0
_PAGE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\nconnection: close\r\ncache-control: no-store\r\n"
    b"referrer-policy: no-referrer\r\n\r\n<!doctype html><title>a2a-fabric</title>"
    b"<p>You can close this page and return to the terminal."
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def log_in(
    agent: AgentId,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page; otherwise only print its address.")
    ] = True,
    device: Annotated[
        bool, typer.Option("--device", help="Type a code on another device, if the agent's server offers that.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, max=600, help="Seconds to wait for you.")] = 300.0,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Sign in to an agent with your own account.

    Example: a2a-fabric login github
    """
    client = connect(url, token)
    login = run_request(
        client, lambda node: _log_in(node, agent, browser=browser, device=device, timeout=timeout), as_json=as_json
    )
    if as_json:
        print_json(login)
    else:
        scopes = f" with {', '.join(login['scopes'])}" if login.get("scopes") else ""
        print_line(f"Signed in to {agent} at {login['issuer']}{scopes}.")


def log_out(agent: AgentId, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Remove your login at an agent.

    Example: a2a-fabric logout github
    """
    client = connect(url, token)
    reply = run_request(client, lambda node: node.operation("fabric.login.remove", agent_id=agent), as_json=as_json)
    if as_json:
        print_json({name: reply[name] for name in ("agent_id", "removed", "revoked")})
    elif not reply["removed"]:
        remark(f"You were not signed in to {agent}.")
    else:
        revocation = "Its server has taken the tokens back" if reply["revoked"] else "Its server was not told"
        print_line(f"Signed out of {agent}. {revocation}.")


def list_logins(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """List your logins at agents.

    Example: a2a-fabric logins
    """
    client = connect(url, token)
    reply = run_request(client, lambda node: node.operation("fabric.login.list"), as_json=as_json)
    logins = reply["logins"]
    if as_json:
        print_json({"logins": logins, "count": len(logins)})
    elif logins:
        print_table(("agent", "server", "scopes", "signed in", "token expires"), map(_build_row, logins))
    else:
        remark("You are not signed in to any agent. Sign in with: a2a-fabric login AGENT")


def _build_row(login: dict[str, Any]) -> tuple[str, ...]:
    scopes = " ".join(login["scopes"])
    return login["agent_id"], login["issuer"], scopes, login["signed_in_at"], login["expires_at"] or ""


async def _log_in(node: FabricClient, agent: str, *, browser: bool, device: bool, timeout: float) -> dict[str, Any]:
    if device:
        return await _log_in_by_device(node, agent, timeout)
    if browser and not _has_browser():
        try:
            return await _log_in_by_device(node, agent, timeout)
        except UpstreamRefused:
            remark("There is no browser here, and the server has no login by code. Open the page on this machine.")
    return await _log_in_by_browser(node, agent, timeout, opens_page=browser)


async def _log_in_by_browser(node: FabricClient, agent: str, timeout: float, *, opens_page: bool) -> dict[str, Any]:
    async with _listen() as (redirect_uri, answers):
        started = await node.operation("fabric.login.start", agent_id=agent, redirect_uri=redirect_uri)
        remark(f"Open this page to sign in to {agent}:\n{started['url']}")
        if opens_page:
            await asyncio.to_thread(webbrowser.open, started["url"])
        try:
            async with asyncio.timeout(timeout):
                while (answer := await answers.get()).get("state") != started["state"]:
                    remark("A page came back that belongs to another login; it is ignored.")
        except TimeoutError as exc:
            raise CallTimeout(timeout, agent_id=agent) from exc
    return await node.operation("fabric.login.finish", **answer)


async def _log_in_by_device(node: FabricClient, agent: str, timeout: float) -> dict[str, Any]:
    started = await node.operation("fabric.login.start", agent_id=agent)
    remark(f"Open {started['url']} on any device, and type the code {started['user_code']}")
    ends_at = time.monotonic() + min(timeout, started["expires_in"])
    interval = started["interval"]
    while time.monotonic() < ends_at:
        await asyncio.sleep(min(interval, max(0.0, ends_at - time.monotonic())))
        login = await node.operation("fabric.login.finish", state=started["state"])
        if login["status"] == "complete":
            return login
        interval = login["interval"]
    raise CallTimeout(timeout, agent_id=agent)


def _has_browser() -> bool:
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


@asynccontextmanager
async def _listen() -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, str]]]]:
    """The address on this machine to which the browser returns, and what it brings there."""
    answers: asyncio.Queue[dict[str, str]] = asyncio.Queue(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = _read_answer(head)
            writer.write(_NOT_FOUND if answer is None else _PAGE)
            await writer.drain()
            if answer is not None and not answers.full():
                answers.put_nowait(answer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{_PATH}", answers
    finally:
        server.close()
        await server.wait_closed()


def _read_answer(head: bytes) -> dict[str, str] | None:
    """The parameters that the authorization server sent with the browser; None for any other request."""
    method, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0].decode("latin-1")
    parts = urlsplit(target)
    if method != b"GET" or parts.path != _PATH:
        return None
    query = parse_qs(parts.query)
    answer: dict[str, str] = {name: query[name][0] for name in ("state", "code", "iss", "error") if name in query}
    return answer if "state" in answer else None
