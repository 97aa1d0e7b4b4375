"""The methods of the directory by name: parameters, handler, and where each may be called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from a2a_fabric.core.errors import suggest_nearest
from a2a_fabric.doors.directory.discover import AgentDirectory, DirectoryAgentParams, DiscoverParams
from a2a_fabric.doors.directory.errors import DirectoryProtocolError
from a2a_fabric.doors.directory.events import DirectoryEvents, DirectoryEventsParams
from a2a_fabric.doors.directory.jsonrpc import DirectoryRpcRequest
from a2a_fabric.doors.directory.register import DirectoryRegistration, HeartbeatParams, RegisterParams, UnregisterParams
from a2a_fabric.doors.directory.request_context import DirectoryRequestContext, DirectoryStream
from a2a_fabric.doors.directory.task_chain import DirectoryAnswerParams, DirectoryTaskIdParams, DirectoryTaskParams
from a2a_fabric.doors.directory.tasks import DirectoryTasks
from a2a_fabric.doors.edge import split_validation_error
from a2a_fabric.protocols.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND

P = TypeVar("P")

_MAX_ECHO = 64


class DirectoryMethod(Generic[P]):
    """`allowed_at_agent`: also served at an agent's own path. `runs_first`: in a batch it runs before the rest."""

    def __init__(
        self,
        params: type[P],
        handler: Callable[[P, DirectoryRequestContext], Awaitable[dict[str, Any] | DirectoryStream]],
        *,
        allowed_at_agent: bool = False,
        runs_first: bool = False,
        is_streaming: bool = False,
    ) -> None:
        self.allowed_at_agent = allowed_at_agent
        self.runs_first = runs_first
        self.is_streaming = is_streaming
        self._handler = handler
        self._decoder = msgspec.json.Decoder(params)

    async def __call__(
        self, rpc_request: DirectoryRpcRequest, context: DirectoryRequestContext
    ) -> dict[str, Any] | DirectoryStream:
        """Raises DirectoryProtocolError, FabricError."""
        return await self._handler(self._decode_params(rpc_request), context)

    def _decode_params(self, rpc_request: DirectoryRpcRequest) -> P:
        try:
            return self._decoder.decode(rpc_request.params)
        except (msgspec.DecodeError, RecursionError) as exc:
            field, message = split_validation_error(exc)
            detail = f"{field}: {message}" if field else message
            data = {"reason": "bad_input", "code": "BAD_INPUT", "detail": detail, "field": field or None}
            raise DirectoryProtocolError(INVALID_PARAMS, f"Invalid params: {detail}", detail=detail, data=data) from exc


class DirectoryMethods:
    def __init__(
        self,
        directory: AgentDirectory,
        registration: DirectoryRegistration,
        tasks: DirectoryTasks,
        events: DirectoryEvents,
    ) -> None:
        self._by_name: dict[str, DirectoryMethod[Any]] = {
            "a2a/register": DirectoryMethod(RegisterParams, registration.register, runs_first=True),
            "a2a/heartbeat": DirectoryMethod(HeartbeatParams, registration.heartbeat, runs_first=True),
            "a2a/unregister": DirectoryMethod(UnregisterParams, registration.unregister, runs_first=True),
            "a2a/discover": DirectoryMethod(DiscoverParams, directory.discover),
            "a2a/agent": DirectoryMethod(DirectoryAgentParams, directory.get_agent),
            "a2a/task": DirectoryMethod(DirectoryTaskParams, tasks.run_task, allowed_at_agent=True),
            "a2a/stream": DirectoryMethod(
                DirectoryTaskParams, tasks.stream_task, allowed_at_agent=True, is_streaming=True
            ),
            "a2a/status": DirectoryMethod(DirectoryTaskIdParams, tasks.get_task_status, allowed_at_agent=True),
            "a2a/answer": DirectoryMethod(DirectoryAnswerParams, tasks.answer_questions, allowed_at_agent=True),
            "a2a/cancel": DirectoryMethod(DirectoryTaskIdParams, tasks.cancel_task, allowed_at_agent=True),
            "a2a/events": DirectoryMethod(DirectoryEventsParams, events.subscribe, is_streaming=True),
        }

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def is_streaming(self, name: str) -> bool:
        return self._by_name[name].is_streaming

    def get(self, name: str) -> DirectoryMethod[Any] | None:
        return self._by_name.get(name)

    def find(self, name: str, *, at_agent: bool) -> DirectoryMethod[Any]:
        """Raises DirectoryProtocolError."""
        method = self._by_name.get(name)
        if method is None or (at_agent and not method.allowed_at_agent):
            detail = f"There is no method '{name[:_MAX_ECHO]}' here{suggest_nearest(name, self._by_name)}"
            raise DirectoryProtocolError(
                METHOD_NOT_FOUND, f"Method not found: {name[:_MAX_ECHO]}", detail=detail, bare_status=404
            )
        return method
