"""The last words to agents whose callers have left: their work is cancelled, and nobody waits for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from a2a_fabric.core.errors import FabricError

_log = logging.getLogger(__name__)

SECONDS = 5.0  # for one farewell
_MOST = 256  # at a time, to one agent


class Farewells:
    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._under_way: set[asyncio.Task[None]] = set()

    def say(self, request: Coroutine[Any, Any, object]) -> bool:
        """Send it, whatever becomes of the caller. False: there are too many, and it is not sent."""
        if len(self._under_way) >= _MOST:
            request.close()
            _log.warning("%s: too many calls are being cancelled; one is not told", self._agent_id)
            return False
        task = asyncio.get_running_loop().create_task(self._said(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return True

    async def _said(self, request: Coroutine[Any, Any, object]) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await request
        except (FabricError, TimeoutError) as exc:
            _log.info("%s could not be told that its work is cancelled: %s", self._agent_id, exc)

    async def aclose(self) -> None:
        """Those under way are short; they are heard out."""
        if self._under_way:
            await asyncio.wait(list(self._under_way))
