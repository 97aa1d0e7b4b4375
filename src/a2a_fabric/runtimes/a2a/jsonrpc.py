"""A2A over JSON-RPC, both versions: one address, and a name for everything that can be asked."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.agent import Status
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.a2a.endpoint import Version
from a2a_fabric.runtimes.a2a.http_wire import HTTPWire
from a2a_fabric.runtimes.a2a.line import Errand
from a2a_fabric.runtimes.a2a.outgoing import Manner, Outgoing, params_of
from a2a_fabric.runtimes.a2a.pushes import PushPlace
from a2a_fabric.runtimes.a2a.refusals import by_status
from a2a_fabric.runtimes.a2a.said import Said, TaskSaid
from a2a_fabric.runtimes.a2a.wire import heed_rpc, read_rpc, read_rpc_tasks

_METHODS: dict[Version, dict[str, str]] = {
    "1.0": {
        "send": "SendMessage",
        "stream": "SendStreamingMessage",
        "get": "GetTask",
        "subscribe": "SubscribeToTask",
        "cancel": "CancelTask",
        "push": "CreateTaskPushNotificationConfig",
    },
    "0.3": {
        "send": "message/send",
        "stream": "message/stream",
        "get": "tasks/get",
        "subscribe": "tasks/resubscribe",
        "cancel": "tasks/cancel",
        "push": "tasks/pushNotificationConfig/set",
    },
}
PAGE = 50


class JSONRPCLine:
    def __init__(self, wire: HTTPWire, version: Version, tenant: str = "") -> None:
        self.dialect: Dialect = version
        self._wire = wire
        self._tenant = tenant
        self._methods = _METHODS[version]
        self._ids = itertools.count(1)
        self._encoder = msgspec.json.Encoder()

    async def send(self, message: Outgoing, manner: Manner, errand: Errand) -> Said:
        params = params_of(message, manner, self.dialect, self._tenant)
        return read_rpc(await self._ask(self._methods["send"], params, errand), self.dialect)

    def stream(self, message: Outgoing, manner: Manner, errand: Errand) -> AsyncGenerator[Said, None]:
        params = params_of(message, manner, self.dialect, self._tenant)
        return self._events(self._methods["stream"], params, errand)

    async def get(self, task_id: str, errand: Errand, *, with_history: bool = False) -> Said:
        params = self._of(task_id)
        if self.dialect == "1.0" and not with_history:
            params["historyLength"] = 0
        return read_rpc(await self._ask(self._methods["get"], params, errand), self.dialect)

    def subscribe(self, task_id: str, errand: Errand) -> AsyncGenerator[Said, None]:
        return self._events(self._methods["subscribe"], self._of(task_id), errand)

    async def cancel(self, task_id: str, errand: Errand) -> None:
        read_rpc(await self._ask(self._methods["cancel"], self._of(task_id), errand), self.dialect)

    async def push_to(self, place: PushPlace, task_id: str, errand: Errand) -> None:
        written = place.written(self.dialect)
        is_new = self.dialect == "1.0"
        params: dict[str, Any] = {"taskId": task_id, **(written if is_new else {"pushNotificationConfig": written})}
        params |= {"tenant": self._tenant} if self._tenant else {}
        heed_rpc(await self._ask(self._methods["push"], params, errand))

    async def tasks(self, context_id: str, errand: Errand) -> list[TaskSaid]:
        params: dict[str, Any] = {"pageSize": PAGE, "historyLength": PAGE}
        params |= {"contextId": context_id} if context_id else {}
        params |= {"tenant": self._tenant} if self._tenant else {}
        return read_rpc_tasks(await self._ask("ListTasks", params, errand), self.dialect)

    async def probe(self) -> Status:
        return await self._wire.probe_endpoint()

    async def aclose(self) -> None:
        """Nothing of our own to release."""

    def _of(self, task_id: str) -> dict[str, Any]:
        return {"id": task_id, "tenant": self._tenant} if self._tenant else {"id": task_id}

    def _body(self, method: str, params: dict[str, Any]) -> bytes:
        return self._encoder.encode({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    async def _ask(self, method: str, params: dict[str, Any], errand: Errand) -> bytes:
        return _body_of(await self._wire.ask("POST", self._wire.url, self._body(method, params), errand))

    async def _events(self, method: str, params: dict[str, Any], errand: Errand) -> AsyncGenerator[Said, None]:
        async with aclosing(self._wire.events("POST", self._wire.url, self._body(method, params), errand)) as events:
            async for event in events:
                yield read_rpc(_body_of(event) if isinstance(event, Reply) else event, self.dialect)


def _body_of(reply: Reply) -> bytes:
    """JSON-RPC whatever the status; without it, the status is all there is. Raises FabricError."""
    if 200 <= reply.status < 300:
        return reply.body
    if reply.status >= 400 and b'"jsonrpc"' in reply.body and b'"error"' in reply.body:
        return reply.body
    raise by_status(reply.status, reply.body)
