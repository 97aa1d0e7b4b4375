"""A caller's webhook, for tests of push notifications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fixtures.node import WAIT_TIMEOUT


@dataclass
class Receiver:
    """Refuses the first so many."""

    url: str = ""
    refusals: int = 0
    heard: asyncio.Queue[tuple[dict[str, str], bytes]] = field(default_factory=asyncio.Queue)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.heard.put_nowait(({name.lower(): value for name, value in request.headers.items()}, body))
        return web.Response()

    async def next(self) -> tuple[dict[str, str], dict[str, Any]]:
        async with asyncio.timeout(WAIT_TIMEOUT):
            headers, body = await self.heard.get()
        return headers, json.loads(body)

    async def state(self) -> str:
        """Of the task that is told of next."""
        return state_of((await self.next())[1])


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def state_of(told: dict[str, Any]) -> str:
    [inner] = told.values()
    return str(inner["status"]["state"])
