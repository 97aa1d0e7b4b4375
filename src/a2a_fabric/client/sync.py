"""`SyncFabricClient`: the same methods for code without an event loop. Its own loop runs in a private thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from msgspec import UNSET

from a2a_fabric.client.client import FabricClient, JobHandle
from a2a_fabric.client.directory import DirectoryClient
from a2a_fabric.client.rest import MessagesClient, TasksClient
from a2a_fabric.core.propagation import MaybeChain

A = TypeVar("A")  # the async object
P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Sync[A], P], T]:
    """The same method, which returns when the result is there."""

    @wraps(method)
    def run(self: _Sync[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._target, *args, **kwargs))

    return run


def _iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T]],
) -> Callable[Concatenate[_Sync[A], P], Generator[T]]:
    """The same method, whose events are an ordinary generator."""

    @wraps(method)
    def run(self: _Sync[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        return self._loop.iterate(method(self._target, *args, **kwargs))

    return run


def _returning_handle(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, JobHandle]],
) -> Callable[Concatenate[_Sync[A], P], SyncJobHandle]:
    @wraps(method)
    def run(self: _Sync[A], /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle:
        return SyncJobHandle(self._loop.run(method(self._target, *args, **kwargs)), self._loop)

    return run


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="fabric-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait; an interrupted wait (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def iterate(self, events: AsyncGenerator[T]) -> Generator[T]:
        """The same events without an event loop; leaving early closes them."""
        try:
            while (event := self.run(_next(events))) is not None:
                yield event
        finally:
            if not self.loop.is_closed():  # closing the client has ended the stream already
                self.run(events.aclose())

    def close(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Sync(Generic[A]):
    """An async object whose methods are run on the loop."""

    def __init__(self, target: A, loop: LoopThread) -> None:
        self._target = target
        self._loop = loop


class SyncJobHandle(_Sync[JobHandle]):
    """A `JobHandle` for code without an event loop."""

    status = _blocking(JobHandle.status)
    events = _iterating(JobHandle.events)
    result = _blocking(JobHandle.result)
    cancel = _blocking(JobHandle.cancel)
    answer = _blocking(JobHandle.answer)
    retry = _returning_handle(JobHandle.retry)

    @property
    def job_id(self) -> str:
        return self._target.job_id


class SyncDirectoryClient(_Sync[DirectoryClient]):
    register = _blocking(DirectoryClient.register)
    heartbeat = _blocking(DirectoryClient.heartbeat)
    unregister = _blocking(DirectoryClient.unregister)
    discover = _blocking(DirectoryClient.discover)
    agent = _blocking(DirectoryClient.agent)
    task = _blocking(DirectoryClient.task)
    status = _blocking(DirectoryClient.status)
    cancel = _blocking(DirectoryClient.cancel)
    answer = _blocking(DirectoryClient.answer)
    stream = _iterating(DirectoryClient.stream)
    events = _iterating(DirectoryClient.events)


class SyncMessagesClient(_Sync[MessagesClient]):
    send = _blocking(MessagesClient.send)
    get = _blocking(MessagesClient.get)
    reply = _blocking(MessagesClient.reply)
    conversation = _blocking(MessagesClient.conversation)
    follow = _iterating(MessagesClient.follow)


class SyncTasksClient(_Sync[TasksClient]):
    create = _blocking(TasksClient.create)
    get = _blocking(TasksClient.get)
    list = _blocking(TasksClient.list)
    events = _iterating(TasksClient.events)
    result = _blocking(TasksClient.result)
    answer = _blocking(TasksClient.answer)
    cancel = _blocking(TasksClient.cancel)


class SyncFabricClient(_Sync[FabricClient]):
    """One node. Use it as a context manager, or call `close` when done. Several threads may share it."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        *,
        delegation_chain: MaybeChain = UNSET,
    ) -> None:
        super().__init__(FabricClient(url, token, timeout, delegation_chain=delegation_chain), LoopThread())
        self.directory = SyncDirectoryClient(self._target.directory, self._loop)
        self.messages = SyncMessagesClient(self._target.messages, self._loop)
        self.tasks = SyncTasksClient(self._target.tasks, self._loop)

    @property
    def url(self) -> str:
        return self._target.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._loop.loop.is_closed():
            self._loop.run(self._target.aclose())
            self._loop.close()

    agents = _blocking(FabricClient.agents)
    search = _blocking(FabricClient.search)
    describe = _blocking(FabricClient.describe)
    route = _blocking(FabricClient.route)
    tools = _blocking(FabricClient.tools)
    nodes = _blocking(FabricClient.nodes)
    health = _blocking(FabricClient.health)
    call = _blocking(FabricClient.call)
    stream = _iterating(FabricClient.stream)
    ask = _blocking(FabricClient.ask)
    stream_ask = _iterating(FabricClient.stream_ask)
    route_request = _blocking(FabricClient.route_request)
    submit = _returning_handle(FabricClient.submit)
    jobs = _blocking(FabricClient.jobs)
    tool = _blocking(FabricClient.tool)
    operation = _blocking(FabricClient.operation)
    administer = _blocking(FabricClient.administer)

    def job(self, job_id: str) -> SyncJobHandle:
        return SyncJobHandle(self._target.job(job_id), self._loop)


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
