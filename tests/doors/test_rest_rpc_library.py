"""The other client of that platform's library: it executes tasks, brings and fetches artifacts, and sets push configs.

Its requests for a task and for a task's events are the same, but that the second may name a token or the last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.rest_bench import BOB, Sleeper, frames, mirror, percy, rest
from tests.doors.rest_rpc_client import Client, Hook, RPCError, parts
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node
from tests.fixtures.postgres import shared
from tests.marks import requirement
from tests.matrix.agents.listening import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL_DOORS = [{"kind": "fabric"}, {"kind": "a2a"}, {"kind": "directory"}, {"kind": "rest"}, {"kind": "discovery"}]
HOOKS = {"webhook_allow": ["127.0.0.1"]}
ARTIFACT = {"id": "art-1", "type": "data", "content": {"a": [1, None]}, "createdAt": "2025-05-25T14:25:00Z"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeper() -> Sleeper:
    return Sleeper()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sleeper: Sleeper) -> AsyncIterator[Node]:
    async with rest(percy(), mirror(), sleeper.agent(), doors=ALL_DOORS, jobs=HOOKS) as found:
        yield found


@pytest.fixture
def client(node: Node) -> Client:
    return Client(node)


async def asleep(client: Client, sleeper: Sleeper) -> str:
    """A task that goes on until it is cancelled."""
    sleeper.asleep.clear()
    task_id: str = await client.call("sendMessage", {"parts": parts("go"), "agentId": "sleeper"})
    async with asyncio.timeout(WAIT_TIMEOUT):
        await sleeper.asleep.wait()
    return task_id


async def streamed(client: Client, method: str, params: dict[str, Any], **headers: str) -> list[Any]:
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    sent = {"Authorization": f"Bearer {PSK}", **headers}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        client.node.client.post(client.node.url, json=body, headers=sent) as reply,
    ):
        assert reply.headers["content-type"].startswith("text/event-stream"), await reply.read()
        return [each async for each in frames(reply)]


async def test_a_task_is_executed_as_json_or_as_events(client: Client) -> None:
    task = {"id": "t-1", "name": "shout", "agentId": "percy", "parts": parts("hi"), "status": {"state": "submitted"}}
    done = await client.call("executeTask", {"task": task})
    assert (done["id"], done["status"], done["output"]) == ("t-1", "completed", {"answer": "HI"})
    body = {"jsonrpc": "2.0", "method": "resubscribeTask", "params": {"taskId": "t-1"}}
    headers = {"Authorization": f"Bearer {PSK}", "Accept": "text/event-stream", "Last-Event-ID": "1"}
    async with client.node.client.post(client.node.url + "/", json=body, headers=headers) as response:
        seen = [each async for each in frames(response)]
    assert next(number for _, number, _ in seen if number is not None) == 2
    assert seen[-1][0] == "close"


async def test_a_client_that_names_a_token_or_an_event_gets_events(client: Client) -> None:
    task = {"id": "t-2", "name": "shout", "agentId": "percy", "parts": parts("hi")}
    seen = await streamed(client, "executeTask", {"task": task, "authToken": "t"})
    assert seen[-1][0] == "close"
    assert [data["task"]["status"] for _, _, data in seen if data.get("type") == "taskUpdate"][-1] == "completed"
    again = await streamed(client, "executeTask", {"task": task}, **{"Last-Event-ID": "1"})
    assert next(number for _, number, _ in again if number is not None) == 2


async def test_a_task_that_takes_long_is_told_as_it_is_before_the_client_gives_up(
    client: Client, sleeper: Sleeper
) -> None:
    task = {"id": "t-3", "agentId": "sleeper", "parts": parts("go")}
    assert (await client.call("executeTask", {"task": task}))["status"] == "working"
    assert (await client.call("cancelTask", {"taskId": "t-3"}))["status"] == "canceled"


async def test_a_reader_that_lost_its_stream_gets_the_task_and_then_its_events(
    client: Client, sleeper: Sleeper
) -> None:
    """As the library does it: it asks for the task, which comes at once, and executes what it got."""
    task_id = await asleep(client, sleeper)
    async with asyncio.timeout(WAIT_TIMEOUT):
        task = await client.call("resubscribeTask", {"taskId": task_id})
    assert (task["id"], task["status"]) == (task_id, "working")
    following = asyncio.create_task(streamed(client, "executeTask", {"task": task, "authToken": "t"}))
    await client.call("cancelTask", {"taskId": task_id})
    seen = await following
    assert {data["task"]["id"] for _, _, data in seen if data.get("type") == "taskUpdate"} == {task_id}
    assert seen[-2][2]["task"]["status"] == "canceled"


async def test_an_artifact_is_brought_and_fetched_by_its_id_alone(client: Client) -> None:
    assert await client.call("uploadArtifact", {"artifact": ARTIFACT}) == "art-1"
    assert await client.call("uploadArtifact", {"artifact": ARTIFACT}) == "art-1"
    assert await client.call("downloadArtifact", {"artifactId": "art-1"}) == ARTIFACT
    with pytest.raises(RPCError) as caught:
        await client.call("uploadArtifact", {"artifact": {**ARTIFACT, "content": {}}})
    assert caught.value.status == 409
    with pytest.raises(RPCError) as caught:
        await Client(client.node, BOB).call("downloadArtifact", {"artifactId": "art-1"})
    assert caught.value.status == 404
    with pytest.raises(RPCError) as caught:
        await client.call("uploadArtifact", {"artifact": {**ARTIFACT, "type": "film"}})
    assert (caught.value.status, caught.value.code) == (400, -32602)


async def test_what_came_out_of_a_task_is_fetched_in_the_same_way(client: Client) -> None:
    sent = [{"type": "file", "content": "YWJj", "mimeType": "text/plain", "name": "a.txt"}]
    task = await client.until_over(await client.call("sendMessage", {"parts": sent, "agentId": "mirror"}))
    [file] = task["artifacts"]
    assert (await client.call("downloadArtifact", {"artifactId": file["id"]}))["content"]["content"] == "YWJj"
    with pytest.raises(RPCError) as caught:
        await client.call("downloadArtifact", {"artifactId": f"{task['id']}/99"})
    assert caught.value.status == 404


@requirement("000-23")
async def test_the_node_s_own_card_is_where_the_client_looks_whatever_the_other_doors(node: Node) -> None:
    """At this address the document's list counts, not the object of the standard, which has one of its own."""
    card = (await node.send("GET", "/.well-known/agent.json", token=None)).json
    assert (card["name"], card["endpoint"], card["auth"]) == ("a2a-fabric", node.url, {"type": "api_key"})
    assert isinstance(card["capabilities"], list)
    standard = (await node.send("GET", card["metadata"]["a2a_agent_card"].removeprefix(node.url), token=None)).json
    assert isinstance(standard["capabilities"], dict)
    of_one = (await node.send("GET", "/agents/percy/.well-known/agent.json")).json
    assert isinstance(of_one["capabilities"], dict)
    assert (await node.send("POST", "/.well-known/agent.json", json={})).status == 405


