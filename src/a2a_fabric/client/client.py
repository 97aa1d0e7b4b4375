"""`FabricClient`: a node's operations as methods, for async code.

    async with FabricClient(token="...") as fabric:
        result = await fabric.call("percy", "reason", "What is 12 * 7?")
        async for event in fabric.stream("percy", "reason", "What is 12 * 7?"):
            print(event.text, end="")
        job = await fabric.submit("percy", "reason", "Think for an hour.")
        result = await job.result()

Failures are raised as `FabricError`s, with the code, the details and the
`trace_id` that the node reported. A call that may have run is never repeated."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, Self

import msgspec
from msgspec import UNSET

from a2a_fabric.client.directory import DirectoryClient
from a2a_fabric.client.http import REPLY_BYTES, STREAM_BYTES, NodeHttp, pause_or_raise, retry_request
from a2a_fabric.client.local_node import check_token, complete_url, find_node
from a2a_fabric.client.rest import MessagesClient, TasksClient
from a2a_fabric.client.wire import (
    CallResult,
    NodeUnreachable,
    StreamEvent,
    encode_request,
    error_from_transport,
    final_event_from_result,
    read_event,
    read_reply,
    to_attachments,
)
from a2a_fabric.core.agent import Status, TrustTier
from a2a_fabric.core.call import Attachment
from a2a_fabric.core.errors import (
    CallTimeout,
    FabricError,
    RateLimited,
    StoreUnavailable,
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.propagation import MaybeChain, Trace, chain_to_headers, new_id, traceparent_to_headers
from a2a_fabric.core.result import Part
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import OutboundError, StreamedReply

_GRACE_SECONDS = 5.0  # seconds beyond a call's timeout, so that the node's own error arrives
_PAGE = 1000
_CONNECTION_SECONDS = 300.0  # then a new connection continues the stream
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0
_AFTER_LAST = 10**14  # beyond every log, so that only `final` is sent


class FabricClient:
    """One node. Use it as an async context manager, or call `aclose` when done."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        *,
        delegation_chain: MaybeChain = UNSET,
        traceparent: str | None = None,
    ) -> None:
        """Without a URL, the node is found as the command line finds it: FABRIC_URL and FABRIC_TOKEN, else the node
        that this user started last on this machine, with its kept key. With a URL, only the given token is sent.

        `delegation_chain` and `traceparent` are for agents that call a node in turn: what came with their own call.
        """
        if url is None:
            url, found_token = find_node()
            token = token or found_token
        self.url = complete_url(url)
        self.timeout = timeout
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {check_token(token)}"
        self._headers |= chain_to_headers(delegation_chain) | traceparent_to_headers(traceparent)
        self._http = OutboundClient()
        node = NodeHttp(self.url, self._headers, timeout, self._http)
        self.directory = DirectoryClient(node)
        self.messages = MessagesClient(node)
        self.tasks = TasksClient(node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def agents(
        self, capability: str | None = None, tag: str | None = None, status: Status | None = None
    ) -> list[dict[str, Any]]:
        """The agents that the node knows, or those with this capability, tag or status."""
        return await self._query_all("fabric.agent.list", "agents", capability=capability, tag=tag, status=status)

    async def search(
        self,
        query: str = "",
        *,
        capability: str | Sequence[str] | None = None,
        tag: str | Sequence[str] | None = None,
        trust_tier: TrustTier | None = None,
        limit: int = 10,
    ) -> list[dict[str, Any]]:
        """Agents that fit a query in words, the best first, each with its `score` (up to 100) and `why`."""
        response = await self._query(
            "fabric.agent.search", query=query, capability=capability, tag=tag, trust_tier=trust_tier, limit=limit
        )
        return list(response.get("results", []))

    async def describe(self, agent_id: str) -> dict[str, Any]:
        """Everything about one agent: its capabilities with their schemas, its health, its trust tier."""
        return dict((await self._query("fabric.agent.describe", agent_id=agent_id)).get("agent", {}))

    async def route(self, agent_id: str, capability: str, stream: bool = False) -> dict[str, Any]:
        """Which agents would answer such a call now, in which order, and why. Nothing is called."""
        return await self._query("fabric.route.preview", agent_id=agent_id, capability=capability, stream=stream)

    async def tools(self, category: str | None = None, provider: str | None = None) -> list[dict[str, Any]]:
        """Built-in tools (`provider="builtin"`) and the agents' capabilities as tools (`provider="agent"`)."""
        return await self._query_all("fabric.tool.list", "tools", category=category, provider=provider)

    async def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the mesh, the one that answers first; empty if it is in none. For the operator."""
        nodes: list[dict[str, Any]] = (await self._query("fabric.node.list"))["nodes"]
        return nodes

    async def health(self) -> dict[str, Any]:
        """The health of the node, its registry and its agents."""
        return await self._query("fabric.health")

    async def call(
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
        """Call an agent and wait for its answer. Calls of one conversation share the agent's memory, if it has one."""
        seconds = timeout or self.timeout
        target = {"agent_id": agent_id, "capability": capability, "conversation_id": conversation_id}
        arguments = {**target, **_build_input(task, context, attachments), **_build_limits(seconds, trace)}
        return await self._send("fabric.call", arguments, seconds + _GRACE_SECONDS)

    async def stream(
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
    ) -> AsyncGenerator[StreamEvent]:
        """Call an agent and receive its events; the last one is `final`. Leaving early cancels the call."""
        seconds = timeout or self.timeout
        target = {"agent_id": agent_id, "capability": capability, "conversation_id": conversation_id}
        arguments = {**target, **_build_input(task, context, attachments), **_build_limits(seconds, trace)}
        async with aclosing(self._stream("fabric.call", arguments, seconds)) as events:
            async for event in events:
                yield event

    async def ask(
        self,
        text: str,
        *,
        conversation_id: str | None = None,
        context: dict[str, Any] | None = None,
        attachments: Sequence[Part | Attachment] = (),
        timeout: float | None = None,
    ) -> CallResult:
        """Ask in plain words: the agent that fits answers. `data["_fabric"]` says which one, and why."""
        seconds = timeout or self.timeout
        arguments = _build_request(text, conversation_id, context, attachments, seconds)
        return await self._send("fabric.ask", arguments, seconds + _GRACE_SECONDS)

    async def stream_ask(
        self,
        text: str,
        *,
        conversation_id: str | None = None,
        context: dict[str, Any] | None = None,
        attachments: Sequence[Part | Attachment] = (),
        timeout: float | None = None,
    ) -> AsyncGenerator[StreamEvent]:
        """As `ask`, with the agent's events; the last one is `final`. Leaving early cancels the call."""
        seconds = timeout or self.timeout
        arguments = _build_request(text, conversation_id, context, attachments, seconds)
        async with aclosing(self._stream("fabric.ask", arguments, seconds)) as events:
            async for event in events:
                yield event

    async def route_request(self, text: str, conversation_id: str | None = None) -> dict[str, Any]:
        """Which agent a request in plain words is for, and why. Nothing is called."""
        return await self._query("fabric.route", text=text, conversation_id=conversation_id)

    async def _stream(self, operation: str, arguments: dict[str, Any], seconds: float) -> AsyncGenerator[StreamEvent]:
        """The events of an operation. It is tried again only as long as no event has come."""
        body = encode_request(operation, {**arguments, "stream": True})
        total_timeout = seconds + _GRACE_SECONDS
        ends_at = time.monotonic() + total_timeout
        has_begun = False
        for attempt in count(1):
            try:
                async with aclosing(self._events(body, total_timeout, ends_at - time.monotonic())) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except FabricError as error:
                if has_begun:
                    raise
                await pause_or_raise(error, attempt, ends_at)

    async def submit(
        self,
        /,
        agent_id: str,
        capability: str,
        task: str = "",
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        attachments: Sequence[Part | Attachment] = (),
        **about: Any,
    ) -> JobHandle:
        """Call an agent without waiting: the node stores the call as a job, which survives client and node.

        `about` may hold `idempotency_key` (by default a new one, so that a lost reply does not make two jobs),
        `priority`, `run_at`, `expires_at`, `ttl_ms`, `webhook` and `conversation_id`.
        """
        target = {"agent_id": agent_id, "capability": capability, "async": True}
        arguments = {**target, **_build_input(task, context, attachments)}
        options = {"timeout_ms": _milliseconds(timeout) if timeout else None, "idempotency_key": new_id(), **about}
        result = await self._send("fabric.call", {**arguments, **options}, self.timeout, read_only=True)
        return self.job(str(result.data["job_id"]))

    def job(self, job_id: str) -> JobHandle:
        """The handle of an existing job. Sends nothing yet."""
        return JobHandle(self, job_id)

    async def jobs(
        self, state: str | Sequence[str] | None = None, agent_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Your jobs, newest first: all, or those in one of these states."""
        jobs: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(jobs) < limit:
            filters = {"state": state or None, "agent_id": agent_id, "limit": min(limit - len(jobs), _PAGE)}
            page = await self._query("fabric.job.list", cursor=cursor, **filters)
            jobs += page.get("jobs", [])
            cursor = page.get("cursor")
            if cursor is None:
                break
        return jobs

    async def tool(self, name: str, /, **arguments: Any) -> CallResult:
        """Run a tool: `await fabric.tool("math.calculate", expression="2 + 2")`."""
        timeout_ms = _milliseconds(self.timeout)
        call_arguments = {"tool_id": name, "parameters": arguments, "timeout_ms": timeout_ms}
        return await self._send("fabric.tool.call", call_arguments, self.timeout + _GRACE_SECONDS)

    async def operation(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Any operation of the node by its name: `await fabric.operation("fabric.message.queue_status")`."""
        return (await self._send(name, arguments, self.timeout)).data

    async def administer(self, name: str, /, *, wait: float = 0.0, **arguments: Any) -> dict[str, Any]:
        """One request to the admin API, which the console uses too: `await fabric.administer("overview")`.

        `wait` are the seconds for which the node may keep the request open.
        """
        body = msgspec.json.encode({key: value for key, value in arguments.items() if value is not None})
        return (await self._post(f"/admin/v1/{name}", body, self.timeout + wait, read_only=False)).data

    async def _query_all(self, operation: str, name: str, **arguments: Any) -> list[dict[str, Any]]:
        """The items of all pages. A node answers with one page unless it has very many."""
        page = await self._query(operation, **arguments)
        items = list(page.get(name, []))
        while cursor := page.get("next_cursor"):
            page = await self._query(operation, **arguments, cursor=cursor)
            items += page.get(name, [])
            if page.get("next_cursor") == cursor:
                raise UpstreamFailed(f"The node answered the same page of {operation} twice")
        return items

    async def _query(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Run an operation that changes nothing, so it may be repeated."""
        return (await self._send(operation, arguments, self.timeout, read_only=True)).data

    async def _send(
        self, operation: str, arguments: dict[str, Any], timeout: float, *, read_only: bool = False
    ) -> CallResult:
        return await self._post("/mcp/call", encode_request(operation, arguments), timeout, read_only=read_only)

    async def _post(self, path: str, body: bytes, timeout: float, *, read_only: bool) -> CallResult:
        async def send_once(time_left: float) -> CallResult:
            try:
                reply = await self._http.request(
                    "POST",
                    self.url + path,
                    headers={**self._headers, "accept": "application/json"},
                    body=body,
                    timeout=time_left,
                    limit=REPLY_BYTES,
                )
            except OutboundError as exc:
                raise error_from_transport(exc, self.url, timeout) from exc
            return read_reply(reply.status, reply.body, reply.headers.get("retry-after"))

        return await retry_request(send_once, timeout, read_only=read_only)

    async def _events(self, body: bytes, timeout: float, time_left: float) -> AsyncGenerator[StreamEvent]:
        """The events of one connection, until it ends or breaks."""
        headers = {**self._headers, "accept": "text/event-stream, application/json"}
        url = f"{self.url}/mcp/call"
        try:
            async with self._http.stream(
                "POST", url, headers=headers, body=body, timeout=time_left, limit=STREAM_BYTES
            ) as reply:
                if reply.headers.get("content-type", "").startswith("text/event-stream"):
                    async for event in _events_until_final(reply):
                        yield event
                else:
                    yield final_event_from_result(
                        read_reply(reply.status, await reply.read(), reply.headers.get("retry-after"))
                    )
        except OutboundError as exc:
            raise error_from_transport(exc, self.url, timeout) from exc


class JobHandle:
    """Follow a job, wait for it, answer it, cancel it.

    The node stores the job's log, so a broken connection loses nothing: `events` reconnects with the last event number
    it has and continues there. `reconnect_timeout` is how long, in seconds, it tries to reach a node that is gone.
    """

    def __init__(self, node: FabricClient, job_id: str, reconnect_timeout: float = 60.0) -> None:
        self.job_id = job_id
        self._node = node
        self._reconnect_timeout = reconnect_timeout

    async def status(self) -> dict[str, Any]:
        return await self._node._query("fabric.job.status", job_id=self.job_id)

    async def events(self, after: int = 0) -> AsyncGenerator[StreamEvent]:
        """The events after a number, each once, in order; the last one is `final`. A failed job raises its error.

        Leaving early does not affect the job.
        """
        broken_at: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                body = encode_request("fabric.job.stream", {"job_id": self.job_id, "after": after})
                stream = self._node._events(body, _CONNECTION_SECONDS, _CONNECTION_SECONDS)
                async with aclosing(stream) as events:
                    async for event in events:
                        broken_at, pause = None, _FIRST_PAUSE
                        after = event.number or after
                        yield event
                return
            except FabricError as error:
                if not _is_connection_error(error):
                    raise
                broken_at = broken_at or time.monotonic()
                if time.monotonic() - broken_at > self._reconnect_timeout:
                    raise
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, _MAX_PAUSE)

    async def result(self, timeout: float | None = None) -> CallResult:
        """Wait for the end. Raises the job's error, or CallTimeout after `timeout` seconds; then the job continues.

        If the agent asks a question first, the result has a `job_id` and holds the question.
        """
        try:
            async with asyncio.timeout(timeout), aclosing(self.events(_AFTER_LAST)) as events:
                async for event in events:
                    if event.kind == "final":
                        return event.result
        except TimeoutError as exc:
            raise CallTimeout(timeout or 0.0, job_id=self.job_id) from exc
        raise AssertionError("a stream ends with `final`")

    async def cancel(self) -> dict[str, Any]:
        return await self._node._query("fabric.job.cancel", job_id=self.job_id)

    async def answer(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Answer each question by its key: `{"name": {"content": ...}}`."""
        arguments = {"job_id": self.job_id, "answers": answers}
        return (await self._node._send("fabric.job.answer", arguments, self._reconnect_timeout)).data

    async def retry(self) -> JobHandle:
        """The same call again, as a new job. Raises Conflict while this one has not ended."""
        response = await self._node._send("fabric.job.retry", {"job_id": self.job_id}, self._reconnect_timeout)
        return JobHandle(self._node, str(response.data["job_id"]), self._reconnect_timeout)


def _is_connection_error(error: FabricError) -> bool:
    """Whether the connection to the job failed, rather than the job."""
    if isinstance(error, StoreUnavailable | NodeUnreachable | RateLimited):
        return True
    return error.trace_id is None and isinstance(error, UpstreamInterrupted | CallTimeout)


async def _events_until_final(reply: StreamedReply) -> AsyncIterator[StreamEvent]:
    async for frame in sse.iter_event_data(reply.chunks(), limit=REPLY_BYTES):
        event = read_event(frame)
        if event is not None:
            yield event
            if event.kind == "final":
                return
    raise UpstreamInterrupted("The stream ended before the answer arrived")


def _build_input(task: str, context: dict[str, Any] | None, attachments: Sequence[Part | Attachment]) -> dict[str, Any]:
    return {"task": task, "context": context, "attachments": to_attachments(attachments)}


def _build_request(
    text: str,
    conversation_id: str | None,
    context: dict[str, Any] | None,
    attachments: Sequence[Part | Attachment],
    seconds: float,
) -> dict[str, Any]:
    content = {"text": text, "context": context, "attachments": to_attachments(attachments)}
    return {**content, "conversation_id": conversation_id, **_build_limits(seconds, None)}


def _build_limits(timeout: float, trace: Trace | None) -> dict[str, Any]:
    span = {"trace_id": trace.trace_id, "span_id": trace.span_id} if trace else None
    return {"timeout_ms": _milliseconds(timeout), "trace": span}


def _milliseconds(timeout: float) -> int:
    return max(1, round(timeout * 1000))
