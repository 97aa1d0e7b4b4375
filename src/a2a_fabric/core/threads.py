"""Threads for blocking work, in which no caller can keep the others waiting.

Each caller has its share of the threads. What finds no thread waits in the caller's own queue; queues take turns, so
a caller with one piece of work is not behind all the work of another one. How much waits is limited, too.

A thread cannot be stopped from outside: work that nobody waits for any more keeps its thread until it ends, and counts
until then.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from a2a_fabric.core.shares import ANONYMOUS, SHARE, Shares

P = ParamSpec("P")
T = TypeVar("T")

_WAITING_PER_THREAD = 32


class _Work:
    __slots__ = ("caller", "done", "function")

    def __init__(self, caller: str, function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self.caller = caller
        self.function = function
        self.done = done


class WorkerThreads:
    """Belongs to one event loop. `name` says in a refusal whose threads they are."""

    def __init__(self, name: str, threads: int, share: float = SHARE) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"fabric {name}")
        self._running = Shares(f"threads for {name}", threads, share)
        self._waiting = Shares(f"pieces of work that wait for threads for {name}", threads * _WAITING_PER_THREAD, share)
        self._queues: OrderedDict[str, deque[_Work]] = OrderedDict()  # of those who wait; whose turn it is comes first

    async def run(self, principal_id: str | None, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises RateLimited, and what the function raises."""
        caller = principal_id or ANONYMOUS
        self._waiting.take(caller)
        loop = asyncio.get_running_loop()
        bound = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))
        work = _Work(caller, bound, loop.create_future())
        self._queues.setdefault(caller, deque()).append(work)
        self._begin_what_can()
        try:
            result: T = await work.done
        except asyncio.CancelledError:
            self._withdraw(work)
            raise
        return result

    def close(self) -> None:
        """What waits is dropped; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_what_can(self) -> None:
        while self._running.total < self._running.most:
            caller = next((each for each in self._queues if self._running.has_room(each)), None)
            if caller is None:
                return
            self._begin(self._next_of(caller))

    def _next_of(self, caller: str) -> _Work:
        queue = self._queues[caller]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]
        self._waiting.give_back(caller)
        return work

    def _begin(self, work: _Work) -> None:
        self._running.take(work.caller)
        loop = work.done.get_loop()
        running = self._pool.submit(work.function)
        running.add_done_callback(lambda ended: _tell(loop, partial(self._end, work, ended)))

    def _end(self, work: _Work, ended: Future[Any]) -> None:
        self._running.give_back(work.caller)
        error = None if ended.cancelled() else ended.exception()
        if not work.done.done():
            if ended.cancelled():
                work.done.cancel()
            elif error is not None:
                work.done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                work.done.set_result(ended.result())
        self._begin_what_can()

    def _withdraw(self, work: _Work) -> None:
        """Nobody waits for it any more; it is dropped unless it runs already."""
        queue = self._queues.get(work.caller)
        if queue is None or work not in queue:
            return
        queue.remove(work)
        self._waiting.give_back(work.caller)
        if not queue:
            del self._queues[work.caller]


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(what)


# Set while a call is with its agent: the threads that its blocking work uses, and in whose name.
worker_threads: contextvars.ContextVar[tuple[WorkerThreads, str | None] | None] = contextvars.ContextVar(
    "worker_threads", default=None
)


async def in_worker_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """In one of the node's threads if the call is carried out by a node; else in any. Raises RateLimited."""
    current = worker_threads.get()
    if current is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    return await current[0].run(current[1], function, *args, **kwargs)
