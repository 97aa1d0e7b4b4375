"""One `tools/call`, from a name and raw arguments to a tool's result; both ways in, the SDK's and ours, share it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.errors import (
    AgentNotFound,
    BadInput,
    CapabilityNotFound,
    FabricError,
    InternalError,
    UnknownOperation,
)
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.question import Answers, Questions
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, continue_trace, current_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import answer, task
from a2a_fabric.doors.mcp.questions import repeated_call, unanswerable
from a2a_fabric.doors.mcp.shelf import Shelf
from a2a_fabric.doors.mcp.visit import Left, Visit
from a2a_fabric.jobs.wish import JobWish
from a2a_fabric.operations import Prepared, Request, TraceRef

_log = logging.getLogger(__name__)


class UnknownTool(Exception):
    """There is no tool of that name: the protocol's own error, not a tool's result."""

    def __init__(self, name: str, error: FabricError, trace: Trace) -> None:
        super().__init__(f"Unknown tool: {answer.speakable(name[:128])}")
        self.data = answer.error_body(error, trace)


class ToolCall:
    """Made for each request; says which trace it runs under once it is prepared."""

    def __init__(
        self,
        context: DoorContext,
        shelf: Shelf,
        visit: Visit,
        name: str,
        trace: Trace,
        takes_tasks: Callable[[], bool] = lambda: False,
        chain: Any = None,
    ) -> None:
        self.trace = trace
        self._takes_tasks = takes_tasks
        self._chain = chain  # what `_meta` says, unchecked
        self._context = context
        self._shelf = shelf
        self._visit = visit
        self._name = name
        self._started = time.perf_counter()

    async def run(
        self,
        arguments: msgspec.Raw | Mapping[str, Any],
        emit: Emit | None,
        answers: Answers | msgspec.UnsetType = msgspec.UNSET,
    ) -> dict[str, Any] | Questions:
        """Raises UnknownTool, and Left if the caller has gone; everything else is a result, a task, or a question."""
        is_call = False
        try:
            prepared = self._prepared(arguments if isinstance(arguments, msgspec.Raw) else _raw(arguments))
            is_call = prepared.is_call
            request = Request(
                trace=self.trace,
                principal=self._visit.principal,
                stream=emit is not None,
                answers=answers,
                delegation_chain=(
                    self._visit.delegation_chain if self._chain is None else self._visit.chain(self._chain)
                ),
                job=self._wish() if answers else None,
            )
            running = prepared.run(request, ignore) if emit is None else self._heard(prepared, request, emit)
            result = await self._visit.work(running)
            told = self._told(result)
        except FabricError as error:
            if not error.observed:
                self._note(error)
            return answer.failure(error, self.trace)
        except (UnknownTool, Left):
            raise
        except Exception:
            return self._failed_inside()
        if not is_call:
            self._note(None)
        return told

    def unanswerable(self, asked: Questions, arguments: msgspec.Raw | Mapping[str, Any]) -> dict[str, Any]:
        """The result for a client that cannot be asked."""
        given = msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments
        return unanswerable(asked, self.trace, repeated_call(self._shelf, self._name, given))

    def _told(self, result: Result) -> dict[str, Any] | Questions:
        if result.asked is not None:
            return result.asked
        if result.job_id is not None and self._takes_tasks():
            return task.created(result, self.trace, self._context.jobs.settings.keep_seconds)
        return answer.success(result, self.trace)

    def _wish(self) -> JobWish | None:
        """An answered call is no new piece of work, but whoever takes tasks need not wait for the rest of it."""
        behind = self._shelf.behind(self._name)
        after = None if behind is None else self._context.jobs.job_after(*behind)
        return None if after is None or not self._takes_tasks() else JobWish(job_after=after)

    def _prepared(self, raw: msgspec.Raw) -> Prepared:
        try:
            prepared = self._shelf.prepare(self._name, raw, self._visit.principal)
        except (UnknownOperation, CapabilityNotFound, AgentNotFound) as error:
            self._note(error)
            raise UnknownTool(self._name, error, self.trace) from error
        if prepared.trace is not None:
            self.trace = _continued(prepared.trace)
        return prepared

    async def _heard(self, prepared: Prepared, request: Request, emit: Emit) -> Result:
        """Raises RateLimited too."""
        self._context.stream_opened(request.principal.principal_id)
        try:
            return await prepared.run(request, emit)
        finally:
            self._context.stream_closed(request.principal.principal_id)

    def _failed_inside(self) -> dict[str, Any]:
        """Called while the exception is being handled."""
        token = current_trace.set(self.trace)
        _log.exception("a tool call failed inside the gateway")
        current_trace.reset(token)
        error = InternalError()
        self._note(error)
        return answer.failure(error, self.trace)

    def _note(self, error: FabricError | None) -> None:
        """Of a request that the waist did not log as a call."""
        code, message = (error.code, error.message) if error else (None, None)
        seconds = time.perf_counter() - self._started
        name = answer.speakable(self._name)
        self._context.log(self.trace, name, code=code, message=message, seconds=seconds, status=200)


def _continued(ref: TraceRef) -> Trace:
    try:
        return continue_trace(ref.trace_id, ref.span_id or ref.parent_span_id)
    except ValueError as exc:
        raise BadInput(f"Bad trace: {exc}", field="trace") from exc


def _raw(arguments: Mapping[str, Any]) -> msgspec.Raw:
    """Raises BadInput: what the SDK decoded may be more than JSON's strict rules allow."""
    try:
        return msgspec.Raw(msgspec.json.encode(arguments))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadInput(f"The arguments are not JSON: {exc}"[:300]) from exc
