"""A request whose address has moved: newer versions of Agent Zero have it below `/api`."""

from __future__ import annotations

from typing import Any

from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.json_api import JSONAPI, object_or_empty

_UNKNOWN = (404, 405)  # the second from versions whose pages take any path, but only to be read


class Moved:
    """Remembers where it was found."""

    def __init__(self, api: JSONAPI, name: str) -> None:
        self._api = api
        self._path, self._older = f"/api/{name}", f"/{name}"

    async def post(self, body: dict[str, Any], call: Call) -> Reply:
        """The reply, whatever its status. What was not found has not run, so it may be sent again."""
        timeout, headers = call.target.timeout_ms / 1000, journey_headers(call)
        reply = await self._api.post(self._path, body, timeout=timeout, headers=headers)
        if reply.status not in _UNKNOWN or "error" in object_or_empty(reply.body):
            return reply
        other = await self._api.post(self._older, body, timeout=timeout, headers=headers)
        if other.status not in _UNKNOWN:
            self._path, self._older = self._older, self._path
        return other
