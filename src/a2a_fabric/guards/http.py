"""The guard `http`: an address of the operator's decides. It gets the request as JSON and answers with a verdict.

POST {"phase": "arguments", "agent_id": …, "capability": …, "principal_id": …, "trace_id": …, "payload": {…}}
200  {"action": "allow"}  or  {"action": "refuse", "reason": …}  or  {"action": "replace", "payload": {…}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.guards import CallGuard, GuardRequest, GuardVerdict
from a2a_fabric.outbound.client import OutboundClient

_MAX_REPLY = 32 * 1024 * 1024
_TIMEOUT = 60.0  # the guard's own time limit is shorter


class HTTPGuardOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern="^https?://", max_length=2048)]
    headers: dict[str, str] = {}


class HTTPGuard:
    def __init__(self, options: HTTPGuardOptions, http: OutboundClient) -> None:
        self._options = options
        self._http = http

    async def __call__(self, request: GuardRequest) -> GuardVerdict:
        """Raises what the client raises, and ValueError for a reply that is no verdict."""
        reply = await self._http.request(
            "POST",
            self._options.url,
            headers={"content-type": "application/json", **self._options.headers},
            body=msgspec.json.encode(request),
            timeout=_TIMEOUT,
            limit=_MAX_REPLY,
        )
        if reply.status != 200:
            raise ValueError(f"HTTP {reply.status}")
        verdict = msgspec.json.decode(reply.body, type=GuardVerdict)
        if verdict.action == "replace" and verdict.payload is None:
            raise ValueError("the verdict `replace` needs a payload")
        return verdict

    async def aclose(self) -> None:
        await self._http.aclose()


def build(options: Mapping[str, Any]) -> CallGuard:
    """Raises ConfigError."""
    try:
        return HTTPGuard(msgspec.convert(dict(options), HTTPGuardOptions), OutboundClient())
    except msgspec.ValidationError as exc:
        raise ConfigError(f"options: {exc}") from exc
