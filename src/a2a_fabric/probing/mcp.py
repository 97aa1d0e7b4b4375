"""Is it an MCP server over Streamable HTTP, and of which era? Asked with each era's own first question."""

from __future__ import annotations

from typing import Any

from a2a_fabric.outbound.port import Reply
from a2a_fabric.probing.asking import Asker, Unanswered, base_of, json_in, refusal_in
from a2a_fabric.probing.findings import About, Finding, first_of, words
from a2a_fabric.version import __version__

_STATELESS = "2026-07-28"
_HANDSHAKE = "2025-11-25"
_CLIENT = {"name": "a2a-fabric", "version": __version__}
_TAKEN = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
_DISCOVER = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": _STATELESS,
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": _HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT},
}


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """At the address, or at `/mcp` below it. Raises Unanswered."""
    found = await _at(asker, url)
    if isinstance(found, Finding) or not beside or base_of(url).endswith("/mcp"):
        return found
    below = await _at(asker, f"{base_of(url)}/mcp", is_exact=False)
    return below if isinstance(below, Finding) else found


async def _at(asker: Asker, url: str, *, is_exact: bool = True) -> Finding | str:
    reply = await asker.send(
        "POST", url, _DISCOVER, **_TAKEN, mcp_protocol_version=_STATELESS, mcp_method="server/discover"
    )
    result = result_in(json_in(reply))
    if result is not None and isinstance(result.get("supportedVersions"), list):
        return _finding(url, result, f"stateless, {_STATELESS}", is_exact)
    if reply.status in (401, 403):
        return refusal_in(reply)
    reply = await asker.send("POST", url, INITIALIZE, **_TAKEN)
    result = result_in(json_in(reply))
    if result is None or not is_server(result):
        return refusal_in(reply)
    await _leave(asker, url, reply)
    return _finding(url, result, f"handshake, {words(result['protocolVersion'], 20)}", is_exact)


async def _leave(asker: Asker, url: str, reply: Reply) -> None:
    """A session that nobody needs is given back."""
    session = reply.headers.get("mcp-session-id")
    if session:
        try:
            await asker.send("DELETE", url, mcp_session_id=session)
        except Unanswered:
            pass


def result_in(message: Any) -> dict[str, Any] | None:
    result = message.get("result") if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None
    return result if isinstance(result, dict) else None


def is_server(result: dict[str, Any]) -> bool:
    """Whether this is how an MCP server greets."""
    return isinstance(result.get("protocolVersion"), str) and isinstance(result.get("capabilities"), dict)


def about(result: dict[str, Any]) -> About:
    """What the server says of itself, in either era."""
    meta = result.get("_meta")
    info = result.get("serverInfo") or (meta or {}).get("io.modelcontextprotocol/serverInfo")
    info = info if isinstance(info, dict) else {}
    described = first_of(info.get("description"), result.get("instructions"))
    return {"name": words(info.get("name")), "description": described, "version": words(info.get("version"))}


def _finding(url: str, result: dict[str, Any], told: str, is_exact: bool) -> Finding:
    endpoint = {"transport": "http", "uri": url}
    return Finding(runtime="mcp", endpoint=endpoint, told=f"MCP ({told})", is_exact=is_exact, **about(result))
