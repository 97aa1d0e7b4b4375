"""`a2a/events`: who subscribes hears of agents that come and go, and of what becomes of its own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import ENTRY, exactly, post, rpc
from tests.doors.test_directory_tasks import frames
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

BOB, CAROL = "the-key-of-bob", "the-key-of-carol"
CONFIG: dict[str, Any] = {
    "doors": [{"kind": "fabric"}, {"kind": "directory"}],
    "auth": {"keys": [{"id": "bob", "key": BOB}, {"id": "carol", "key": CAROL, "trust": "org"}]},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    @agent.capability
    async def crash(text: str) -> dict[str, str]:
        raise RuntimeError(text)

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config=CONFIG) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with listening(RPCAgent()) as found:
        yield found


@asynccontextmanager
async def subscribed(
    node: Node, token: str = PSK, headers: dict[str, str] | None = None, **params: Any
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """What comes after the answer that one is subscribed."""
    wanted = {"Authorization": f"Bearer {token}", **(headers or {})}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        node.client.post(f"{node.url}/a2a", json=rpc("a2a/events", params, "sub"), headers=wanted) as response,
    ):
        coming = frames(response.content)
        first = await anext(coming)
        assert first["data"] == {"jsonrpc": "2.0", "id": "sub", "result": {"status": "subscribed"}}
        yield coming
        response.close()


_numbers = iter(range(10**9))


def entry(url: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    agent_id = f"agent-{next(_numbers)}"
    return {"agentId": agent_id, "name": "An Agent", "capabilities": capabilities or ["echo"], "endpoint": url, **more}


async def call(node: Node, method: str, params: Any, token: str = PSK) -> Any:
    _, reply = await post(node, "/a2a", rpc(method, params), token=token)
    return reply


async def told(coming: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    frame = await anext(coming)
    body: dict[str, Any] = frame["data"]
    assert (body["jsonrpc"], body["method"], "id" in body) == ("2.0", "a2a/events", False)
    assert body["params"]["type"] == frame["event"]
    params: dict[str, Any] = body["params"]
    return params


@requirement("002-18")
async def test_agents_that_come_change_and_go_are_told_of(node: Node, url: str) -> None:
    given = entry(url)
    types = ["agent.registered", "agent.updated", "agent.unregistered"]
    async with subscribed(node, types=types, agentId=given["agentId"]) as coming:
        await call(node, "a2a/register", given)
        await call(node, "a2a/register", {**given, "name": "Renamed"})
        await call(node, "a2a/unregister", {"agentId": given["agentId"]})
        heard = [await told(coming) for _ in types]
    assert [each["type"] for each in heard] == types
    assert [exactly(each["agent"], ENTRY)["name"] for each in heard] == ["An Agent", "Renamed", "Renamed"]
    assert {each["agent"]["agentId"] for each in heard} == {given["agentId"]}


@requirement("002-18")
async def test_an_agent_s_health_is_told_of(node: Node) -> None:
    given = entry("http://127.0.0.1:9/", "mortal")
    async with subscribed(node, types=["agent.health"], capabilities=["mortal", "other"]) as coming:
        await call(node, "a2a/register", given)
        heard = await told(coming)
    assert (heard["agent"]["agentId"], heard["health"]) == (given["agentId"], "offline")


@requirement("002-18")
async def test_a_caller_gets_events_of_its_own_tasks_and_of_no_others(node: Node) -> None:
    mine = {"taskId": f"t-{next(_numbers)}", "action": "shout", "input": {"text": "x"}}
    bad = {"taskId": f"t-{next(_numbers)}", "action": "crash", "input": {"text": "x"}}
    async with subscribed(node, types=["task"]) as coming, subscribed(node, BOB, types=["task"]) as theirs:
        await call(node, "a2a/task", mine)
        await call(node, "a2a/task", bad)
        await call(node, "a2a/task", {**mine, "taskId": "of-bob"}, token=BOB)
        ends: dict[str, str] = {}
        while {mine["taskId"], bad["taskId"]} - ends.keys():
            heard = await told(coming)
            if heard["status"] in ("completed", "failed"):
                ends[heard["taskId"]] = heard["type"]
        assert ends == {mine["taskId"]: "task.completed", bad["taskId"]: "task.failed"}
        assert (await told(theirs))["taskId"] == "of-bob"


@requirement("002-18")
async def test_every_step_of_a_task_is_told_of_however_quick_it_was(node: Node) -> None:
    task = {"taskId": f"t-{next(_numbers)}", "action": "shout", "input": {"text": "x"}}
    async with subscribed(node, taskId=task["taskId"], types=["task"]) as coming:
        await call(node, "a2a/task", task)
        heard = [(await told(coming))["type"] for _ in range(3)]
    assert heard == ["task.queued", "task.running", "task.completed"]


@requirement("002-18")
async def test_news_can_be_narrowed_to_one_task(node: Node) -> None:
    wanted, other = f"t-{next(_numbers)}", f"t-{next(_numbers)}"
    async with subscribed(node, taskId=wanted) as coming:
        for task_id in (other, wanted):
            await call(node, "a2a/task", {"taskId": task_id, "action": "shout", "input": {"text": "x"}})
        while True:
            heard = await told(coming)
            assert heard["taskId"] == wanted
            if heard["status"] == "completed":
                break


@requirement("002-18")
async def test_agents_that_a_caller_may_not_see_are_not_told_of(node: Node, url: str) -> None:
    secret, shared = entry(url, "quiet", trustTier="local"), entry(url, "quiet", trustTier="org")
    async with subscribed(node, CAROL, types=["agent"], capabilities=["quiet"]) as coming:
        await call(node, "a2a/register", secret)
        await call(node, "a2a/register", shared)
        assert (await told(coming))["agent"]["agentId"] == shared["agentId"]


@requirement("002-18")
async def test_a_subscriber_that_comes_back_hears_what_it_missed(node: Node, url: str) -> None:
    one, two, three = entry(url, "back"), entry(url, "back"), entry(url, "back")
    async with subscribed(node, types=["agent.registered"], capabilities=["back"]) as coming:
        await call(node, "a2a/register", one)
        last = (await anext(coming))["id"]
    for each in (two, three):
        await call(node, "a2a/register", each)
    headers = {"Last-Event-ID": last}
    async with subscribed(node, headers=headers, types=["agent.registered"], capabilities=["back"]) as coming:
        heard = [(await told(coming))["agent"]["agentId"] for _ in range(2)]
    assert heard == [two["agentId"], three["agentId"]]


@requirement("002-18")
async def test_a_subscriber_that_was_away_too_long_is_told_so(node: Node, url: str) -> None:
    async with subscribed(node, headers={"Last-Event-ID": "1"}, types=["agent"], capabilities=["none"]) as coming:
        assert (await told(coming))["type"] == "missed"


async def test_a_browser_subscribes_by_a_get(node: Node, url: str) -> None:
    given = entry(url, "by-get")
    headers = {"Authorization": f"Bearer {PSK}"}
    address = f"{node.url}/a2a/events?types=agent.registered,task&capabilities=by-get"
    async with asyncio.timeout(WAIT_TIMEOUT), node.client.get(address, headers=headers) as response:
        coming = frames(response.content)
        assert (await anext(coming))["data"] == {"status": "subscribed"}
        await call(node, "a2a/register", given)
        while (heard := await anext(coming))["event"] != "agent.registered":
            pass
        assert heard["data"]["agent"]["agentId"] == given["agentId"]
        response.close()


async def test_a_client_that_takes_no_events_cannot_subscribe(node: Node) -> None:
    reply = await node.send("POST", "/a2a", json=rpc("a2a/events", {}), headers={"Accept": "application/json"})
    assert (reply.status, reply.json["error"]["code"]) == (406, -32600)


async def test_there_is_room_for_so_many_subscribers_only() -> None:
    config = {**CONFIG, "doors": [{"kind": "directory", "max_subscribers": 1}]}
    async with running(percy(), config=config) as node, subscribed(node):
        refused = await node.send("POST", "/a2a", json=rpc("a2a/events", {}))
        assert (refused.status, "retry-after" in refused.headers) == (429, True)


async def test_a_node_that_stops_ends_the_streams_of_its_subscribers() -> None:
    about: dict[str, Any] = {"types": ["agent"], "agentId": "nobody"}  # that percy is up may only now be known
    async with running(percy(), config=CONFIG) as node, subscribed(node, **about) as coming:
        node.fabric.app.stop()
        assert [frame async for frame in coming] == []
