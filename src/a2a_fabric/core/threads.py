"""Worker threads for blocking work, shared fairly among callers.

Each caller has its share of the threads. Work without a free thread waits in its caller's own queue; queues take
turns, so a caller with one item does not wait behind all the items of another caller. The queues are bounded, too.

A thread cannot be stopped from outside: work whose caller no longer waits keeps its thread until it ends, and
counts until then."""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from a2a_fabric.core.limits import ANONYMOUS_CALLER, DEFAULT_SHARE, FairLimit, Share

P = ParamSpec("P")
T = TypeVar("T")

_WAITING_PER_THREAD = 32


class _WorkItem:
    __slots__ = ("caller", "done", "function")

    def __init__(self, caller: str, function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self.caller = caller
        self.function = function
        self.done = done


class WorkerThreads:
    """Belongs to one event loop. `name` appears in refusals."""

    def __init__(self, name: str, threads: int, share: Share = DEFAULT_SHARE) -> None:
        self._prefix = f"fabric {name}"
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=self._prefix)
        self.running = FairLimit(f"threads for {name}", threads, share)
        self._waiting = FairLimit(
            f"pieces of work that wait for threads for {name}", threads * _WAITING_PER_THREAD, share
        )
        self._queues: OrderedDict[str, deque[_WorkItem]] = OrderedDict()  # by caller; the next turn comes first

    async def run(self, principal_id: str | None, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises RateLimited, and what the function raises."""
        caller = principal_id or ANONYMOUS_CALLER
        self._waiting.acquire(caller)
        loop = asyncio.get_running_loop()
        work_function = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))
        work = _WorkItem(caller, work_function, loop.create_future())
        self._queues.setdefault(caller, deque()).append(work)
        self._start_runnable()
        try:
            result: T = await work.done
        except asyncio.CancelledError:
            self._withdraw(work)
            raise
        return result

    def resize(self, threads: int) -> None:
        """With fewer threads, those that run finish what they do."""
        if threads == self.running.capacity:
            return
        pool, self._pool = self._pool, ThreadPoolExecutor(threads, thread_name_prefix=self._prefix)
        pool.shutdown(wait=False)
        self.running.resize(threads)
        self._waiting.resize(threads * _WAITING_PER_THREAD)
        self._start_runnable()

    def close(self) -> None:
        """Drop waiting work, and do not wait for running work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_runnable(self) -> None:
        while self.running.in_use < self.running.capacity:
            caller = next((each for each in self._queues if self.running.can_acquire(each)), None)
            if caller is None:
                return
            self._start(self._pop_next(caller))

    def _pop_next(self, caller: str) -> _WorkItem:
        queue = self._queues[caller]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]
        self._waiting.release(caller)
        return work

    def _start(self, work: _WorkItem) -> None:
        self.running.acquire(work.caller)
        loop = work.done.get_loop()
        future = self._pool.submit(work.function)
        future.add_done_callback(lambda ended: _call_in_loop(loop, partial(self._finish, work, ended)))

    def _finish(self, work: _WorkItem, future: Future[Any]) -> None:
        self.running.release(work.caller)
        error = None if future.cancelled() else future.exception()
        if not work.done.done():
            if future.cancelled():
                work.done.cancel()
            elif error is not None:
                work.done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                work.done.set_result(future.result())
        self._start_runnable()

    def _withdraw(self, work: _WorkItem) -> None:
        """Drop work whose caller no longer waits, unless it runs already."""
        queue = self._queues.get(work.caller)
        if queue is None or work not in queue:
            return
        queue.remove(work)
        self._waiting.release(work.caller)
        if not queue:
            del self._queues[work.caller]


def _call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


# Set while an agent works on a call: the threads for its blocking work, and the principal that they are counted for.
worker_threads: contextvars.ContextVar[tuple[WorkerThreads, str | None] | None] = contextvars.ContextVar(
    "worker_threads", default=None
)


async def run_in_worker_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """In one of the node's threads during a call of a node, else in any thread. Raises RateLimited."""
    current = worker_threads.get()
    if current is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    return await current[0].run(current[1], function, *args, **kwargs)
