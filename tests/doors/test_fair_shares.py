"""One caller takes all it can get; another one goes on as if it were alone. Through real doors, with two keys."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
import websockets

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import rpc
from tests.doors.test_directory_tasks import task
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

GREEDY, HONEST = "the-key-of-the-greedy-one", "the-key-of-the-honest-one"
KEYS = {"keys": [{"id": "greedy", "key": GREEDY}, {"id": "honest", "key": HONEST}]}


@asynccontextmanager
async def shared(*agents: Agent, **config: Any) -> AsyncIterator[Node]:
    limits = {"drain_seconds": 1, **config.pop("limits", {})}  # some leave tasks behind that never end
    async with running(*agents, config={"auth": KEYS, "health": {"interval": 0}, "limits": limits, **config}) as node:
        yield node


async def call(node: Node, token: str, capability: str = "reason", agent_id: str = "percy", **more: Any) -> Reply:
    given = {"agent_id": agent_id, "capability": capability, "task": "x", **more}
    return await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": given}, token=token)


def check_limited(reply: Reply) -> None:
    assert reply.status == 429, reply.body
    assert int(reply.headers["retry-after"]) >= 1


async def settled(tasks: list[asyncio.Task[Reply]], running: int) -> list[Reply]:
    """What all but `running` of them were answered."""

    async def enough() -> bool:
        return sum(task.done() for task in tasks) >= len(tasks) - running

    await eventually(enough)
    return [task.result() for task in tasks if task.done()]


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@requirement("001-55")
@pytest.mark.parametrize("setting", ["concurrent_calls", "concurrent_calls_per_agent"])
async def test_a_caller_with_as_many_calls_as_it_can_make_leaves_room_for_others(setting: str) -> None:
    percy = Percy()
    async with shared(percy.agent, limits={setting: 8}) as node:
        held = [asyncio.ensure_future(call(node, GREEDY, "hold")) for _ in range(20)]
        for reply in await settled(held, running=6):
            check_limited(reply)
            assert reply.json["error_code"] == "RATE_LIMITED"
            assert "its share" in reply.json["error"]
        assert [(await call(node, HONEST)).status for _ in range(10)] == [200] * 10
        together = await asyncio.gather(call(node, HONEST), call(node, HONEST))
        assert [reply.status for reply in together] == [200, 200]
        percy.may_go_on.set()
        assert [reply.status for reply in await asyncio.gather(*held)].count(200) == 6
        assert (await call(node, GREEDY)).status == 200


async def test_two_greedy_callers_together_leave_room_too() -> None:
    keys = [{"id": f"greedy-{number}", "key": f"greedy-key-{number}"} for number in range(2)]
    config = {"auth": {"keys": [*keys, {"id": "honest", "key": HONEST}]}, "limits": {"concurrent_calls": 32}}
    percy = Percy()
    async with running(percy.agent, config=config) as node:
        held = [asyncio.ensure_future(call(node, each["key"], "hold")) for each in keys for _ in range(50)]

        async def refuses_all() -> bool:
            return all([(await call(node, each["key"])).status == 429 for each in keys])

        await eventually(refuses_all)
        assert [(await call(node, HONEST)).status for _ in range(10)] == [200] * 10
        await end(held)


async def test_who_is_alone_gets_everything_if_the_operator_says_so() -> None:
    percy = Percy()
    async with shared(percy.agent, limits={"concurrent_calls": 8, "share_per_caller": 1}) as node:
        held = [asyncio.ensure_future(call(node, GREEDY, "hold")) for _ in range(9)]
        [refused] = await settled(held, running=8)
        assert "busy with 8 calls" in refused.json["error"]
        percy.may_go_on.set()
        await asyncio.gather(*held)


def streamed(node: Node, token: str) -> Any:
    """A call that says something and then waits."""
    given = {"agent_id": "percy", "capability": "wait_and_talk", "task": "x", "stream": True}
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    return node.client.post(node.url + "/mcp/call", json={"name": "fabric.call", "arguments": given}, headers=headers)


def listening(node: Node, token: str) -> Any:
    """MCP's stream of changes, in the stateless era."""
    head, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    return node.client.post(node.url + "/mcp", json=body, headers={**head, "Authorization": f"Bearer {token}"})


