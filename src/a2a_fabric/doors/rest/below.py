"""A route for everything below a prefix, whatever it holds: the router's own patterns end at a line break."""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute, Match

from a2a_fabric.doors.context import ASGIApp, Receive, Send


class Below(BaseRoute):
    def __init__(self, prefix: str, app: ASGIApp) -> None:
        self._prefix = prefix
        self._app = app

    def matches(self, scope: Any) -> tuple[Match, Any]:
        is_ours = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL if is_ours else Match.NONE), {}

    async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Nobody asks by name."""
        raise LookupError(name)
