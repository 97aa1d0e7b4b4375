"""`GET /readyz`: whether requests should be sent to this node now, for load balancers and orchestrators.

The node is ready while its doors are open (it has not begun to stop) and its store answers. `/health` only says
that the process answers. Callers need no credentials, so the store is asked at most once a second, however often
they ask, and never waited for long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/readyz"
_STORE_SECONDS = 2.0
_KEPT_SECONDS = 1.0

_log = logging.getLogger(__name__)

State = Literal["ok", "down"]


class Readiness:
    """`check_store` raises if the store cannot be used; None for a node without one."""

    def __init__(self, check_store: Callable[[], Awaitable[object]] | None) -> None:
        self._check_store = check_store
        self._is_stopping = False
        self._checking: asyncio.Task[State] | None = None
        self._checked_at = 0.0

    @property
    def route(self) -> Route:
        return Route(PATH, self._answer, methods=["GET"])

    def stop(self) -> None:
        self._is_stopping = True

    async def _answer(self, request: Request) -> Response:
        store = await self._store()
        is_ready = store == "ok" and not self._is_stopping
        checks = {"doors": "closing" if self._is_stopping else "open", "store": store}
        body = {"status": "ready" if is_ready else "not ready", "checks": checks}
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(body), 200 if is_ready else 503, headers, media_type="application/json")

    async def _store(self) -> State:
        """All who ask within the same second share one question to the store."""
        if self._checking is None or (self._checking.done() and time.monotonic() - self._checked_at > _KEPT_SECONDS):
            self._checking = asyncio.ensure_future(self._ask_store())
        return await asyncio.shield(self._checking)

    async def _ask_store(self) -> State:
        try:
            if self._check_store is not None:
                async with asyncio.timeout(_STORE_SECONDS):
                    await self._check_store()
        except Exception as exc:  # whatever a store raises, it cannot be used
            _log.warning("the store does not answer: %s", str(exc)[:200] or type(exc).__name__)
            return "down"
        finally:
            self._checked_at = time.monotonic()
        return "ok"
