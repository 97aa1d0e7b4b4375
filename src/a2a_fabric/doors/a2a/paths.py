"""Which addresses are ours: an agent's at `/agents/{id}`, the gateway's own at `/gateway`, and the well-known ones.

Others live at the same places (`/agents/{id}/mcp`, a page about each agent), so nothing is
taken but what the protocol knows, by method and path.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from starlette.routing import BaseRoute, Match

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.doors.a2a.cards import GATEWAY
from a2a_fabric.doors.a2a.versions import HEADER
from a2a_fabric.doors.context import ASGIApp, Receive, Send

SCOPE = "fabric.a2a"
AGENTS = "/agents/"
_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_PLAIN: dict[str, dict[str, str]] = {
    "/message:send": {"POST": "SendMessage"},
    "/message:stream": {"POST": "SendStreamingMessage"},
    "/tasks": {"GET": "ListTasks"},
    "/extendedAgentCard": {"GET": "GetExtendedAgentCard"},
    "/card": {"GET": "GetExtendedAgentCard"},  # of 0.3
}
_TASK = {"GET": "GetTask"}
_CANCEL = {"POST": "CancelTask"}
_SUBSCRIBE = {"GET": "SubscribeToTask", "POST": "SubscribeToTask"}
_CONFIGS = {"POST": "CreateTaskPushNotificationConfig", "GET": "ListTaskPushNotificationConfigs"}
_CONFIG = {"GET": "GetTaskPushNotificationConfig", "DELETE": "DeleteTaskPushNotificationConfig"}
_PUSH = "pushNotificationConfigs"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a path stands for. No agent: the gateway itself. `methods` are those of HTTP and what each asks for."""

    kind: Literal["rpc", "card", "rest"]
    agent_id: str | None = None
    dialect: Dialect = "1.0"
    methods: dict[str, str] = {}
    task_id: str | None = None
    config_id: str | None = None


def place_of(path: str) -> Place | None:
    """None for what is none of ours."""
    if path in _CARDS:
        return Place(kind="card", methods=_reads())
    if path.startswith(AGENTS):
        agent_id, _, rest = path.removeprefix(AGENTS).partition("/")
        return _below(f"/{rest}" if rest else "", unquote(agent_id)) if agent_id else None
    if path == GATEWAY or path.startswith(f"{GATEWAY}/"):
        return _below(path.removeprefix(GATEWAY).rstrip("/") or "", None)
    return None


def _below(rest: str, agent_id: str | None) -> Place | None:
    if rest in ("", "/"):
        return Place(kind="rpc", agent_id=agent_id, methods={"POST": ""})
    if rest in _CARDS:
        return Place(kind="card", agent_id=agent_id, methods=_reads())
    is_old = rest.startswith("/v1/")
    dialect: Dialect = "0.3 proto" if is_old else "1.0"
    found = _rest(rest.removeprefix("/v1") if is_old else rest)
    return None if found is None else msgspec.structs.replace(found, agent_id=agent_id, dialect=dialect)


def _rest(path: str) -> Place | None:
    if path in _PLAIN:
        return Place(kind="rest", methods=_PLAIN[path])
    if not path.startswith("/tasks/"):
        return None
    task_id, _, below = path.removeprefix("/tasks/").partition("/")
    if not below:
        name, colon, verb = task_id.rpartition(":")
        if colon and verb in ("cancel", "subscribe"):
            methods = _CANCEL if verb == "cancel" else _SUBSCRIBE
            return Place(kind="rest", methods=methods, task_id=unquote(name))
        return Place(kind="rest", methods=_TASK, task_id=unquote(task_id))
    if below == _PUSH:
        return Place(kind="rest", methods=_CONFIGS, task_id=unquote(task_id))
    head, _, config_id = below.partition("/")
    if head == _PUSH and config_id and "/" not in config_id:
        return Place(kind="rest", methods=_CONFIG, task_id=unquote(task_id), config_id=unquote(config_id))
    return None


def _nowhere(path: str, scope: Any) -> Place | None:
    """A client of ours, as its header says, that asks for what the protocol does not have."""
    is_below = path.startswith((AGENTS, f"{GATEWAY}/"))
    return Place(kind="rest") if is_below and any(name == HEADER for name, _ in scope["headers"]) else None


def _reads() -> dict[str, str]:
    return {"GET": "", "HEAD": ""}


class A2ARoute(BaseRoute):
    """For the router. A path of ours asked with another method is left to others, then refused."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if scope["type"] != "http":
            return Match.NONE, {}
        raw = scope.get("raw_path")
        path = raw.decode("latin-1").partition("?")[0] if raw else scope["path"]
        place = place_of(path) or _nowhere(path, scope)
        if place is None:
            return Match.NONE, {}
        if scope["method"] in place.methods:
            return Match.FULL, {SCOPE: place}
        return (Match.NONE if place.kind == "rpc" else Match.PARTIAL), {SCOPE: place}

    async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Nobody asks by name."""
        raise LookupError(name)
