"""Which era a server over HTTP speaks: asked once, with the stateless era's own first question."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from a2a_fabric.doors.http import Head
from a2a_fabric.outbound.port import HTTPClient, OutboundError
from a2a_fabric.outbound.tunnel import Address

STATELESS = "2026-07-28"
_VERSION = b"mcp-protocol-version"
_STATELESS_SINCE = "2026"
_TIMEOUT = 10.0
_ANSWER_BYTES = 4 << 20
_DOUBT = 60.0  # seconds after which a server that did not know is asked again: it may be a newer one now
_QUESTION = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": STATELESS,
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
    "mcp-protocol-version": STATELESS,
    "mcp-method": "server/discover",
}


def is_stateless(head: Head) -> bool:
    """Whether a request says that it belongs to no session."""
    version = head.get(_VERSION)
    return version is not None and version[:4] >= _STATELESS_SINCE


class Probe:
    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._found: dict[str, tuple[str, bool, float]] = {}  # by agent: address, answer, when

    async def knows_stateless(self, agent_id: str, address: Address, passed: Mapping[str, str] = {}) -> bool:
        """True as well if it cannot be found out: then what it says to the request itself is its answer."""
        uri, knows, found_at = self._found.get(agent_id, ("", False, 0.0))
        if uri == address.uri and (knows or time.monotonic() - found_at < _DOUBT):
            return knows
        found = await self._ask(address, passed)
        if found is None:
            return True
        self._found[agent_id] = (address.uri, found, time.monotonic())
        return found

    async def _ask(self, address: Address, passed: Mapping[str, str]) -> bool | None:
        ours = {name.lower(): value for name, value in address.headers.items()}
        try:
            reply = await self._http.request(
                "POST",
                address.uri,
                headers={**_HEADERS, **ours, **passed},
                body=_QUESTION,
                timeout=_TIMEOUT,
                limit=_ANSWER_BYTES,
            )
        except OutboundError:
            return None
        if reply.status in (401, 403, 429) or reply.status >= 500 or 300 <= reply.status < 400:
            return None
        return 200 <= reply.status < 300 and b'"supportedVersions"' in reply.body
