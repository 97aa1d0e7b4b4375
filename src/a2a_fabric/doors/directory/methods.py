"""The methods of the directory by name: what each takes, who does it, and where it may be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from a2a_fabric.core.errors import FabricError, nearest
from a2a_fabric.doors.directory.entries import AgentArgument, DiscoverParams, Entries
from a2a_fabric.doors.directory.faults import INVALID_PARAMS, METHOD_NOT_FOUND, Fault, fault_of
from a2a_fabric.doors.directory.joining import HeartbeatParams, Joining, LeaveParams, RegisterParams
from a2a_fabric.doors.directory.news import EventsParams, News
from a2a_fabric.doors.directory.task import AnswerParams, TaskArgument, TaskParams
from a2a_fabric.doors.directory.tasks import Tasks
from a2a_fabric.doors.directory.visit import Stream, Visit
from a2a_fabric.doors.directory.wire import Request

P = TypeVar("P")

PREFIX = "a2a/"
_SHOWN = 64


class Method(Generic[P]):
    """`for_agents`: it may also be asked at an agent's own address. `first`: in a batch it is done before the rest."""

    def __init__(
        self,
        params: type[P],
        handler: Callable[[P, Visit], Awaitable[dict[str, Any] | Stream]],
        *,
        for_agents: bool = False,
        first: bool = False,
        streams: bool = False,
    ) -> None:
        self.for_agents = for_agents
        self.first = first
        self.streams = streams
        self._handler = handler
        self._decoder = msgspec.json.Decoder(params)

    async def __call__(self, request: Request, visit: Visit) -> dict[str, Any] | Stream:
        """Raises Fault."""
        params = self._decoded(request)
        try:
            return await self._handler(params, visit)
        except FabricError as error:
            raise fault_of(error, visit.trace.trace_id) from error

    def _decoded(self, request: Request) -> P:
        try:
            return self._decoder.decode(request.params)
        except (msgspec.DecodeError, RecursionError) as exc:
            words, _, place = str(exc).partition(" - at `$")
            field = place.removeprefix(".").removesuffix("`")
            detail = f"{field}: {words}" if field else words
            data = {"reason": "bad_input", "code": "BAD_INPUT", "detail": detail, "field": field or None}
            raise Fault(INVALID_PARAMS, f"Invalid params: {detail}", detail=detail, data=data) from exc


class Methods:
    def __init__(self, entries: Entries, joining: Joining, tasks: Tasks, news: News) -> None:
        self._by_name: dict[str, Method[Any]] = {
            "a2a/register": Method(RegisterParams, joining.register, first=True),
            "a2a/heartbeat": Method(HeartbeatParams, joining.heartbeat, first=True),
            "a2a/unregister": Method(LeaveParams, joining.unregister, first=True),
            "a2a/discover": Method(DiscoverParams, entries.discover),
            "a2a/agent": Method(AgentArgument, entries.agent),
            "a2a/task": Method(TaskParams, tasks.do, for_agents=True),
            "a2a/stream": Method(TaskParams, tasks.stream, for_agents=True, streams=True),
            "a2a/status": Method(TaskArgument, tasks.status, for_agents=True),
            "a2a/answer": Method(AnswerParams, tasks.answer, for_agents=True),
            "a2a/cancel": Method(TaskArgument, tasks.cancel, for_agents=True),
            "a2a/events": Method(EventsParams, news.subscribe, streams=True),
        }

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def streams(self, name: str) -> bool:
        return self._by_name[name].streams

    def get(self, name: str) -> Method[Any] | None:
        return self._by_name.get(name)

    def find(self, name: str, *, at_agent: bool) -> Method[Any]:
        """Raises Fault."""
        method = self._by_name.get(name)
        if method is None or (at_agent and not method.for_agents):
            detail = f"There is no method '{name[:_SHOWN]}' here{nearest(name, self._by_name)}"
            raise Fault(METHOD_NOT_FOUND, f"Method not found: {name[:_SHOWN]}", detail=detail, bare=404)
        return method
