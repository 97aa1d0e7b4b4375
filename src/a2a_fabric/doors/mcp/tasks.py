"""The extension `io.modelcontextprotocol/tasks`: handlers for `tasks/get`, `tasks/update` and `tasks/cancel`.

It belongs to the stateless era. The jobs package decides who may see a task: another caller's task is not
found."""

from __future__ import annotations

from collections.abc import Iterator
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

from a2a_fabric.core.errors import FabricError, JobNotFound
from a2a_fabric.core.propagation import current_trace
from a2a_fabric.core.result import Answer
from a2a_fabric.doors.mcp.results import render_task, to_error_body
from a2a_fabric.doors.mcp.sdk_request import SdkContext, get_answer_capabilities, get_request_context, is_stateless_era
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.questions import ClientResponse
from a2a_fabric.protocols.mcp.wire import TASKS_EXTENSION


class McpTaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")


class McpTaskUpdateParams(McpTaskParams):
    input_responses: dict[str, Any] = Field(alias="inputResponses")


class McpTasks:
    """The task handlers of one MCP server."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def register_handlers(self, server: Server[Any]) -> None:
        server.extensions[TASKS_EXTENSION] = {}
        server.add_request_handler("tasks/get", McpTaskParams, self.get)
        server.add_request_handler("tasks/update", McpTaskUpdateParams, self.update)
        server.add_request_handler("tasks/cancel", McpTaskParams, self.cancel)

    async def get(self, ctx: SdkContext, params: McpTaskParams) -> HandlerResult:
        _check_request(ctx, params)
        with _translate_errors(ctx):
            job = await self._jobs.get(get_request_context(ctx).principal, params.task_id)
            rendered = render_task(job, self._jobs.settings.keep_seconds)
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(rendered))  # plain JSON, for the SDK
        return plain

    async def update(self, ctx: SdkContext, params: McpTaskUpdateParams) -> HandlerResult:
        _check_request(ctx, params)
        principal = get_request_context(ctx).principal
        with _translate_errors(ctx):
            questions = (await self._jobs.get(principal, params.task_id)).open_questions
            responses = params.input_responses if questions is not None else {}
            answers = {
                key: _parse_answer(key, response)
                for key, response in responses.items()
                if questions and key in questions.questions
            }
            await self._jobs.answer_some(principal, params.task_id, answers)
        return {"resultType": "complete"}

    async def cancel(self, ctx: SdkContext, params: McpTaskParams) -> HandlerResult:
        _check_request(ctx, params)
        with _translate_errors(ctx):
            await self._jobs.cancel(get_request_context(ctx).principal, params.task_id)
        return {"resultType": "complete"}


def declares_tasks(ctx: SdkContext) -> bool:
    return is_stateless_era(ctx) and get_answer_capabilities(ctx).accepts_tasks


def make_undeclared_error() -> MCPError:
    """The error for a client that has not declared the extension."""
    error = wire.make_undeclared_error(TASKS_EXTENSION)
    return MCPError(error.code, error.message, error.data)


def _check_request(ctx: SdkContext, params: McpTaskParams) -> None:
    """Raises MCPError. The SDK checks the headers of the methods that it knows itself only."""
    if not is_stateless_era(ctx):
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not declares_tasks(ctx):
        raise make_undeclared_error()
    request = ctx.request
    if isinstance(request, WebRequest) and decode_header_value(request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(
            types.HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        )


@contextmanager
def _translate_errors(ctx: SdkContext) -> Iterator[None]:
    """Raise FabricErrors as MCPErrors."""
    try:
        yield
    except FabricError as error:
        code = types.INVALID_PARAMS if isinstance(error, JobNotFound) else types.INTERNAL_ERROR
        raise MCPError(code, error.message, to_error_body(error, current_trace.get())) from error


def _parse_answer(key: str, response: Any) -> Answer:
    try:
        return msgspec.convert(response, ClientResponse).answer
    except msgspec.ValidationError as exc:
        raise MCPError(types.INVALID_PARAMS, f"Bad inputResponses for {key!r}: {exc}"[:300]) from exc
