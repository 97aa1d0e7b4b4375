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


def _make_blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Sync[A], P], T]:
    """The same method, which returns when the result is there."""

    @wraps(method)
    def run(self: _Sync[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._target, *args, **kwargs))

    return run


def _make_generator(
    method: Callable[Concatenate[A, P], AsyncGenerator[T]],
) -> Callable[Concatenate[_Sync[A], P], Generator[T]]:
    """The same method, whose events are an ordinary generator."""

    @wraps(method)
    def run(self: _Sync[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        return self._loop.iterate(method(self._target, *args, **kwargs))

    return run


def _make_handle_method(
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

    status = _make_blocking(JobHandle.status)
    events = _make_generator(JobHandle.events)
    result = _make_blocking(JobHandle.result)
    cancel = _make_blocking(JobHandle.cancel)
    answer = _make_blocking(JobHandle.answer)
    retry = _make_handle_method(JobHandle.retry)

    @property
    def job_id(self) -> str:
        return self._target.job_id


class SyncDirectoryClient(_Sync[DirectoryClient]):
    register = _make_blocking(DirectoryClient.register)
    heartbeat = _make_blocking(DirectoryClient.heartbeat)
    unregister = _make_blocking(DirectoryClient.unregister)
    discover = _make_blocking(DirectoryClient.discover)
    agent = _make_blocking(DirectoryClient.agent)
    task = _make_blocking(DirectoryClient.task)
    status = _make_blocking(DirectoryClient.status)
    cancel = _make_blocking(DirectoryClient.cancel)
    answer = _make_blocking(DirectoryClient.answer)
    stream = _make_generator(DirectoryClient.stream)
    events = _make_generator(DirectoryClient.events)


class SyncMessagesClient(_Sync[MessagesClient]):
    send = _make_blocking(MessagesClient.send)
    get = _make_blocking(MessagesClient.get)
    reply = _make_blocking(MessagesClient.reply)
    conversation = _make_blocking(MessagesClient.conversation)
    follow = _make_generator(MessagesClient.follow)


class SyncTasksClient(_Sync[TasksClient]):
    create = _make_blocking(TasksClient.create)
    get = _make_blocking(TasksClient.get)
    list = _make_blocking(TasksClient.list)
    events = _make_generator(TasksClient.events)
    result = _make_blocking(TasksClient.result)
    answer = _make_blocking(TasksClient.answer)
    cancel = _make_blocking(TasksClient.cancel)


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

    agents = _make_blocking(FabricClient.agents)
    search = _make_blocking(FabricClient.search)
    describe = _make_blocking(FabricClient.describe)
    route = _make_blocking(FabricClient.route)
    tools = _make_blocking(FabricClient.tools)
    nodes = _make_blocking(FabricClient.nodes)
    health = _make_blocking(FabricClient.health)
    call = _make_blocking(FabricClient.call)
    stream = _make_generator(FabricClient.stream)
    ask = _make_blocking(FabricClient.ask)
    stream_ask = _make_generator(FabricClient.stream_ask)
    route_request = _make_blocking(FabricClient.route_request)
    submit = _make_handle_method(FabricClient.submit)
    jobs = _make_blocking(FabricClient.jobs)
    tool = _make_blocking(FabricClient.tool)
    operation = _make_blocking(FabricClient.operation)
    administer = _make_blocking(FabricClient.administer)

    def job(self, job_id: str) -> SyncJobHandle:
        return SyncJobHandle(self._target.job(job_id), self._loop)


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
