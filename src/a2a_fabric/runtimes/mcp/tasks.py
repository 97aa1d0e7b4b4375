"""Calls that an MCP server answers with a task: the task is polled until it ends, and its questions are asked.

Servers of 2025-11-25 make a task if the client asks for one, which Fabric does for tools that require it. The reply to
`tasks/result` is the reply to the call; the server's questions come while that request waits. Servers with the
extension `io.modelcontextprotocol/tasks` (2026-07-28) decide by themselves. There `tasks/get` holds result and
questions, and `tasks/update` takes the answers.

A task is followed inside the pending request of its call. So an answer finds it as it finds any other call, only its
own caller can answer, and a call that ends before its task cancels the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.errors import CallTimeout, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.result import status
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, error_from_rpc_error
from a2a_fabric.runtimes.mcp.questions import PendingMcpRequest, SessionReply, read_question
from a2a_fabric.runtimes.mcp.sessions import Era, is_task_result
from a2a_fabric.runtimes.mcp.supervisor import McpConnectionSupervisor
from a2a_fabric.runtimes.remote_work import POLL_TIMEOUT, BackgroundCancels, poll_until

_WORKING = "working"
_INPUT_REQUIRED = "input_required"
_LOST = "lost"  # our own word: the server no longer knows the task
_MAX_ID_LENGTH = 1024
_MAX_MESSAGE = 2000  # characters of a status message
_MAX_PAUSE = 30.0  # seconds between two polls, whatever the server asks for
_MIN_PAUSE = 0.02
_MAX_FAILURES = 5
_PAUSE_AFTER_FAILURE = 0.5  # seconds
_RETENTION_MARGIN = 600.0  # seconds that a server is asked to keep a task beyond the call's own time


class McpTask(msgspec.Struct, frozen=True, rename="camel"):
    """A task as either revision describes it; the result, the error and the questions only in the extension."""

    task_id: str
    status: str = _WORKING
    status_message: str | None = None
    poll_interval: float | None = None  # in milliseconds, as is the extension's field
    poll_interval_ms: float | None = None
    result: dict[str, Any] | None = None
    error: UpstreamRpcError | None = None
    input_requests: dict[str, Any] | None = None

    @property
    def pause(self) -> float | None:
        """The seconds after which the server wants to be asked again."""
        milliseconds = self.poll_interval or self.poll_interval_ms
        return None if not milliseconds else min(_MAX_PAUSE, max(_MIN_PAUSE, milliseconds / 1000))


def make_task_request(timeout: float) -> dict[str, Any]:
    """The parameter with which a call of 2025-11-25 asks for a task."""
    return {"ttl": int((timeout + _RETENTION_MARGIN) * 1000)}


def find_created_task(reply: SessionReply) -> str | None:
    """The id of the task that a server made of a call; None if the reply is the call's own. Raises UpstreamFailed."""
    if isinstance(reply, UpstreamRpcError) or not is_task_result(reply):
        return None
    return check_task_id((reply.get("task") or reply).get("taskId"))


def check_task_id(task_id: object) -> str:
    if not isinstance(task_id, str) or not 0 < len(task_id) <= _MAX_ID_LENGTH:
        raise UpstreamFailed("The MCP server made a task of the call, but gave the task no usable id")
    return task_id


