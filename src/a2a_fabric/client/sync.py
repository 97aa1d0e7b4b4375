"""`SyncFabricClient`: the same methods for code without an event loop. Its own loop runs in a private thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol, Self, TypeVar

from msgspec import UNSET

from a2a_fabric.client.client import DEFAULT_URL, FabricClient
from a2a_fabric.client.job import JobHandle
from a2a_fabric.client.wire import CallResult, StreamEvent
from a2a_fabric.core.agent import Status, TrustTier
from a2a_fabric.core.call import Attachment
from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.part import Part
from a2a_fabric.core.trace import Trace

T = TypeVar("T")


class RunCoroutine(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


class SyncFabricClient:
    """One node. Use it as a context manager, or call `close` when done. Several threads may share it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        timeout: float = 60.0,
        *,
        delegation_chain: MaybeChain = UNSET,
    ) -> None:
        self._client = FabricClient(url, token, timeout, delegation_chain=delegation_chain)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fabric-client", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._client.aclose())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def agents(
        self, capability: str | None = None, tag: str | None = None, status: Status | None = None
    ) -> list[dict[str, Any]]:
        return self._run(self._client.agents(capability, tag, status))

    def search(
        self,
        query: str = "",
        *,
        capability: str | Sequence[str] | None = None,
        tag: str | Sequence[str] | None = None,
        trust_tier: TrustTier | None = None,
        limit: int = 10,
    ) -> list[dict[str, Any]]:
        coroutine = self._client.search(query, capability=capability, tag=tag, trust_tier=trust_tier, limit=limit)
        return self._run(coroutine)

    def describe(self, agent_id: str) -> dict[str, Any]:
        return self._run(self._client.describe(agent_id))

    def route(self, agent_id: str, capability: str, stream: bool = False) -> dict[str, Any]:
        return self._run(self._client.route(agent_id, capability, stream))

    def tools(self, category: str | None = None, provider: str | None = None) -> list[dict[str, Any]]:
        return self._run(self._client.tools(category, provider))

    def health(self) -> dict[str, Any]:
        return self._run(self._client.health())

    def call(
        self,
        agent_id: str,
        capability: str,
        task: str = "",
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
        trace: Trace | None = None,
        *,
        attachments: Sequence[Part | Attachment] = (),
        conversation_id: str | None = None,
    ) -> CallResult:
        options: dict[str, Any] = {"attachments": attachments, "conversation_id": conversation_id}
        return self._run(self._client.call(agent_id, capability, task, context, timeout, trace, **options))

    def stream(
        self,
        agent_id: str,
        capability: str,
        task: str = "",
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
        trace: Trace | None = None,
        *,
        attachments: Sequence[Part | Attachment] = (),
        conversation_id: str | None = None,
    ) -> Generator[StreamEvent]:
        options: dict[str, Any] = {"attachments": attachments, "conversation_id": conversation_id}
        yield from self._iterate(self._client.stream(agent_id, capability, task, context, timeout, trace, **options))

    def submit(
        self,
        agent_id: str,
        capability: str,
        task: str = "",
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        attachments: Sequence[Part | Attachment] = (),
        **about: Any,
    ) -> SyncJobHandle:
        coroutine = self._client.submit(agent_id, capability, task, context, timeout, attachments=attachments, **about)
        job = self._run(coroutine)
        return SyncJobHandle(job, self._run, self._iterate)

    def job(self, job_id: str) -> SyncJobHandle:
        return SyncJobHandle(self._client.job(job_id), self._run, self._iterate)

    def jobs(
        self, state: str | Sequence[str] | None = None, agent_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        return self._run(self._client.jobs(state, agent_id, limit))

    def tool(self, name: str, /, **arguments: Any) -> CallResult:
        return self._run(self._client.tool(name, **arguments))

    def operation(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return self._run(self._client.operation(name, **arguments))

    def _iterate(self, events: AsyncGenerator[StreamEvent]) -> Generator[StreamEvent]:
        """The same events without an event loop; leaving early closes them."""
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            if not self._loop.is_closed():  # closing the client has ended the stream already
                self._run(events.aclose())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the private loop and wait; an interrupted wait (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


class SyncJobHandle:
    """A `JobHandle` for code without an event loop."""

    def __init__(self, job: JobHandle, run: RunCoroutine, iterate: Callable[..., Generator[StreamEvent]]) -> None:
        self.job_id = job.job_id
        self._job = job
        self._run = run
        self._iterate = iterate

    def status(self) -> dict[str, Any]:
        return self._run(self._job.status())

    def events(self, after: int = 0) -> Generator[StreamEvent]:
        return self._iterate(self._job.events(after))

    def result(self, timeout: float | None = None) -> CallResult:
        return self._run(self._job.result(timeout))

    def cancel(self) -> dict[str, Any]:
        return self._run(self._job.cancel())

    def answer(self, answers: dict[str, Any]) -> dict[str, Any]:
        return self._run(self._job.answer(answers))

    def retry(self) -> SyncJobHandle:
        return SyncJobHandle(self._run(self._job.retry()), self._run, self._iterate)


async def _next(events: AsyncIterator[StreamEvent]) -> StreamEvent | None:
    return await anext(events, None)
