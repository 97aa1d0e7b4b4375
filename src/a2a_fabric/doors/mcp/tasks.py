"""The extension `io.modelcontextprotocol/tasks`: a client that declares it follows its jobs in MCP's own words.

It belongs to the stateless era. Who may look at a task is the desk's to say: somebody
else's is not found, as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import Field
from starlette.requests import Request as WebRequest

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.question import Answer
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.doors.mcp import task
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.asker import Context, is_modern, trace_of, visit_of
from a2a_fabric.doors.mcp.questions import TASKS, Abilities, Response, abilities_of
from a2a_fabric.jobs.desk import JobDesk


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(alias="inputResponses")


Handler = Callable[[Context, Any], Awaitable[HandlerResult]]


class Tasks:
    """Of one MCP server."""

    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk

    def join(self, server: Server[Any]) -> None:
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        _check(ctx, params)
        with _told(ctx):
            job = await self._desk.get(visit_of(ctx).principal, params.task_id)
            seen = task.detailed(job, self._desk.settings.keep_seconds)
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(seen))  # the SDK wants no values of ours
        return plain

    async def update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        _check(ctx, params)
        principal = visit_of(ctx).principal
        with _told(ctx):
            asked = (await self._desk.get(principal, params.task_id)).unanswered
            given = params.input_responses if asked is not None else {}
            answers = {key: _answer(key, said) for key, said in given.items() if asked and key in asked.questions}
            await self._desk.answer_some(principal, params.task_id, answers)
        return {"resultType": "complete"}

    async def cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        _check(ctx, params)
        with _told(ctx):
            await self._desk.cancel(visit_of(ctx).principal, params.task_id)
        return {"resultType": "complete"}


def abilities(ctx: Context) -> Abilities:
    declared = ctx.session.client_capabilities
    return Abilities() if declared is None else abilities_of(declared.model_dump_json(by_alias=True).encode())


def declares_tasks(ctx: Context) -> bool:
    return is_modern(ctx) and abilities(ctx).has_tasks


def undeclared() -> MCPError:
    """What a client hears that would need the extension and has not declared it."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"This needs the client to declare {TASKS}", needed)


def _check(ctx: Context, params: TaskParams) -> None:
    """Raises MCPError. The SDK compares the headers of its own methods only."""
    if not is_modern(ctx):
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not declares_tasks(ctx):
        raise undeclared()
    carrier = ctx.request
    if isinstance(carrier, WebRequest) and decode_header_value(carrier.headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(
            types.HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        )


@contextmanager
def _told(ctx: Context) -> Iterator[None]:
    """The gateway's errors, in the protocol's words."""
    try:
        yield
    except FabricError as error:
        code = types.INVALID_PARAMS if isinstance(error, JobNotFound) else types.INTERNAL_ERROR
        raise MCPError(code, error.message, error_body(error, trace_of(ctx))) from error


def _answer(key: str, said: Any) -> Answer:
    try:
        return msgspec.convert(said, Response).answer
    except msgspec.ValidationError as exc:
        raise MCPError(types.INVALID_PARAMS, f"Bad inputResponses for {key!r}: {exc}"[:300]) from exc
