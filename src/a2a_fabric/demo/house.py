"""The agents of the demo that are reached over the network, all in one process: each under its own path of one server.

An agent moves in when somebody first asks for it, so that nobody waits for the libraries of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from a2a_fabric.core.modules import load

App = Callable[[Any, Any, Any], Awaitable[None]]
Serving = Callable[[str], AbstractAsyncContextManager[App]]  # given its own address


class Tenant:
    """One agent: the module that has it says how it is served, by a function `serving`."""

    def __init__(self, module: str, url: str) -> None:
        self._module = module
        self._url = url
        self._moved_in: asyncio.Future[App] | None = None
        self._life: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    async def app(self) -> App:
        if self._moved_in is None:
            self._moved_in = asyncio.get_running_loop().create_future()
            self._life = asyncio.ensure_future(self._live(self._moved_in))
        return await asyncio.shield(self._moved_in)

    async def aclose(self) -> None:
        if self._life is not None:
            self._leaving.set()
            await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self, moved_in: asyncio.Future[App]) -> None:
        """In one task from the first to the last moment, as some libraries want it."""
        try:
            serving: Serving = (await asyncio.to_thread(load, self._module)).serving
            async with serving(self._url) as app:
                moved_in.set_result(app)
                await self._leaving.wait()
        except Exception as exc:
            if moved_in.done():
                raise
            moved_in.set_exception(exc)


class House:
    """The ASGI application: the first word of a path is the agent's name, the rest is the agent's own business."""

    def __init__(self, modules: Mapping[str, str], url: str) -> None:
        self._tenants = {name: Tenant(module, f"{url}/{name}") for name, module in modules.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _not_here(scope, receive, send)
            return
        _, name, *rest = scope["path"].split("/", 2)
        tenant = self._tenants.get(name)
        app = await tenant.app() if tenant is not None else _not_here
        path = "/" + "".join(rest)
        await app({**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, receive, send)

    async def aclose(self) -> None:
        await asyncio.gather(*(tenant.aclose() for tenant in self._tenants.values()))


async def _not_here(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
        return
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
