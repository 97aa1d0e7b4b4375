"""Runs an author's function: plain, async, generator or async generator.

What the function yields becomes events; what it returns (or yields as its last object) is the result.
Content that is more than JSON is a `Part` or a list of them: returned, it is the answer;
yielded, it is an artifact and is added to the answer in the end.
Plain functions and generators run in threads, so they never block the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.authoring.signature import Function
from a2a_fabric.core.content import result_from_parts
from a2a_fabric.core.errors import UpstreamFailed
from a2a_fabric.core.events import Event, artifact, token
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import CallerEmitter, Emit
from a2a_fabric.core.result import Result, to_json_object
from a2a_fabric.core.threads import run_in_worker_thread

TEXT_LIMIT = 16 * 1024 * 1024  # characters of yielded text that are kept, in case the function returns no result

_END = object()
_EVENTS_PER_YIELD = 32  # events without a pause


def is_async(function: Function) -> bool:
    """Whether the function can be called inside the event loop without blocking it."""
    return any(
        check(candidate)
        for candidate in (function, getattr(function, "__call__", None))  # noqa: B004  # the method, not callability
        for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


def is_generator(function: Function) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


async def run_function(function: Function, values: dict[str, Any], emit: Emit, *, is_async: bool) -> Result:
    """Call the function and wait for its end. Its exceptions are passed on unchanged."""
    produced = function(**values) if is_async else await run_in_worker_thread(function, **values)
    if inspect.isawaitable(produced):
        produced = await produced
    if inspect.isgenerator(produced):
        produced = _iterate_in_threads(produced)
    if inspect.isasyncgen(produced):
        async with aclosing(produced):
            return await _collect(produced, emit)
    return to_result(produced)


def to_result(value: Any) -> Result:
    if isinstance(value, Result):
        return value
    if isinstance(value, Part):
        return result_from_parts([value])
    if isinstance(value, list | tuple) and value and all(isinstance(each, Part) for each in value):
        return result_from_parts(value)
    try:
        return Result(data=to_json_object(msgspec.to_builtins(value, str_keys=True)))
    except (TypeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent answered with something that is not JSON: {exc}") from exc


def to_event(item: Any) -> Event:
    """The event for a value passed to `emit`, which is an event or text."""
    if isinstance(item, Event):
        return item
    if isinstance(item, str):
        return token(item)
    raise TypeError(f"An event or a str can be emitted, not {type(item).__name__}")


async def _collect(items: AsyncIterator[Any], emit: Emit) -> Result:
    """Emit each item. The last object is the result, earlier ones are artifacts; without objects, the text is."""
    answer: Result | None = None
    text_buffer = _TextBuffer()
    parts: list[Part] = []
    async for item in items:
        if isinstance(item, str | Event):
            event = to_event(item)
            text_buffer.add(event)
            await emit(event)
        elif isinstance(item, Part):
            parts.append(item)
            await emit(artifact(_to_builtins(item)))
        elif item is not None:
            if answer is not None:
                await emit(artifact(answer.data))
            answer = to_result(item)
    if answer is None:
        answer = Result(data={"answer": text_buffer.text} if text_buffer.text or not parts else {})
    return replace(answer, parts=(*parts, *answer.parts)) if parts else answer


def _to_builtins(part: Part) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = msgspec.to_builtins(part, str_keys=True)
    except (TypeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent made a part that is not JSON: {exc}") from exc
    return plain


class _TextBuffer:
    """The text of a stream, kept as long as it may become the result."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def add(self, event: Event) -> None:
        if event.kind == "token" and self._size <= TEXT_LIMIT:
            text = str(event.data.get("text", ""))
            self._parts.append(text)
            self._size += len(text)

    @property
    def text(self) -> str:
        if self._size > TEXT_LIMIT:
            raise UpstreamFailed(f"The agent streamed more than {TEXT_LIMIT} characters and returned no result")
        return "".join(self._parts)


async def _iterate_in_threads(generator: Generator[Any, Any, Any]) -> AsyncIterator[Any]:
    """A plain generator, each step in a thread."""
    steps = _ThreadedGenerator(generator)
    try:
        while (item := await run_in_worker_thread(steps.next)) is not _END:
            yield item
    finally:
        await asyncio.to_thread(steps.close)


class _ThreadedGenerator:
    """Closing does not wait for a running step: the thread of that step closes the generator afterwards."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self._generator = generator
        self._running = threading.Lock()
        self._is_over = False

    def next(self) -> Any:
        try:
            with self._running:
                return next(self._generator, _END)
        finally:
            if self._is_over:
                self.close()

    def close(self) -> None:
        self._is_over = True
        if self._running.acquire(blocking=False):
            try:
                self._generator.close()
            finally:
                self._running.release()


class YieldingEmitter(CallerEmitter):
    """Yields to the event loop regularly, so that code that never waits can still be cancelled."""

    _events_since_yield = 0

    async def __call__(self, event: Event) -> None:
        await super().__call__(event)
        self._events_since_yield += 1
        if self._events_since_yield >= _EVENTS_PER_YIELD:
            self._events_since_yield = 0
            await asyncio.sleep(0)


class Emitter:
    """Accepts events and text; awaited by async functions."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def __call__(self, item: Any) -> Any:
        return self._send(to_event(item))

    async def _send(self, event: Event) -> None:
        """Always a coroutine, because an author may make a task of it."""
        await self._emit(event)

    def close(self) -> None:
        """The call has ended, so no further events are accepted."""


class ThreadEmitter(Emitter):
    """Blocks its thread until the event is delivered; raises CancelledError if the call has ended."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._loop = asyncio.get_running_loop()
        self._delivering: concurrent.futures.Future[None] | None = None
        self._is_closed = False

    def __call__(self, item: Any) -> None:
        event = to_event(item)
        if not self._is_closed:
            self._delivering = asyncio.run_coroutine_threadsafe(self._deliver(event), self._loop)
        if self._is_closed or self._delivering is None:
            raise concurrent.futures.CancelledError("The call was cancelled")
        self._delivering.result()

    async def _deliver(self, event: Event) -> None:
        if not self._is_closed:
            await self._emit(event)

    def close(self) -> None:
        self._is_closed = True
        if self._delivering is not None:
            self._delivering.cancel()