class McpTaskFollower:
    """Follows the tasks of one server."""

    def __init__(self, agent_id: str, supervisor: McpConnectionSupervisor) -> None:
        self._agent_id = agent_id
        self._supervisor = supervisor
        self._cancels = BackgroundCancels(agent_id)

    async def follow(self, task_id: str, pending: PendingMcpRequest) -> SessionReply:
        """The reply to the call that became the task. Cancelling cancels the task. Raises FabricError."""
        following = _FollowedTask(self._agent_id, task_id, pending, self._request)
        try:
            return await following.run()
        finally:
            if not following.has_ended:
                self._cancels.start(self._cancel(task_id))

    async def create(self, request: Coroutine[Any, Any, SessionReply], pending: PendingMcpRequest) -> SessionReply:
        """Send a call that asks for a task, and follow the task.

        A call that is cancelled before the server has named the task waits for the name in the background: the server
        would go on with the task, because it cannot be cancelled in any other way.
        """
        creation = asyncio.ensure_future(request)
        try:
            reply = await asyncio.shield(creation)
        except asyncio.CancelledError:
            self._cancels.start(self._cancel_when_created(creation))
            raise
        task_id = find_created_task(reply)
        return reply if task_id is None else await self.follow(task_id, pending)

    async def aclose(self) -> None:
        await self._cancels.aclose()

    async def _cancel_when_created(self, creation: asyncio.Future[SessionReply]) -> None:
        if (task_id := find_created_task(await creation)) is not None:
            await self._cancel(task_id)

    async def _request(self, method: str, params: dict[str, Any], timeout: float | None) -> tuple[Era, SessionReply]:
        """The server's reply, with its era. Raises FabricError if there is none."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self._supervisor.get_connection(timeout)
                reply = await connection.request(method, params)
        except TimeoutError as exc:
            raise CallTimeout(timeout or 0.0, agent_id=self._agent_id) from exc
        if isinstance(reply, UpstreamRpcError) and reply.transport_problem == "gone":
            self._supervisor.drop(connection)
        return connection.era or "handshake", reply

    async def _cancel(self, task_id: str) -> None:
        await self._request("tasks/cancel", {"taskId": task_id}, None)


SendTaskRequest = Callable[[str, dict[str, Any], float | None], Awaitable[tuple[Era, SessionReply]]]


class _FollowedTask:
    """One task. `has_ended` says whether the server has ended it, so that nothing is left to cancel."""

    def __init__(self, agent_id: str, task_id: str, pending: PendingMcpRequest, send: SendTaskRequest) -> None:
        self.has_ended = False
        self._agent_id = agent_id
        self._task_id = task_id
        self._pending = pending
        self._send = send
        self._era: Era = "handshake"
        self._last_message: str | None = None
        self._answered: set[str] = set()  # keys of questions whose answers were sent

    async def run(self) -> SessionReply:
        failures = 0  # to fetch the result, while the task itself is still known
        while True:
            task = await poll_until(self._fetch, self._needs_attention, requested_pause=lambda task: task.pause)
            if task.status == _INPUT_REQUIRED and self._era == "stateless":
                await self._answer_questions(task.input_requests or {})
                continue
            self.has_ended = task.status != _INPUT_REQUIRED
            if task.status == _LOST:
                raise UpstreamInterrupted(f"The MCP server no longer knows the call's task: {task.status_message}")
            if task.status == "cancelled":
                raise UpstreamRefused(f"The MCP server cancelled the call's task: {task.status_message or 'no reason'}")
            if self._era == "stateless":
                return task.result if task.result is not None else task.error or _make_error(task)
            reply = await self._fetch_result()
            if not isinstance(reply, UpstreamRpcError) or reply.transport_problem not in ("interrupted", "gone"):
                self.has_ended = True
                return reply
            failures += 1
            if failures > _MAX_FAILURES:  # raised, because a call that is answered with such an error is sent again
                raise error_from_rpc_error(reply, self._agent_id, "tasks/result", ())
            await asyncio.sleep(_PAUSE_AFTER_FAILURE)

    def _needs_attention(self, task: McpTask) -> bool:
        if task.status == _INPUT_REQUIRED and self._era == "stateless":
            return not self._answered.issuperset(task.input_requests or {})
        return task.status != _WORKING

    async def _fetch(self) -> McpTask:
        """The task as it is now. Raises FabricError; after an error of the connection `poll_until` asks again."""
        self._era, reply = await self._send("tasks/get", {"taskId": self._task_id}, POLL_TIMEOUT)
        if isinstance(reply, UpstreamRpcError):
            error = error_from_rpc_error(reply, self._agent_id, "tasks/get", ())
            if reply.transport_problem or isinstance(error, UpstreamInterrupted):
                raise error
            return McpTask(self._task_id, status=_LOST, status_message=reply.message[:_MAX_MESSAGE])
        try:
            task = msgspec.convert(reply, McpTask)
        except msgspec.ValidationError as exc:
            raise UpstreamFailed(f"The MCP server's description of the task cannot be read: {exc}") from exc
        if task.status_message and task.status_message != self._last_message:
            self._last_message = task.status_message
            self._pending.add_event(status("running", task.status_message[:_MAX_MESSAGE]))
        return task

    async def _fetch_result(self) -> SessionReply:
        """The reply of a task of 2025-11-25. It waits while the task works; only the call has a deadline."""
        _, reply = await self._send("tasks/result", {"taskId": self._task_id}, None)
        return reply

    async def _answer_questions(self, requests: Mapping[str, Any]) -> None:
        keys = [key for key in requests if key not in self._answered]
        questions = [read_question(requests[key]) for key in keys]
        responses = await asyncio.gather(*map(self._pending.ask, questions))
        if None in responses:
            raise UpstreamRefused("The tool cannot go on: its question to a model was declined")
        params = {"taskId": self._task_id, "inputResponses": dict(zip(keys, responses, strict=True))}
        _, reply = await self._send("tasks/update", params, POLL_TIMEOUT)
        if isinstance(reply, UpstreamRpcError):
            raise error_from_rpc_error(reply, self._agent_id, "tasks/update", ())
        self._answered.update(keys)


def _make_error(task: McpTask) -> UpstreamRpcError:
    message = task.status_message or f"The MCP server's task ended as {task.status[:50]!r} without a result"
    return UpstreamRpcError(-32603, message)
