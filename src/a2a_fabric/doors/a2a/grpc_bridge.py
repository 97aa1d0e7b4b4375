"""The SDK's seam for servers, on our operations: what gRPC asks for, in both versions, goes the same way as the rest.

Messages become the JSON of 1.0 and back, so that there is one way to read them. Free data
knows no integers there: a whole number is one again here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError, SerializeToJsonError
from google.protobuf.message import Message as Proto

from a2a_fabric.a2a_wire.parts import with_whole_numbers
from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.trace import current_trace
from a2a_fabric.doors.a2a.faults import Fault, fault_of
from a2a_fabric.doors.a2a.grpc_edge import was_read
from a2a_fabric.doors.a2a.house import House
from a2a_fabric.doors.a2a.shapes import Told
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.a2a.writing import WRITERS

_log = logging.getLogger(__name__)

VISIT = "fabric.visit"
NUMBER = "a2a-fabric/number"
P = TypeVar("P", bound=Proto)


class Refused(A2AError):
    """A fault on its way through the SDK."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Bridge(RequestHandler):
    def __init__(self, house: House) -> None:
        self._house = house

    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task | pb.Message:
        reply = await self._asked("SendMessage", params, context, pb.SendMessageResponse())
        return reply.task if reply.HasField("task") else reply.message

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        async for event in self._events("SendStreamingMessage", params, context):
            yield event

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        async for event in self._events("SubscribeToTask", params, context):
            yield event

    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task | None:
        return await self._asked("GetTask", params, context, pb.Task())

    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        return await self._asked("ListTasks", params, context, pb.ListTasksResponse())

    async def on_cancel_task(self, params: pb.CancelTaskRequest, context: ServerCallContext) -> pb.Task | None:
        return await self._asked("CancelTask", params, context, pb.Task())

    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        return await self._asked("CreateTaskPushNotificationConfig", params, context, pb.TaskPushNotificationConfig())

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        return await self._asked("GetTaskPushNotificationConfig", params, context, pb.TaskPushNotificationConfig())

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        into = pb.ListTaskPushNotificationConfigsResponse()
        return await self._asked("ListTaskPushNotificationConfigs", params, context, into)

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        await self._asked("DeleteTaskPushNotificationConfig", params, context, pb.Task())

    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        return await self._asked("GetExtendedAgentCard", params, context, pb.AgentCard())

    async def _asked(self, operation: str, params: Proto, context: ServerCallContext, into: P) -> P:
        was_read.set(True)
        visit: Visit = context.state[VISIT]
        plain = self._house.plain[operation]
        with self._noted(operation, visit):
            result = await told_in_their_words(visit, lambda: plain(given_by(params), "1.0", visit))
            return filled(into, result or {})

    @contextmanager
    def _noted(self, operation: str, visit: Visit) -> Iterator[None]:
        """One line for each request; a call that went well has its own."""
        began_at, fault = time.perf_counter(), None
        try:
            yield
        except Refused as refused:
            fault = refused.fault
            raise
        finally:
            if fault is not None or not operation.startswith("Send"):
                code, message = (fault.reason, fault.message) if fault else (None, None)
                status, seconds = fault.words.http if fault else 200, time.perf_counter() - began_at
                name = f"a2a.{operation}"
                self._house.context.log(visit.trace, name, code=code, message=message, seconds=seconds, status=status)

    async def _events(self, operation: str, params: Proto, context: ServerCallContext) -> AsyncGenerator[Any]:
        was_read.set(True)
        visit: Visit = context.state[VISIT]
        streaming = self._house.streaming[operation]
        try:
            with self._house.stream(visit):
                with self._noted(operation, visit):
                    told = await told_in_their_words(visit, lambda: streaming(given_by(params), "1.0", visit))
                async for each in self._passed_on(told, visit):
                    yield each
        except FabricError as error:
            raise Refused(fault_of(error, visit.trace.trace_id)) from error

    async def _passed_on(self, told: AsyncGenerator[Told], visit: Visit) -> AsyncGenerator[Any]:
        async with aclosing(told):
            self._house.context.stream_opened(visit.principal.principal_id)
            try:
                while (each := await told_in_their_words(visit, lambda: _next(told))) is not None:
                    response = filled(pb.StreamResponse(), _numbered(each))
                    yield getattr(response, response.WhichOneof("payload") or "task")
            finally:
                self._house.context.stream_closed(visit.principal.principal_id)


def _numbered(told: Told) -> dict[str, Any]:
    """There is no other place for the number, from which a reader goes on who comes back."""
    said: dict[str, Any] = WRITERS["1.0"].said(told.update)
    if told.number is None or "message" in said:
        return said
    return {
        name: {**body, "metadata": {**body.get("metadata", {}), NUMBER: told.number}} for name, body in said.items()
    }


async def _next(told: AsyncGenerator[Told]) -> Told | None:
    return await anext(told, None)


R = TypeVar("R")


async def told_in_their_words(visit: Visit, work: Callable[[], Awaitable[R]]) -> R:
    """Raises Refused for everything that goes wrong."""
    try:
        return await work()
    except Refused:
        raise
    except Fault as fault:
        raise Refused(fault) from fault
    except FabricError as error:
        raise Refused(fault_of(error, visit.trace.trace_id)) from error
    except Exception as exc:
        current_trace.set(visit.trace)
        _log.exception("a request failed inside the gateway")
        raise Refused(fault_of(InternalError(), visit.trace.trace_id)) from exc


def given_by(params: Proto) -> dict[str, Any]:
    """Raises Refused for what JSON cannot hold: no number, a time that is none."""
    try:
        given: dict[str, Any] = with_whole_numbers(MessageToDict(params))
    except SerializeToJsonError as exc:
        raise Refused(Fault("INVALID_PARAMS", f"Invalid params: {exc}"[:300])) from exc
    return given


def filled(into: P, told: dict[str, Any]) -> P:
    """Raises Refused for what a proto cannot hold."""
    try:
        return ParseDict(told, into, ignore_unknown_fields=True)
    except ParseError as exc:
        raise Refused(Fault("INVALID_AGENT_RESPONSE", f"gRPC cannot carry the answer: {exc}"[:300])) from exc
