"""Detects the MCP era: of a request by its version header, of an HTTP server by one `server/discover` request."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.outbound.port import HTTPClient, OutboundError
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel

STATELESS_VERSION = "2026-07-28"
_VERSION_HEADER = b"mcp-protocol-version"
_STATELESS_SINCE = "2026"
_TIMEOUT = 10.0
_MAX_REPLY_BYTES = 4 << 20
_RECHECK_AFTER = 60.0  # seconds after which a server that did not know is asked again: it may be a newer one now
_DISCOVER_REQUEST = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": STATELESS_VERSION,
                "io.modelcontextprotocol/clientInfo": {"name": "a2a-fabric", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
)
_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",
    "mcp-protocol-version": STATELESS_VERSION,
    "mcp-method": "server/discover",
}


def is_stateless_request(head: RequestHead) -> bool:
    """Whether a request says that it belongs to no session."""
    version = head.get(_VERSION_HEADER)
    return version is not None and version[:4] >= _STATELESS_SINCE


class EraProbe:
    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._results: dict[str, tuple[str, bool, float]] = {}  # by agent: address, answer, when

    async def is_stateless_server(
        self, agent_id: str, address: HTTPTunnel, chain_headers: Mapping[str, str] = {}
    ) -> bool:
        """True as well if it cannot be found out: then what it says to the request itself is its answer."""
        uri, is_stateless, probed_at = self._results.get(agent_id, ("", False, 0.0))
        if uri == address.uri and (is_stateless or time.monotonic() - probed_at < _RECHECK_AFTER):
            return is_stateless
        answer = await self._send_discover(address, chain_headers)
        if answer is None:
            return True
        self._results[agent_id] = (address.uri, answer, time.monotonic())
        return answer

    async def _send_discover(self, address: HTTPTunnel, chain_headers: Mapping[str, str]) -> bool | None:
        own_headers = {name.lower(): value for name, value in address.headers.items()}
        try:
            reply = await self._http.request(
                "POST",
                address.uri,
                headers={**_HEADERS, **own_headers, **chain_headers},
                body=_DISCOVER_REQUEST,
                timeout=_TIMEOUT,
                limit=_MAX_REPLY_BYTES,
            )
        except OutboundError:
            return None
        if reply.status in (401, 403, 429) or reply.status >= 500 or 300 <= reply.status < 400:
            return None
        return 200 <= reply.status < 300 and b'"supportedVersions"' in reply.body
