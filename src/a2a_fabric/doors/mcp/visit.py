"""A caller's way in: who they are, the trace they bring, and the work that ends when they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio
from msgspec import UNSET

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import MaybeChain, from_metadata, longer
from a2a_fabric.core.question import Questions
from a2a_fabric.core.trace import Trace, from_traceparent, new_trace
from a2a_fabric.doors.http import Head

T = TypeVar("T")

_CLEAN_UP = 5.0


class Left(Exception):
    """The caller has gone; there is nobody to answer."""


class Visit:
    """One HTTP request, or one conversation over a socket or over stdin and stdout.

    `delegation_chain` is what its head or its environment says; a message may say more.
    """

    asked: Questions | None = None  # what an agent asked on the short way

    def __init__(self, principal: Principal, trace: Trace | None = None, delegation_chain: MaybeChain = UNSET) -> None:
        self.principal = principal
        self.delegation_chain = delegation_chain
        self._trace = trace
        self._working: set[asyncio.Future[Any]] = set()

    def trace(self, meta: Any) -> Trace:
        """A request's own `traceparent` says more than the header of the connection; else a new one."""
        given = meta.get("traceparent") if meta else None
        return self.traced(given if isinstance(given, str) else None)

    def traced(self, given: str | None) -> Trace:
        return (from_traceparent(given) if given else None) or self._trace or new_trace()

    def chain(self, given: Any) -> MaybeChain:
        """What a request has passed; `given` is what its `_meta` says of that. Raises BadInput."""
        return self.delegation_chain if given is None else longer(from_metadata(given), self.delegation_chain)

    def work(self, work: Awaitable[T]) -> Awaitable[T]:
        """Run `work` in a task of its own, cancelled once when the caller cancels or leaves.

        The SDK's cancel scopes cancel again and again until a task is out of them, which
        leaves an agent no moment to clean up. Raises Left if the caller left.
        """
        return self._in_a_task(work)

    async def _in_a_task(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        self._working.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task}, timeout=_CLEAN_UP)
            _forget(task)
            raise
        finally:
            self._working.discard(task)
        if task.cancelled():
            raise Left
        return task.result()

    def leave(self) -> None:
        for task in self._working:
            task.cancel()


class DirectVisit(Visit):
    """An HTTP request that no cancel scope is around: whoever watches the connection cancels our own task."""

    delegation_chain: MaybeChain = UNSET
    _trace: Trace | None = None

    def __init__(self, principal: Principal, head: Head) -> None:
        """Raises BadInput."""
        self.principal = principal  # and no tasks to hold
        if head.has_journey:
            self._trace, self.delegation_chain = head.trace, head.delegation_chain

    def leave(self) -> None:
        pass

    def work(self, work: Awaitable[T]) -> Awaitable[T]:
        return work


def _forget(task: asyncio.Future[Any]) -> None:
    """What the work raised while it was being cancelled interests nobody."""
    if task.done() and not task.cancelled():
        task.exception()
