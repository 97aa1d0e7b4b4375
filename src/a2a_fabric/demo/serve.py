"""`python -m a2a_fabric.demo.serve`: serves the demo agents of the network until stdin ends.

All HTTP agents share one server, each under its own path. An agent is loaded on its
first request, so that no request waits for the libraries of the others. The first line
on stderr is a JSON object of URLs by agent name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.util import find_spec
from typing import Any

import uvicorn

from a2a_fabric.core.ports import load_module

App = Callable[[Any, Any, Any], Awaitable[None]]
ServeApp = Callable[[str], AbstractAsyncContextManager[App]]  # its argument is the URL of the agent


class LazyApp:
    """One agent, which its module serves with a function `serve`."""

    def __init__(self, module: str, url: str) -> None:
        self._module = module
        self._url = url
        self._ready: asyncio.Future[App] | None = None
        self._lifetime: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def get_app(self) -> App:
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._lifetime = asyncio.ensure_future(self._serve(self._ready))
        return await asyncio.shield(self._ready)

    async def aclose(self) -> None:
        if self._lifetime is not None:
            self._stopping.set()
            await asyncio.gather(self._lifetime, return_exceptions=True)

    async def _serve(self, ready: asyncio.Future[App]) -> None:
        """Some libraries need to be opened and closed by the same task, so this one lives as long as the agent."""
        try:
            serve: ServeApp = (await asyncio.to_thread(load_module, self._module)).serve
            async with serve(self._url) as app:
                ready.set_result(app)
                await self._stopping.wait()
        except Exception as exc:
            if ready.done():
                raise
            ready.set_exception(exc)


class DemoServer:
    """The ASGI application: the first segment of a path is the agent's name, the agent handles the rest."""

    def __init__(self, modules: Mapping[str, str], url: str) -> None:
        self._apps = {name: LazyApp(module, f"{url}/{name}") for name, module in modules.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _reply_not_found(scope, receive, send)
            return
        _, name, *rest = scope["path"].split("/", 2)
        lazy_app = self._apps.get(name)
        app = await lazy_app.get_app() if lazy_app is not None else _reply_not_found
        path = "/" + "".join(rest)
        has_left = False

        async def watch() -> Any:
            nonlocal has_left
            message = await receive()
            has_left = has_left or message["type"] == "http.disconnect"
            return message

        try:
            await app({**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, watch, send)
        except Exception:
            if not has_left:  # applications raise if their client has left, as a probe does that has waited long
                raise

    async def aclose(self) -> None:
        await asyncio.gather(*(lazy_app.aclose() for lazy_app in self._apps.values()))


async def _reply_not_found(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
        return
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


PACKAGE = "a2a_fabric.demo"
HTTP_AGENTS = ("scribe", "units", "almanac", "morse", "roman", "palette", "lab")
REQUIRED_LIBRARIES = {"almanac": "a2a"}  # agents that are left out where their library is not installed
GRPC_AGENT = "primes"
GRACE_SECONDS = 5  # for running calls after SIGTERM


def _stop_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    names = [name for name in HTTP_AGENTS if find_spec(REQUIRED_LIBRARIES.get(name, PACKAGE)) is not None]
    server = DemoServer({name: f"{PACKAGE}.{name}" for name in names}, url)
    config = uvicorn.Config(
        server, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_SECONDS
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(listener)
        stack.push_async_callback(server.aclose)
        urls = {name: f"{url}/{name}" for name in names}
        if find_spec("grpc") is not None:
            urls[GRPC_AGENT] = await stack.enter_async_context(load_module(f"{PACKAGE}.{GRPC_AGENT}").serve())
        sys.stderr.write(json.dumps(urls) + "\n")
        sys.stderr.flush()
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    threading.Thread(target=_stop_with_stdin, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again after its shutdown
    asyncio.run(main())