def directory_events(node: Node, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    return node.client.post(node.url + "/a2a", json=rpc("a2a/events", {}), headers=headers)


def a2a_stream(node: Node, token: str) -> Any:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
    return node.client.post(node.url + "/agents/waiter", json=body, headers=headers)


def waiter() -> Agent:
    agent = Agent("waiter", description="Waits.")

    @agent.capability
    async def wait(task: str) -> AsyncIterator[str]:
        yield "waiting"
        await asyncio.Event().wait()

    return agent


Open = Callable[[Node, str], Any]
STREAMS: list[tuple[Open, dict[str, Any]]] = [
    (streamed, {"limits": {"streams": 8}}),
    (listening, {"limits": {"streams": 8}}),
    (directory_events, {"limits": {"streams": 8}}),
    (directory_events, {"doors": [{"kind": "fabric"}, {"kind": "directory", "max_subscribers": 8}]}),
    (a2a_stream, {"limits": {"streams": 8}}),
    (a2a_stream, {"doors": [{"kind": "fabric"}, {"kind": "a2a", "max_streams": 8}]}),
]


@pytest.mark.parametrize(("open_", "config"), STREAMS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_caller_with_as_many_streams_as_it_can_open_leaves_room_for_others(
    open_: Open, config: dict[str, Any]
) -> None:
    async with (
        shared(Percy().agent, waiter(), **config) as node,
        AsyncExitStack() as stack,
        asyncio.timeout(WAIT_TIMEOUT),
    ):
        replies = [await stack.enter_async_context(open_(node, GREEDY)) for _ in range(12)]
        assert [reply.status for reply in replies[:6]] == [200] * 6
        for refused in replies[6:]:
            assert (refused.status, int(refused.headers["retry-after"]) >= 1) == (429, True), await refused.text()
            text = await refused.text()
            assert "its share" in text
        honest = await stack.enter_async_context(open_(node, HONEST))
        assert honest.status == 200
        assert await honest.content.readany()
        replies[0].close()

        async def has_room() -> bool:
            async with open_(node, HONEST) as reply:
                return bool(reply.status == 200)

        await eventually(has_room)
        for reply in [*replies, honest]:
            reply.close()


@pytest.mark.parametrize("path", ["/mcp/ws", "/mcp/call"])
async def test_and_so_it_is_with_sockets(path: str) -> None:
    async with shared(Percy().agent, limits={"streams": 8}) as node, AsyncExitStack() as stack:
        url = node.url.replace("http", "ws") + path

        async def connect(token: str) -> Any:
            connecting = websockets.connect(url, additional_headers={"Authorization": f"Bearer {token}"})
            return await stack.enter_async_context(connecting)

        for _ in range(6):
            await connect(GREEDY)
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await connect(GREEDY)
        assert refused.value.response.status_code == 429
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        await connect(HONEST)


async def submit(node: Node, token: str, capability: str) -> Any:
    given = {"agent_id": "percy", "capability": capability, "task": "x", "async": True}
    return await node.operation("fabric.call", given, token=token)


async def test_a_caller_with_as_many_jobs_as_it_can_run_leaves_room_for_others() -> None:
    percy = Percy()
    async with shared(percy.agent, jobs={"concurrent": 4}) as node:
        for _ in range(12):
            assert (await submit(node, GREEDY, "hold"))["ok"] is True
        await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        for _ in range(5):
            job = (await submit(node, HONEST, "reason"))["result"]["job_id"]
            waited = await node.operation("fabric.job.result", {"job_id": job, "wait_ms": 20_000}, token=HONEST)
            assert waited["ok"] is True, waited
        percy.may_go_on.set()


async def test_calls_that_became_jobs_keep_no_place_from_anybodys_jobs() -> None:
    percy = Percy()
    async with shared(percy.agent, jobs={"concurrent": 4}) as node:
        kept = await asyncio.gather(*(call(node, GREEDY, "hold", job_after_ms=1) for _ in range(12)))
        assert all(reply.json["result"]["job_id"] for reply in kept)
        job = (await submit(node, HONEST, "reason"))["result"]["job_id"]
        waited = await node.operation("fabric.job.result", {"job_id": job, "wait_ms": 20_000}, token=HONEST)
        assert waited["ok"] is True, waited
        percy.may_go_on.set()


def blocking(free: threading.Event) -> Agent:
    """Functions that are not async, so each call needs a thread."""
    agent = Agent("blocking", description="Takes threads.")

    @agent.capability
    def block(task: str) -> dict[str, Any]:
        free.wait(WAIT_TIMEOUT)
        return {}

    @agent.capability
    def quick(task: str) -> dict[str, Any]:
        return {"answer": task}

    return agent


async def test_a_caller_with_as_many_threads_as_it_can_hold_leaves_room_for_others() -> None:
    free = threading.Event()
    async with shared(blocking(free)) as node:
        held = [asyncio.ensure_future(call(node, GREEDY, "block", "blocking")) for _ in range(50)]
        try:
            async with asyncio.timeout(WAIT_TIMEOUT / 2):
                for _ in range(5):
                    assert (await call(node, HONEST, "quick", "blocking")).status == 200
                    pattern = {"text": "abc", "pattern": "b"}
                    found = await call(node, HONEST, "match", "text.regex", context=pattern)
                    assert found.json["ok"] is True, found.json
        finally:
            free.set()
        assert {reply.status for reply in await asyncio.gather(*held)} == {200}


async def test_threads_of_abandoned_calls_are_still_taken() -> None:
    """A thread cannot be stopped: who leaves and comes again gets no more of them."""
    free = threading.Event()
    async with shared(blocking(free), limits={"agent_threads": 4}) as node:
        try:
            for _ in range(4):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(
                        asyncio.gather(*(call(node, GREEDY, "block", "blocking") for _ in range(4))), 0.5
                    )
            async with asyncio.timeout(WAIT_TIMEOUT / 2):
                assert (await call(node, HONEST, "quick", "blocking")).status == 200
        finally:
            free.set()


RATE = {"limits": {"calls_per_minute": 6}}  # the next one may come in ten seconds, while those who wait still do
_numbers = iter(range(10**9))


def of_directory(node: Node) -> Awaitable[Reply]:
    given = task("reason", {"task": "x"}, agentId="percy", timeoutMs=20_000)
    return node.send("POST", "/a2a", json=rpc("a2a/task", given), token=GREEDY)


def of_a2a(node: Node) -> Awaitable[Reply]:
    said = {"messageId": f"m{next(_numbers)}", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    message = {**said, "metadata": {"skill": "reason"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    return node.send("POST", "/agents/percy", json=body, token=GREEDY, headers={"A2A-Version": "1.0"})


def of_jobs(node: Node) -> Awaitable[Reply]:
    asked: dict[str, Any] = {"async": True}
    return call(node, GREEDY, **asked)


def of_calls(node: Node) -> Awaitable[Reply]:
    return call(node, GREEDY)


def of_rest(node: Node) -> Awaitable[Reply]:
    body = {"agentId": "percy", "capability": "reason", "input": {"task": "x"}}
    return node.send("POST", "/v1/tasks", json=body, token=GREEDY)


@requirement("001-55")
@pytest.mark.parametrize("ask", [of_directory, of_a2a, of_jobs, of_calls, of_rest])
async def test_who_calls_too_often_hears_it_at_once(ask: Callable[[Node], Awaitable[Reply]]) -> None:
    """Also where the call is a job, which would otherwise be put off while its caller waits."""
    async with shared(Percy().agent, **RATE) as node:
        for _ in range(6):
            assert (await ask(node)).status in (200, 201, 202)
        async with asyncio.timeout(4):
            refused = await ask(node)
        check_limited(refused)
        assert (await call(node, HONEST)).status == 200


async def test_a_stream_that_is_refused_begins_no_task() -> None:
    async with shared(waiter(), limits={"streams": 1}) as node, AsyncExitStack() as stack:
        first: aiohttp.ClientResponse = await stack.enter_async_context(a2a_stream(node, HONEST))
        assert await first.content.readany()
        async with a2a_stream(node, GREEDY) as refused:
            assert refused.status == 429
        listed = await node.operation("fabric.job.list", {}, token=GREEDY)
        assert listed["result"]["jobs"] == []


def waiting_for_a_change(node: Node, token: str, revision: str) -> Awaitable[Any]:
    return node.operation("fabric.agent.list", {"known": revision, "wait_ms": 20_000}, token=token)


async def settled_revision(node: Node) -> str:
    """Of the list of agents, once it does not change any more."""
    known = ""
    while True:
        listed = await node.operation("fabric.agent.list", {"known": known, "wait_ms": 1000}, token=HONEST)
        if known == listed["result"]["revision"]:
            return known
        known = listed["result"]["revision"]


async def test_requests_that_wait_for_a_change_are_limited_like_streams() -> None:
    async with shared(Percy().agent, limits={"streams": 8}) as node:
        revision = await settled_revision(node)
        held = [asyncio.ensure_future(waiting_for_a_change(node, GREEDY, revision)) for _ in range(12)]

        async def refused() -> bool:
            return sum(each.done() for each in held) == 6

        await eventually(refused)
        assert {each.result()["error_code"] for each in held if each.done()} == {"RATE_LIMITED"}
        honest = asyncio.ensure_future(waiting_for_a_change(node, HONEST, revision))
        await asyncio.sleep(0)
        assert not honest.done()
        await end([*held, honest])


async def test_a_caller_that_waits_for_as_many_tasks_as_it_can_leaves_room_for_others() -> None:
    """A blocking SendMessage keeps its connection until the task has ended, also while the task waits its turn."""
    percy = Percy()

    def send(token: str, skill: str, number: int) -> Awaitable[Reply]:
        message = {
            "messageId": f"m{number}",
            "role": "ROLE_USER",
            "parts": [{"text": "x"}],
            "metadata": {"skill": skill},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        return node.send("POST", "/agents/percy", json=body, token=token, headers={"A2A-Version": "1.0"})

    async with shared(percy.agent, limits={"streams": 8}) as node:
        held = [asyncio.ensure_future(send(GREEDY, "hold", number)) for number in range(20)]
        await settled(held, running=6)
        check_limited(await send(GREEDY, "reason", 100))
        honest = (await send(HONEST, "reason", 7)).json
        assert honest["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        percy.may_go_on.set()
        await asyncio.gather(*held)


async def test_an_inbox_subscribes_to_no_more_topics_than_it_may() -> None:
    async with shared(Percy().agent, messages={"topics_per_inbox": 3}) as node:

        def subscribe(token: str, topic: str) -> Awaitable[Any]:
            return node.operation("fabric.message.subscribe", {"topic": topic}, token=token)

        told = [await subscribe(GREEDY, f"topic-{number}") for number in range(4)]
        assert [each["ok"] for each in told] == [True, True, True, False]
        assert told[-1]["error_code"] == "RATE_LIMITED"
        assert (await subscribe(GREEDY, "topic-0"))["result"]["is_new"] is False
        assert (await subscribe(HONEST, "topic-3"))["ok"] is True


async def test_a_caller_that_follows_as_many_conversations_and_tasks_as_it_can_leaves_room_for_others() -> None:
    doors = [{"kind": "fabric"}, {"kind": "rest", "max_streams": 4}]
    percy = Percy()
    async with shared(percy.agent, doors=doors, messages={"max_followers": 4}) as node, AsyncExitStack() as stack:

        async def opened(token: str, path: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            reply: aiohttp.ClientResponse = await stack.enter_async_context(
                node.client.get(node.url + path, headers=headers)
            )
            if reply.status == 200:
                await reply.content.readany()
            else:
                assert int(reply.headers["retry-after"]) >= 1
            return reply.status

        async def posted(token: str) -> tuple[str, str]:
            """A task that waits, and a conversation."""
            body = {"agentId": "percy", "capability": "hold", "input": {"task": "x"}}
            task_id = (await node.send("POST", "/v1/tasks", json=body, token=token)).json["id"]
            message = {
                "recipient": {"id": "percy", "type": "agent"},
                "parts": [{"type": "text", "content": "x"}],
                "metadata": {"capability": "reason"},
            }
            sent = (await node.send("POST", "/v1/messages", json=message, token=token)).json["metadata"]
            return f"/v1/tasks/{task_id}/events", f"/v1/conversations/{sent['conversation_id']}/events"

        greedy, honest = await posted(GREEDY), await posted(HONEST)
        for path, own in zip(greedy, honest, strict=True):
            assert [await opened(GREEDY, path) for _ in range(5)] == [200, 200, 200, 429, 429]
            assert await opened(HONEST, own) == 200
        percy.may_go_on.set()
