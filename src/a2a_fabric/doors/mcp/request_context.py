"""The context of an MCP request: principal, trace, delegation chain, and work to cancel on disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio
from msgspec import UNSET

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import MaybeChain, chain_from_metadata, pick_longer_chain
from a2a_fabric.core.question import Questions
from a2a_fabric.core.trace import Trace, new_trace, trace_from_traceparent
from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.protocols.mcp.versions import VERSION_HEADER_BYTES, is_stateless_version

T = TypeVar("T")

_CLEANUP_TIMEOUT = 5.0


class McpCallerDisconnected(Exception):
    """The caller has disconnected, so no answer is needed."""


class McpRequestContext:
    """The context of one HTTP request, or of one conversation over a WebSocket or stdio.

    `delegation_chain` comes from the headers or the environment; a message may carry a longer one.
    """

    pending_questions: Questions | None = None  # asked by an agent on the fast path

    def __init__(self, principal: Principal, trace: Trace | None = None, delegation_chain: MaybeChain = UNSET) -> None:
        self.principal = principal
        self.delegation_chain = delegation_chain
        self._trace = trace
        self._tasks: set[asyncio.Future[Any]] = set()

    def trace_from_meta(self, meta: Any) -> Trace:
        """The trace of a request: its own `traceparent`, else that of the connection, else a new one."""
        header = meta.get("traceparent") if meta else None
        return self.trace_from_header(header if isinstance(header, str) else None)

    def trace_from_header(self, header: str | None) -> Trace:
        return (trace_from_traceparent(header) if header else None) or self._trace or new_trace()

    def chain_from_meta(self, meta_chain: Any) -> MaybeChain:
        """The delegation chain of a request, with the chain in its `_meta`. Raises BadInput."""
        return (
            self.delegation_chain
            if meta_chain is None
            else pick_longer_chain(chain_from_metadata(meta_chain), self.delegation_chain)
        )

    def run_cancellable(self, work: Awaitable[T]) -> Awaitable[T]:
        """Run `work` in a task of its own, which is cancelled once when the caller cancels or disconnects.

        The SDK's cancel scopes cancel again and again until a task is out of them, which
        leaves an agent no moment to clean up. Raises Left if the caller left.
        """
        return self._run_in_task(work)

    async def _run_in_task(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task}, timeout=_CLEANUP_TIMEOUT)
            _retrieve_exception(task)
            raise
        finally:
            self._tasks.discard(task)
        if task.cancelled():
            raise McpCallerDisconnected
        return task.result()

    def cancel_work(self) -> None:
        for task in self._tasks:
            task.cancel()


class DirectRequestContext(McpRequestContext):
    """An HTTP request without a cancel scope around it: a disconnect cancels the task of the request itself."""

    delegation_chain: MaybeChain = UNSET
    _trace: Trace | None = None

    def __init__(self, principal: Principal, head: RequestHead, trace: Trace | None = None) -> None:
        """`trace` is that of the request, if one was made already. Raises BadInput."""
        self.principal = principal  # `super().__init__` would make a set of tasks, which is not needed here
        if head.has_journey:
            self._trace, self.delegation_chain = head.trace, head.delegation_chain
        if trace is not None:
            self._trace = trace

    def cancel_work(self) -> None:
        pass

    def run_cancellable(self, work: Awaitable[T]) -> Awaitable[T]:
        return work


def is_stateless_request(head: RequestHead) -> bool:
    """Whether the version header names the stateless era."""
    return is_stateless_version(head.get(VERSION_HEADER_BYTES))


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Mark the exception as seen: it came from the cancellation."""
    if task.done() and not task.cancelled():
        task.exception()
