"""A stand-in for the model behind an agent client: it asks for tools, one after another, then quotes the last answer.

It listens on loopback, so a client needs neither an account nor a network. Like
the real one it refuses a request with a tool that has no proper name or schema.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from aiohttp import web

from tests.conformance.model_apis.move import Asked, ModelAPI, Move

_ENDS_WITHIN = 5.0


class ModelStub:
    """Wants each of `calls`, a tool and its arguments, to be made as soon as the tool is offered."""

    def __init__(self, api: ModelAPI, *calls: tuple[str, dict[str, Any]]) -> None:
        self.url = ""
        self.offered: set[str] = set()
        self.answers: list[str] = []  # what tools said
        self.complaints: list[str] = []  # tools that an API would not take
        self._api = api
        self._calls = [Move(tool=tool, arguments=json.dumps(arguments)) for tool, arguments in calls]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "POST" or request.path != self._api.path:
            return error(404, "not_found_error", f"There is no {request.method} {request.path} here.")
        body = json.loads(await request.read())
        asked = self._api.read(body)
        complaints = [tool.complaint for tool in asked.tools if tool.complaint]
        if complaints:
            self.complaints += complaints
            return error(400, "invalid_request_error", complaints[0])
        return await _streamed(request, self._api.events(body, self._next(asked)))

    def _next(self, asked: Asked) -> Move:
        self.offered |= {tool.name for tool in asked.tools}
        self.answers = [*asked.results] or self.answers
        if len(asked.results) >= len(self._calls):
            return Move(text=f"The tool said: {asked.results[-1]}")
        call = self._calls[len(asked.results)]
        return call if call.tool in self.offered else Move(text=f"I was not offered {call.tool}.")


def error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"type": "error", "error": {"type": kind, "message": message}}, status=status)


async def _streamed(request: web.BaseRequest, events: list[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    await response.write_eof()
    return response


class Model(Protocol):
    """Whatever stands in for a model."""

    url: str

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse: ...


M = TypeVar("M", bound=Model)


@asynccontextmanager
async def serving_model(api: ModelAPI, *calls: tuple[str, dict[str, Any]]) -> AsyncIterator[ModelStub]:
    async with serving(ModelStub(api, *calls)) as stub:
        yield stub


@asynccontextmanager
async def serving(stub: M) -> AsyncIterator[M]:
    runner = web.ServerRunner(web.Server(stub.answer), shutdown_timeout=_ENDS_WITHIN)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        stub.url = f"http://{host}:{port}"
        yield stub
    finally:
        async with asyncio.timeout(2 * _ENDS_WITHIN):
            await runner.cleanup()
