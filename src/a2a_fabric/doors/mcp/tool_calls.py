"""Runs one `tools/call`, from a name and raw arguments to a tool result; with the SDK or on the fast path."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from a2a_fabric.core.call import Call, Emit, Principal, ignore_event
from a2a_fabric.core.errors import (
    AgentNotFound,
    BadInput,
    CallerError,
    CapabilityNotFound,
    FabricError,
    InternalError,
    OutOfScope,
    UnknownOperation,
)
from a2a_fabric.core.logins import LoginRequired, login_error_from_questions
from a2a_fabric.core.propagation import Trace, current_trace
from a2a_fabric.core.result import Answers, Questions, Result
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import JSON_ENCODE_ERRORS, to_encodable_text
from a2a_fabric.doors.mcp import results
from a2a_fabric.doors.mcp.request import McpCallerDisconnected, McpRequestContext
from a2a_fabric.doors.mcp.results import to_error_body
from a2a_fabric.doors.mcp.tools import ToolCatalog
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.operations import OperationRequest, PreparedOperation
from a2a_fabric.operations.tools import PREFIX
from a2a_fabric.protocols.mcp.content import SHOWS_APPS
from a2a_fabric.protocols.mcp.wire import decode_or_none

_ANSWER_TOOL = "fabric_call"
_CALL_TOOL_NAMES = ("fabric_tool_call", "fabric.tool.call")
_ANSWER_OPTIONS = {"continuation", "answers"}
_CALL_OPTIONS = {"stream", "timeout_ms", "trace", *_ANSWER_OPTIONS}
_log = logging.getLogger(__name__)


class UnknownTool(Exception):
    """There is no tool of that name. This is a JSON-RPC error, not a tool result."""

    def __init__(self, name: str, error: FabricError, trace: Trace) -> None:
        super().__init__(f"Unknown tool: {to_encodable_text(name[:128])}")
        self.data = to_error_body(error, trace)


class ScopeMissing(Exception):
    """The whole request is refused, so that the client can ask its issuer for a token with more scopes."""

    def __init__(self, error: OutOfScope) -> None:
        super().__init__(error.message)
        self.error = error


def has_issued_token(principal: Principal) -> bool:
    """Whether the caller can get another token. For all others a refusal is a result, which a model can read."""
    return principal.mode in ("jwt", "oauth2")


def needs_tasks(
    context: DoorContext,
    catalog: ToolCatalog,
    name: str,
    principal: Principal,
    arguments: msgspec.Raw | Mapping[str, Any] | None,
) -> bool:
    """Whether a call of the tool always becomes a job, and no listed tool could fetch its result."""
    if catalog.has_job_tools:
        return False
    try:
        target = catalog.find_target(name, principal)
        if target is None and name in _CALL_TOOL_NAMES and (called := _find_called_tool(arguments)) is not None:
            target = catalog.find_target(called, principal)
    except AgentNotFound:
        return False
    return target is not None and context.jobs.find_job_after(*target) == 0


def _find_called_tool(arguments: msgspec.Raw | Mapping[str, Any] | None) -> str | None:
    """The tool that `fabric.tool.call` calls."""
    decoded = decode_or_none(arguments, dict[str, Any]) if isinstance(arguments, msgspec.Raw) else arguments
    tool_id = (decoded or {}).get("tool_id")
    return PREFIX + tool_id.removeprefix(PREFIX) if isinstance(tool_id, str) else None


class ToolCall:
    """One call, made for each request. `trace` is final once the call is prepared."""

    def __init__(
        self,
        context: DoorContext,
        catalog: ToolCatalog,
        request_context: McpRequestContext,
        name: str,
        trace: Trace,
        accepts_tasks: Callable[[], bool] = lambda: False,
        meta_chain: Any = None,
    ) -> None:
        self.trace = trace
        self._accepts_tasks = accepts_tasks
        self._meta_chain = meta_chain  # from `_meta`, not checked yet
        self._context = context
        self._catalog = catalog
        self._request_context = request_context
        self._name = name
        self._original = SHOWS_APPS if request_context.can_show_apps else msgspec.UNSET
        self.started = time.perf_counter()

    async def run(
        self,
        arguments: msgspec.Raw | Mapping[str, Any],
        emit: Emit | None,
        answers: Answers | msgspec.UnsetType = msgspec.UNSET,
    ) -> dict[str, Any] | Questions:
        """A result, a task, or questions. Raises UnknownTool, and McpCallerDisconnected."""
        is_call = False
        try:
            if isinstance(arguments, msgspec.Raw) and emit is None and not answers and self._meta_chain is None:
                plain_call = self._build_plain_call(arguments)
                if plain_call is not None:
                    work = self._context.gateway.call(plain_call, ignore_event)
                    return self.render(await self._request_context.run_cancellable(work))
            registry = self._context.gateway.registry
            if not self._catalog.is_current:
                await self._catalog.refresh(self._request_context.principal)
            if registry.pending_descriptions.has_any or registry.has_logins:
                await self._wait_if_unknown()
            prepared = self._prepare(arguments if isinstance(arguments, msgspec.Raw) else _encode_arguments(arguments))
            is_call = prepared.is_call
            request = OperationRequest(
                trace=self.trace,
                principal=self._request_context.principal,
                stream=emit is not None,
                answers=answers,
                delegation_chain=(
                    self._request_context.delegation_chain
                    if self._meta_chain is None
                    else self._request_context.chain_from_meta(self._meta_chain)
                ),
                job_options=self._job_options() if answers else None,
                original=self._original,
            )
            work = prepared.run(request, ignore_event) if emit is None else self._run_streamed(prepared, request, emit)
            result = await self._request_context.run_cancellable(work)
            response = self.render(result)
        except (UnknownTool, ScopeMissing, McpCallerDisconnected):
            raise
        except Exception as exc:
            return self.render_failure(exc)
        if not is_call:
            self._log_request(None)
        return response

    def render_failure(self, exc: Exception) -> dict[str, Any] | Questions:
        """The result for an exception. Call this while it is being handled."""
        if not isinstance(exc, FabricError):
            return self._render_internal_error()
        if not exc.is_logged:
            self._log_request(exc)
        if isinstance(exc, LoginRequired) and exc.questions is not None:
            return exc.questions
        return results.render_error(exc, self.trace)

    def render_unanswerable(self, questions: Questions, arguments: msgspec.Raw | Mapping[str, Any]) -> dict[str, Any]:
        """The error for a client that cannot answer the questions. Models read only the text, so it holds them."""
        login_error = login_error_from_questions(questions)
        if login_error is not None:
            result = results.render_error(login_error, self.trace)
            result["content"].append({"type": "text", "text": f"Or open this page: {login_error.url}"})
            return result
        decoded = msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments
        error = InputRequired(questions, self._to_fabric_call(decoded))
        result = results.render_error(error, self.trace)
        details = result["structuredContent"]["error"]["details"]
        result["content"].append({"type": "text", "text": msgspec.json.encode(details).decode()})
        return result

    def render(self, result: Result) -> dict[str, Any] | Questions:
        if result.asked is not None:
            return result.asked
        if result.job_id is not None and self._accepts_tasks():
            return results.render_created_task(result, self.trace, self._context.jobs.settings.keep_seconds)
        return results.render_result(result, self.trace)

    def _job_options(self) -> JobOptions | None:
        """Options for a call that continues with answers: a client that accepts tasks need not wait for its end."""
        target = self._find_target(self._name)
        job_after = None if target is None else self._context.jobs.find_job_after(*target)
        return None if job_after is None or not self._accepts_tasks() else JobOptions(job_after=job_after)

    async def _wait_if_unknown(self) -> None:
        """A tool that is not known yet may be of an agent that was not asked yet."""
        principal = self._request_context.principal
        with suppress(AgentNotFound):  # `_prepare` reports it
            if self._catalog.get_input_schema(self._name, principal) is None:
                await self._context.gateway.registry.wait_for_lists(principal)

    def _build_plain_call(self, arguments: msgspec.Raw) -> Call | None:
        """None if more has to be found out about the call."""
        request_context = self._request_context
        plain_calls = self._catalog.find_plain_calls(self._name, request_context.principal)
        if plain_calls is None:
            return None
        return plain_calls.build(arguments, self.trace, request_context.delegation_chain, self._original)

    def _find_target(self, name: str) -> tuple[str, str] | None:
        return self._catalog.find_target(name, self._request_context.principal)

    def _to_fabric_call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The same call as arguments of `fabric.call`."""
        target = self._find_target(self._name)
        schema = self._catalog.get_input_schema(self._name, self._request_context.principal) or {}
        own = schema.get("properties") or {}  # a tool may have arguments of these names
        remaining = {key: value for key, value in arguments.items() if key not in _CALL_OPTIONS or key in own}
        if target is None and isinstance(tool_id := arguments.get("tool_id"), str):  # called through fabric.tool.call
            target = self._find_target(f"fabric.tool.{tool_id}")
            remaining = dict(arguments.get("parameters") or {})
        if target is None:
            return {key: value for key, value in remaining.items() if key not in _ANSWER_OPTIONS}
        task = remaining.pop("task") if isinstance(remaining.get("task"), str) else ""
        return {"agent_id": target[0], "capability": target[1], "task": task, "context": remaining}

    def _prepare(self, raw: msgspec.Raw) -> PreparedOperation:
        try:
            prepared = self._catalog.prepare(self._name, raw, self._request_context.principal)
        except OutOfScope as error:
            if self._request_context.can_refuse and has_issued_token(self._request_context.principal):
                raise ScopeMissing(error) from error
            raise
        except (UnknownOperation, CapabilityNotFound, AgentNotFound) as error:
            self._log_request(error)
            raise UnknownTool(self._name, error, self.trace) from error
        if prepared.trace is not None:
            self.trace = prepared.trace.to_trace()
        return prepared

    async def _run_streamed(self, prepared: PreparedOperation, request: OperationRequest, emit: Emit) -> Result:
        """As `run`, counted as one of the caller's streams. Raises RateLimited."""
        self._context.acquire_stream(request.principal.principal_id)
        try:
            return await prepared.run(request, emit)
        finally:
            self._context.release_stream(request.principal.principal_id)

    def _render_internal_error(self) -> dict[str, Any]:
        """Call this while the exception is being handled."""
        token = current_trace.set(self.trace)
        _log.exception("A tool call failed inside the gateway")
        current_trace.reset(token)
        error = InternalError()
        self._log_request(error)
        return results.render_error(error, self.trace)

    def _log_request(self, error: FabricError | None) -> None:
        """Log a request that was not logged as a call."""
        code, message = (error.code, error.message) if error else (None, None)
        seconds = time.perf_counter() - self.started
        name = to_encodable_text(self._name)
        self._context.log(self.trace, name, code=code, message=message, seconds=seconds, status=200)


def _encode_arguments(arguments: Mapping[str, Any]) -> msgspec.Raw:
    """Raises BadInput: the SDK's decoder accepts more than strict JSON."""
    try:
        return msgspec.Raw(msgspec.json.encode(arguments))
    except JSON_ENCODE_ERRORS as exc:
        raise BadInput(f"The arguments are not JSON: {exc}"[:300]) from exc


class InputRequired(CallerError):
    """The agent asks a question, and the client cannot answer it."""

    code = "INPUT_REQUIRED"

    def __init__(self, questions: Questions, call_arguments: dict[str, Any]) -> None:
        answers = {key: {"action": "accept", "content": None} for key in questions.questions}
        call = {**call_arguments, "continuation": questions.continuation, "answers": answers}
        message = questions.message or "see the questions"
        stop = "" if message.endswith((".", "?", "!", ":")) else "."
        super().__init__(
            f"The agent asks a question first: {message}{stop} To answer, call the tool "
            f"{_ANSWER_TOOL} with the arguments below and the answers filled in as `content`, or declined by `action`",
            questions=msgspec.to_builtins(questions.questions),
            continuation=questions.continuation,
            answer_with={"tool": _ANSWER_TOOL, "arguments": call},
        )