async def test_the_card_shows_what_the_caller_may_know_of(node: Node) -> None:
    async def offered(token: str | None) -> list[str]:
        return list((await node.send("GET", "/.well-known/agent.json", token=token)).json["capabilities"])

    assert {"shout", "show", "sleep"} <= set(await offered(PSK))
    for token in (None, "placeholder-token"):  # which is what the library sends, whatever its user says
        assert await offered(token) == []


async def test_a_card_that_has_not_changed_is_not_sent_again(node: Node) -> None:
    first = await node.send("GET", "/.well-known/agent.json")
    again = await node.send("GET", "/.well-known/agent.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_a_push_config_is_kept_and_told_of_the_task_s_end(client: Client, sleeper: Sleeper) -> None:
    sleeper.asleep.clear()
    task_id = await client.call("sendMessage", {"parts": parts("go"), "agentId": "sleeper"})
    with pytest.raises(RPCError) as caught:
        await client.call("getPushConfig", {"taskId": task_id})
    assert (caught.value.status, caught.value.code) == (404, -32005)
    hook = Hook()
    async with listening(hook) as url:
        config = {"enabled": True, "endpoint": url + "/hook", "authToken": "t", "events": ["taskCanceled"]}
        await client.call("setPushConfig", {"taskId": task_id, "config": config})
        assert await client.call("setPushNotificationConfig", {"taskId": task_id, "config": config}) == config
        assert (await client.call("getPushConfig", {"taskId": task_id}))["config"] == config
        assert await client.call("getPushNotificationConfig", {"taskId": task_id}) == config
        await client.call("cancelTask", {"taskId": task_id})
        async with asyncio.timeout(WAIT_TIMEOUT):
            headers, body = await hook.told.get()
    assert (body["type"], body["taskId"], body["task"]["status"]) == ("taskCanceled", task_id, "canceled")
    assert headers["authorization"] == "Bearer t"
    bad = {"taskId": task_id, "config": {"enabled": True, "endpoint": "file:///etc/passwd"}}
    with pytest.raises(RPCError) as caught:
        await client.call("setPushConfig", bad)
    assert caught.value.code == -32602


async def test_only_what_was_asked_for_is_told_and_nothing_when_it_is_switched_off(
    client: Client, sleeper: Sleeper
) -> None:
    hook = Hook()
    async with listening(hook) as url:
        config = {"enabled": True, "endpoint": f"{url}/hook", "events": ["taskCompleted"]}
        first = await asleep(client, sleeper)
        await client.call("setPushConfig", {"taskId": first, "config": config})
        second = await asleep(client, sleeper)
        await client.call("setPushConfig", {"taskId": second, "config": {**config, "events": []}})
        third = await asleep(client, sleeper)
        await client.call("setPushConfig", {"taskId": third, "config": config})
        await client.call("setPushConfig", {"taskId": third, "config": {"enabled": False}})
        for task_id in (first, third, second):
            await client.call("cancelTask", {"taskId": task_id})
        told = set()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (second, "taskCanceled") not in told:
                _, body = await hook.told.get()
                told.add((body["taskId"], body["type"]))
    assert {task_id for task_id, _ in told} == {second}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_a_push_config_outlives_the_node(tmp_path: Path, engine: str) -> None:
    """The task was interrupted by the end of the first node; the second says so, to the address that the first knew."""
    store = f"sqlite:{tmp_path / 'kept.db'}" if engine == "sqlite" else shared().database()
    config: dict[str, Any] = {"store": store, "jobs": {**HOOKS, "lease_seconds": 1}, "limits": {"drain_seconds": 0}}
    hook = Hook()
    async with listening(hook) as url:
        push = {"enabled": True, "endpoint": f"{url}/hook", "events": ["taskFailed", "taskCompleted"]}
        sleeper = Sleeper()
        async with rest(sleeper.agent(), **config) as node:
            task = {"id": "mine", "agentId": "sleeper", "parts": parts("go")}
            asked = asyncio.create_task(Client(node).call("executeTask", {"task": task}))
            async with asyncio.timeout(WAIT_TIMEOUT):
                await sleeper.asleep.wait()
            await Client(node).call("setPushConfig", {"taskId": "mine", "config": push})
            await asked
        rested = Sleeper()
        rested.wake.set()
        async with rest(rested.agent(), **config) as node:
            assert (await Client(node).call("getPushConfig", {"taskId": "mine"}))["config"] == push
            over = await Client(node).until_over("mine")
            async with asyncio.timeout(WAIT_TIMEOUT):
                _, body = await hook.told.get()
    assert body["task"]["status"] == over["status"]
    assert body["task"]["id"] == "mine"
