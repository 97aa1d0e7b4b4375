"""Health probes over HTTP: is the agent there? A probe never asks the agent to work.

A server that answers is not yet the agent: 404 and 410 mean that nothing is at the address,
5xx that it is broken. Any other answer comes from the agent, even if it refuses
the method (405, 501) or the credentials (401, 403)."""

from __future__ import annotations

from urllib.parse import urlsplit

from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import AgentOffline, UpstreamFailed, translated
from a2a_fabric.outbound.port import HTTPClient, HTTPReply
from a2a_fabric.runtimes.upstream import MANIFEST_BYTES, PROBE_TIMEOUT, TRANSPORT_ERRORS, get_quickly, redact_url

_ABSENT_STATUSES = (404, 410)
_NOT_IMPLEMENTED = 501
_HINT = "if it takes only POST requests there, name a health check in its endpoint as `health`"


def check_probe_status(status: int, address: str) -> Status:
    """Raises AgentOffline if nothing is at this address, UpstreamFailed if what is there is broken."""
    if status in _ABSENT_STATUSES:
        raise AgentOffline(
            f"Nothing is at {redact_url(address)}: it answered a probe with HTTP {status}", status=status
        )
    if status >= 500 and status != _NOT_IMPLEMENTED:
        raise UpstreamFailed(f"{redact_url(address)} answered a probe with HTTP {status}", status=status)
    return "online"


async def probe_page(http: HTTPClient, address: str, headers: dict[str, str]) -> Status:
    """Of a page that is there to be read: a health check, a card, a document. Raises FabricError."""
    return check_probe_status((await get_quickly(http, address, headers)).status, address)


async def probe_agent(http: HTTPClient, uri: str, health: str | None, headers: dict[str, str]) -> Status:
    """Of an agent that takes POST requests. `health` is the path or the address of its health check, if declared.

    Some servers answer 404 to a GET where they take a POST. Then the methods that they allow there,
    or a health page below the agent's own address, show that it is there. Raises FabricError.
    """
    if health is not None:
        return await probe_page(http, build_health_url(uri, health), headers)
    reply = await get_quickly(http, uri, headers)
    if reply.status not in _ABSENT_STATUSES:
        return check_probe_status(reply.status, uri)
    if "POST" in (await _send_options(http, uri, headers)).headers.get("allow", "").upper():
        return "online"
    if (await get_quickly(http, _append_path(uri, "health"), headers)).status == 200:
        return "online"
    reason = f"Nothing is at {redact_url(uri)}: it answered a probe with HTTP {reply.status}; {_HINT}"
    raise AgentOffline(reason, status=reply.status)


async def probe_resource(http: HTTPClient, uri: str, headers: dict[str, str]) -> Status:
    """Of an address whose GET may be work, or that is but the fixed part of many. 404 leaves it open who is there."""
    reply = await _send_options(http, uri, headers)
    return "unknown" if reply.status in _ABSENT_STATUSES else check_probe_status(reply.status, uri)


def build_health_url(uri: str, health: str) -> str:
    if health.startswith(("http://", "https://")):
        return health
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}/{health.lstrip('/')}"


def _append_path(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{name}"


async def _send_options(http: HTTPClient, uri: str, headers: dict[str, str]) -> HTTPReply:
    with translated(TRANSPORT_ERRORS, upstream=redact_url(uri)):
        return await http.request("OPTIONS", uri, headers=headers, timeout=PROBE_TIMEOUT, limit=MANIFEST_BYTES)
