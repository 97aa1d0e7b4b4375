"""A2A over HTTP+JSON, both versions: a path for everything that can be asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import FabricError
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.a2a.endpoint import Version
from a2a_fabric.runtimes.a2a.http_wire import HTTPWire
from a2a_fabric.runtimes.a2a.jsonrpc import PAGE
from a2a_fabric.runtimes.a2a.line import Errand
from a2a_fabric.runtimes.a2a.outgoing import Manner, Outgoing, params_of
from a2a_fabric.runtimes.a2a.pushes import PushPlace, push_request
from a2a_fabric.runtimes.a2a.refusals import by_status
from a2a_fabric.runtimes.a2a.said import Said, TaskSaid
from a2a_fabric.runtimes.a2a.wire import read_reply, read_tasks


class RESTLine:
    def __init__(self, wire: HTTPWire, version: Version, tenant: str = "") -> None:
        self.dialect: Dialect = "1.0" if version == "1.0" else "0.3 proto"
        self._wire = wire
        self._base = _base(wire.url, version, tenant)
        self._tenant = tenant if version == "1.0" else ""
        self._encoder = msgspec.json.Encoder()

    async def send(self, message: Outgoing, manner: Manner, errand: Errand) -> Said:
        return read_reply(await self._ask("POST", "/message:send", errand, self._body(message, manner)), self.dialect)

    def stream(self, message: Outgoing, manner: Manner, errand: Errand) -> AsyncGenerator[Said, None]:
        return self._events("POST", "/message:stream", errand, self._body(message, manner))

    async def get(self, task_id: str, errand: Errand, *, with_history: bool = False) -> Said:
        query = "?historyLength=0" if self.dialect == "1.0" and not with_history else ""
        return read_reply(await self._ask("GET", _task(task_id) + query, errand), self.dialect)

    async def subscribe(self, task_id: str, errand: Errand) -> AsyncGenerator[Said, None]:
        """By POST, as 1.0 has it; older servers know only GET."""
        path = f"{_task(task_id)}:subscribe"
        try:
            async with aclosing(self._events("POST", path, errand)) as events:
                async for said in events:
                    yield said
        except FabricError as exc:
            if exc.details.get("status") != 405:
                raise
            async with aclosing(self._events("GET", path, errand)) as events:
                async for said in events:
                    yield said

    async def cancel(self, task_id: str, errand: Errand) -> None:
        await self._ask("POST", f"{_task(task_id)}:cancel", errand, b"{}")

    async def push_to(self, place: PushPlace, task_id: str, errand: Errand) -> None:
        path = f"{_task(task_id)}/pushNotificationConfigs"
        await self._ask("POST", path, errand, self._encoder.encode(push_request(place, task_id, self.dialect)))

    async def tasks(self, context_id: str, errand: Errand) -> list[TaskSaid]:
        query = {"pageSize": PAGE, "historyLength": PAGE, **({"contextId": context_id} if context_id else {})}
        return read_tasks(await self._ask("GET", f"/tasks?{urlencode(query)}", errand), self.dialect)

    async def probe(self) -> Status:
        return await self._wire.probe_base()

    async def aclose(self) -> None:
        """Nothing of our own to release."""

    def _body(self, message: Outgoing, manner: Manner) -> bytes:
        return self._encoder.encode(params_of(message, manner, self.dialect, self._tenant))

    async def _ask(self, method: str, path: str, errand: Errand, body: bytes | None = None) -> bytes:
        return _body_of(await self._wire.ask(method, self._base + path, body, errand))

    async def _events(
        self, method: str, path: str, errand: Errand, body: bytes | None = None
    ) -> AsyncGenerator[Said, None]:
        async with aclosing(self._wire.events(method, self._base + path, body, errand)) as events:
            async for event in events:
                yield read_reply(_body_of(event) if isinstance(event, Reply) else event, self.dialect)


def _base(url: str, version: Version, tenant: str) -> str:
    base = url.partition("?")[0].rstrip("/")
    if version == "1.0":
        return f"{base}/{quote(tenant, safe='')}" if tenant else base
    return base if base.endswith("/v1") else f"{base}/v1"


def _task(task_id: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}"


def _body_of(reply: Reply) -> bytes:
    if not 200 <= reply.status < 300:  # redirects included: they are never followed
        raise by_status(reply.status, reply.body)
    return reply.body
