"""`/.well-known/agent.json`: the node as one agent that can do what all its agents can, as this client wants it.

The A2A standard once had its card at this address. Its card is at `agent-card.json` now, and
at both names below each agent; this one belongs to document 004, whatever the order of the doors.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, Forbidden, Unauthenticated
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.replying import whole
from a2a_fabric.doors.rest import faults, wire
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.entrance import is_known
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.version import __version__

PATH = "/.well-known/agent.json"
_STRANGER = Principal()
_VERBS = ("GET", "HEAD")
_KEPT = [(b"cache-control", b"no-cache"), (b"vary", b"Authorization, X-API-Key")]


class OwnCard:
    """ASGI. The client that asks here shows no credentials, so without good ones it is what anybody may know."""

    def __init__(self, place: Place, agents: Agents) -> None:
        self._place = place
        self._agents = agents

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = Head(scope["headers"])
        if scope["method"] not in _VERBS:
            error = faults.MethodNotAllowed(", ".join(_VERBS))
            await whole(send, 405, msgspec.json.encode(faults.body_of(error)), [(b"allow", error.verbs.encode())])
            return
        body = msgspec.json.encode(self._card(self._caller(head), self._place.base_of(scope, head)))
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        status = 304 if is_known(head.get(b"if-none-match"), tag) else 200
        await whole(send, status, body, [*_KEPT, (b"etag", tag.encode())])

    def _caller(self, head: Head) -> Principal:
        try:
            return self._place.identify(head.credentials)
        except (Unauthenticated, AuthInvalid, AuthExpired, Forbidden):
            return _STRANGER

    def _card(self, principal: Principal, base: str) -> wire.AgentCard:
        offered = [each.name for manifest in self._agents.known_to(principal) for each in manifest.capabilities]
        return wire.AgentCard(
            id=self._place.context.gateway.node_id,
            name="a2a-fabric",
            description="A gateway: its agents are listed at /v1/agents.",
            version=__version__,
            capabilities=tuple(dict.fromkeys(offered)),
            endpoint=base,
            auth=self._agents.auth,
            metadata={"agents": f"{base}/v1/agents", "openapi": f"{base}/openapi.json", **self._standard(base)},
        )

    def _standard(self, base: str) -> dict[str, str]:
        """Where a client of the A2A standard should have looked."""
        is_there = "a2a" in self._place.context.kinds
        return {"a2a_agent_card": f"{base}/.well-known/agent-card.json"} if is_there else {}
