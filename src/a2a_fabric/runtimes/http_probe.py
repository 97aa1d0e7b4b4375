"""Probes over HTTP: is the agent there? Its own address is asked, and it is never asked to work.

A server that answers is not yet the agent: 404 and 410 say that nothing is at the address,
5xx that it is broken. Any other answer comes from something that is there, also if it
says that it takes no such requests (405, 501) or not from us (401, 403).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import AgentOffline, UpstreamFailed, translated
from a2a_fabric.outbound.port import HTTPClient, Reply
from a2a_fabric.runtimes.http_exchange import ASK_SECONDS, ERRORS, MANIFEST_BYTES, looked_at, public

_ABSENT = (404, 410)
_NOT_IMPLEMENTED = 501
_HINT = "if it takes only POST requests there, name a health check in its endpoint as `health`"


def judge(status: int, address: str) -> Status:
    """Raises AgentOffline if nothing is at this address, UpstreamFailed if what is there is broken."""
    if status in _ABSENT:
        raise AgentOffline(f"Nothing is at {public(address)}: it answered a probe with HTTP {status}", status=status)
    if status >= 500 and status != _NOT_IMPLEMENTED:
        raise UpstreamFailed(f"{public(address)} answered a probe with HTTP {status}", status=status)
    return "online"


async def probe_page(http: HTTPClient, address: str, headers: dict[str, str]) -> Status:
    """Of a page that is there to be read: a health check, a card, a document. Raises FabricError."""
    return judge((await looked_at(http, address, headers)).status, address)


async def probe_agent(http: HTTPClient, uri: str, health: str | None, headers: dict[str, str]) -> Status:
    """Of an agent that takes POST requests. `health` is the path or the address of its health check, if declared.

    Some servers answer 404 to a GET where they take a POST. Then the methods that they allow there,
    or a health page below the agent's own address, show that it is there. Raises FabricError.
    """
    if health is not None:
        return await probe_page(http, health_address(uri, health), headers)
    reply = await looked_at(http, uri, headers)
    if reply.status not in _ABSENT:
        return judge(reply.status, uri)
    if "POST" in (await _options(http, uri, headers)).headers.get("allow", "").upper():
        return "online"
    if (await looked_at(http, _below(uri, "health"), headers)).status == 200:
        return "online"
    why = f"Nothing is at {public(uri)}: it answered a probe with HTTP {reply.status}; {_HINT}"
    raise AgentOffline(why, status=reply.status)


async def probe_resource(http: HTTPClient, uri: str, headers: dict[str, str]) -> Status:
    """Of an address whose GET may be work, or that is but the fixed part of many. 404 leaves it open who is there."""
    reply = await _options(http, uri, headers)
    return "unknown" if reply.status in _ABSENT else judge(reply.status, uri)


def health_address(uri: str, health: str) -> str:
    if health.startswith(("http://", "https://")):
        return health
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}/{health.lstrip('/')}"


def _below(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{name}"


async def _options(http: HTTPClient, uri: str, headers: dict[str, str]) -> Reply:
    with translated(ERRORS, upstream=public(uri)):
        return await http.request("OPTIONS", uri, headers=headers, timeout=ASK_SECONDS, limit=MANIFEST_BYTES)
