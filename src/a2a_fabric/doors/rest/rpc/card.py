"""`/.well-known/agent.json`: the node as one agent that can do what all its agents can, as this client wants it.

The door of the A2A standard has a card at the same address; whichever door stands first is asked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.rest import wire
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.reply import whole
from a2a_fabric.version import __version__

_STRANGER = Principal()


class OwnCard:
    """ASGI. It shows what anybody may know."""

    def __init__(self, place: Place, agents: Agents) -> None:
        self._place = place
        self._agents = agents

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        base = self._place.base_of(scope, Head(scope["headers"]))
        offered = [each.name for manifest in self._agents.known_to(_STRANGER) for each in manifest.capabilities]
        card = wire.AgentCard(
            id=self._place.context.gateway.node_id,
            name="a2a-fabric",
            description="A gateway: its agents are listed at /v1/agents.",
            version=__version__,
            capabilities=tuple(dict.fromkeys(offered)),
            endpoint=base,
            auth=self._agents.auth,
            metadata={"agents": f"{base}/v1/agents", "openapi": f"{base}/openapi.json"},
        )
        await whole(send, 200, msgspec.json.encode(card), [(b"cache-control", b"no-cache")])
