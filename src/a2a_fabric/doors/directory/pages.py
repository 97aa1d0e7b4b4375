"""Everything below `/a2a/agents/`: a page about each agent, and the address at which it is sent tasks.

An id may hold anything, slashes too, so it is read off the path as the client
encoded it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.directory.entrance import Entrance
from a2a_fabric.doors.directory.place import Address, Place

AGENTS = "/a2a/agents"
_BELOW = f"{AGENTS}/"
_RPC = "/rpc"


class AgentAddresses:
    """ASGI."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await Entrance(self._place, address_of(_raw_path(scope)))(scope, receive, send)


def address_of(raw_path: str) -> Address:
    below = raw_path.removeprefix(_BELOW)
    is_rpc = below.endswith(_RPC)
    agent_id = unquote(below.removesuffix(_RPC) if is_rpc else below, errors="replace")
    asked = {"agentId": agent_id}
    if not is_rpc:
        return Address(page="a2a/agent", asked=asked, takes_posts=False)
    return Address(method="a2a/task", page="a2a/agent", asked=asked, agent_id=agent_id)


def _raw_path(scope: Any) -> str:
    """As it was sent; servers that do not tell leave encoded slashes undecided."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])
