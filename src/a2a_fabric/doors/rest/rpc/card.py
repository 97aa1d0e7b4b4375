"""`/.well-known/agent.json`: the node as one agent with the capabilities of all its agents, for the RPC client.

The A2A standard once had its card at this path. It is now at `agent-card.json`, and at both names below each agent;
this path belongs to the RPC client, whatever the order of the doors."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, Forbidden, Unauthenticated
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.edge import RequestHead, send_reply
from a2a_fabric.doors.rest import errors, models
from a2a_fabric.doors.rest.agents import RestAgents
from a2a_fabric.doors.rest.http import RestDoorState, matches_etag
from a2a_fabric.version import __version__

CARD_PATH = "/.well-known/agent.json"
_ANONYMOUS = Principal()
_ALLOWED_METHODS = ("GET", "HEAD")
_CACHE_HEADERS = [(b"cache-control", b"no-cache"), (b"vary", b"Authorization, X-API-Key")]


class NodeCardEndpoint:
    """ASGI. The client that asks here shows no credentials, so without good ones it is what anybody may know."""

    def __init__(self, state: RestDoorState, agents: RestAgents) -> None:
        self._state = state
        self._agents = agents

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = RequestHead(scope["headers"])
        if scope["method"] not in _ALLOWED_METHODS:
            error = errors.MethodNotAllowed(", ".join(_ALLOWED_METHODS))
            await send_reply(
                send, 405, msgspec.json.encode(errors.build_error_body(error)), [(b"allow", error.methods.encode())]
            )
            return
        body = msgspec.json.encode(self._build_card(self._identify(head), self._state.get_base_url(scope, head)))
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        status = 304 if matches_etag(head.get(b"if-none-match"), etag) else 200
        await send_reply(send, status, body, [*_CACHE_HEADERS, (b"etag", etag.encode())])

    def _identify(self, head: RequestHead) -> Principal:
        try:
            return self._state.identify(head.credentials)
        except (Unauthenticated, AuthInvalid, AuthExpired, Forbidden):
            return _ANONYMOUS

    def _build_card(self, principal: Principal, base_url: str) -> models.AgentCard:
        capabilities = [
            each.name for manifest in self._agents.list_visible(principal) for each in manifest.capabilities
        ]
        return models.AgentCard(
            id=self._state.context.gateway.node_id,
            name="a2a-fabric",
            description="A gateway: its agents are listed at /v1/agents.",
            version=__version__,
            capabilities=tuple(dict.fromkeys(capabilities)),
            endpoint=base_url,
            auth=self._agents.auth,
            metadata={
                "agents": f"{base_url}/v1/agents",
                "openapi": f"{base_url}/openapi.json",
                **self._link_standard_card(base_url),
            },
        )

    def _link_standard_card(self, base_url: str) -> dict[str, str]:
        """Where a client of the A2A standard should have looked."""
        has_a2a_door = "a2a" in self._state.context.door_kinds
        return {"a2a_agent_card": f"{base_url}/.well-known/agent-card.json"} if has_a2a_door else {}
