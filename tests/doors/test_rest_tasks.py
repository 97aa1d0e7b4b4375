"""Tasks of document 004: created, looked at, followed, cancelled; and what becomes of messages whose agent is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.result import Question, Result, make_input_required
from tests.doors.rest_bench import (
    BOB,
    ISO_Z,
    Sleeper,
    check_error,
    ended,
    events,
    mirror,
    percy,
    rest,
    said_to,
    sent,
    text,
    to,
)
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually
from tests.fixtures.postgres import shared
from tests.marks import requirement
from tests.matrix.agents.listening import NOWHERE, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASK = {"id", "agentId", "status", "input", "createdAt", "updatedAt"}
_numbers = iter(range(10**9))


def fresh(prefix: str) -> str:
    return f"{prefix}_{next(_numbers)}"


def counter() -> Agent:
    agent = Agent("counter")

    @agent.capability
    async def count(upto: int) -> AsyncIterator[str]:
        for number in range(upto):
            yield str(number)

    @agent.capability
    async def fail(reason: str) -> None:
        raise ValueError(reason)

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeper() -> Sleeper:
    return Sleeper()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sleeper: Sleeper) -> AsyncIterator[Node]:
    async with rest(percy(), mirror(), counter(), sleeper.agent()) as found:
        yield found


async def created(node: Node, **body: Any) -> dict[str, Any]:
    reply = await node.send("POST", "/v1/tasks", json=body)
    assert reply.status == 201, reply.body
    return dict(reply.json)


@requirement("004-09", "004-10", "004-17", "004-18")
@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_task_is_pending_when_it_is_created_and_completed_in_the_end(node: Node, prefix: str) -> None:
    body = {"agentId": "percy", "input": {"text": "New York"}}
    reply = await node.send("POST", f"{prefix}/tasks", json=body)
    task = reply.json
    assert reply.status == 201
    assert set(task) == TASK
    assert task["id"].startswith("task_")
    assert (task["agentId"], task["status"], task["input"]) == ("percy", "pending", {"text": "New York"})
    assert ISO_Z.fullmatch(task["createdAt"])
    assert ISO_Z.fullmatch(task["updatedAt"])
    assert reply.headers["location"] == f"/v1/tasks/{task['id']}"
    done = await ended(node, task["id"])
    assert (done["status"], done["output"]) == ("completed", {"answer": "NEW YORK"})
    assert {key: done[key] for key in ("id", "agentId", "input", "createdAt")} == {
        key: task[key] for key in ("id", "agentId", "input", "createdAt")
    }
    assert (await node.send("GET", f"{prefix}/tasks/{task['id']}")).json == done


@requirement("004-10", "004-19", "004-20")
async def test_a_running_task_says_so_and_is_cancelled_by_delete(node: Node, sleeper: Sleeper) -> None:
    task = await created(node, agentId="sleeper")
    async with asyncio.timeout(WAIT_TIMEOUT):
        await sleeper.asleep.wait()
    status = (await node.send("GET", f"/v1/tasks/{task['id']}/status")).json
    assert (status["id"], status["status"]) == (task["id"], "running")
    assert ISO_Z.fullmatch(status["updatedAt"])
    first = await node.send("DELETE", f"/v1/tasks/{task['id']}")
    async with asyncio.timeout(WAIT_TIMEOUT):
        await sleeper.cancelled.wait()
    assert (first.status, set(first.json) >= TASK) == (200, True)
    done = await ended(node, task["id"])
    assert done["status"] == "cancelled"
    again = await node.send("DELETE", f"/v1/tasks/{task['id']}")
    assert (again.status, again.json["status"]) == (200, "cancelled")


@requirement("004-20", "004-24")
async def test_what_is_over_cannot_be_cancelled_and_what_is_unknown_is_not_found(node: Node) -> None:
    task = await created(node, agentId="percy", input={"text": "x"})
    await ended(node, task["id"])
    check_error(await node.send("DELETE", f"/v1/tasks/{task['id']}"), 409, "INVALID_REQUEST", reason="conflict")
    for verb, path in (("DELETE", ""), ("GET", ""), ("GET", "/status"), ("GET", "/events")):
        check_error(await node.send(verb, f"/v1/tasks/task_none{path}"), 404, "NOT_FOUND")
    check_error(await node.send("GET", f"/v1/tasks/{task['id']}", token=BOB), 404, "NOT_FOUND")
    check_error(await node.send("DELETE", f"/v1/tasks/{task['id']}", token=BOB), 404, "NOT_FOUND")


@requirement("004-10", "004-29")
async def test_a_task_that_fails_says_why(node: Node) -> None:
    task = await created(node, agentId="counter", capability="fail", input={"reason": "too wet"})
    done = await ended(node, task["id"])
    assert done["status"] == "failed"
    assert done["error"]["code"] == "UPSTREAM_ERROR"
    assert "too wet" in done["error"]["message"]
    assert "output" not in done
    status = (await node.send("GET", f"/v1/tasks/{task['id']}/status")).json
    assert (status["status"], status["error"]["code"]) == ("failed", "UPSTREAM_ERROR")


@requirement("004-10", "004-29")
async def test_a_task_whose_time_is_over_has_failed(node: Node) -> None:
    task = await created(node, agentId="sleeper", timeoutMs=50)
    done = await ended(node, task["id"])
    assert (done["status"], done["error"]["code"]) == ("failed", "TIMEOUT")


@requirement("004-17", "004-23", "004-27")
@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"input": {}}, 400, "agentId"),
        ({"agentId": "percy", "input": [1]}, 400, "input"),
        ({"agentId": "percy", "input": {"loud": 1}}, 400, None),
        ({"agentId": "percy", "timeoutMs": 0}, 400, "timeoutMs"),
        ({"agentId": "nobody"}, 404, None),
        ({"agentId": "percy", "capability": "sing"}, 404, None),
    ],
)
async def test_a_task_is_checked_before_it_is_created(node: Node, body: Any, status: int, field: str | None) -> None:
    before = (await node.send("GET", "/v1/tasks")).json["tasks"][:1]
    code = "INVALID_REQUEST" if status == 400 else "NOT_FOUND"
    error = check_error(await node.send("POST", "/v1/tasks", json=body), status, code)
    if field:
        assert error["details"]["field"] == field
    assert [each["id"] for each in (await node.send("GET", "/v1/tasks")).json["tasks"][:1]] == [
        each["id"] for each in before
    ]


async def test_the_same_id_or_key_is_the_same_task(node: Node) -> None:
    body = {"agentId": "percy", "input": {"text": "x"}, "id": fresh("task")}
    first = await node.send("POST", "/v1/tasks", json=body)
    again = await node.send("POST", "/v1/tasks", json=body)
    assert (first.status, again.status) == (201, 200)
    assert first.json["id"] == again.json["id"] == body["id"]
    assert first.headers["location"] == again.headers["location"]
    done = await ended(node, str(body["id"]))
    assert done["id"] == body["id"]
    other = await node.send("POST", "/v1/tasks", json={**body, "input": {"text": "y"}})
    error = check_error(other, 409, "CONFLICT", field="id", issue="used for another task")
    assert f"'{body['id']}'" in error["message"]
    key = {"Idempotency-Key": fresh("key")}
    unnamed = {"agentId": "percy", "input": {"text": "z"}}
    one = await node.send("POST", "/v1/tasks", json=unnamed, headers=key)
    two = await node.send("POST", "/v1/tasks", json=unnamed, headers=key)
    assert (one.status, two.status, one.json["id"]) == (201, 200, two.json["id"])
    other = await node.send("POST", "/v1/tasks", json={**unnamed, "input": {"text": "y"}}, headers=key)
    check_error(other, 409, "CONFLICT", field="Idempotency-Key", issue="used for another task")
    assert (await node.send("GET", f"/v1/tasks/{body['id']}", token=BOB)).status == 404


async def test_tasks_are_listed_newest_first_a_page_at_a_time(node: Node) -> None:
    ids = [(await created(node, agentId="mirror", input={"n": number}))["id"] for number in range(3)]
    first = await node.send("GET", "/v1/tasks?limit=2&agentId=mirror")
    assert [task["id"] for task in first.json["tasks"]] == [ids[2], ids[1]]
    assert 'rel="next"' in first.headers["link"]
    rest_of = await node.send("GET", f"/v1/tasks?limit=2&agentId=mirror&cursor={first.json['nextCursor']}")
    assert rest_of.json["tasks"][0]["id"] == ids[0]
    await ended(node, ids[0])
    done = await node.send("GET", "/v1/tasks?status=completed&agentId=mirror")
    assert ids[0] in [task["id"] for task in done.json["tasks"]]
    check_error(await node.send("GET", "/v1/tasks?cursor=nonsense"), 400, "INVALID_REQUEST")
    check_error(await node.send("GET", "/v1/tasks?limit=0"), 400, "INVALID_REQUEST", field="limit")
    check_error(await node.send("GET", "/v1/tasks?status=sleepy"), 400, "INVALID_REQUEST", field="status")


async def test_parts_go_with_a_task_and_come_back_with_it(node: Node) -> None:
    part = {"type": "file", "content": "YWJj", "metadata": {"mimeType": "text/plain", "name": "a.txt"}}
    task = await created(node, agentId="mirror", input={"task": "look"}, parts=[part])
    done = await ended(node, task["id"])
    assert part in done["parts"]
    assert done["output"] == {"answer": "look"}


async def test_a_task_is_followed_from_any_event_on(node: Node) -> None:
    task = await created(node, agentId="counter", capability="count", input={"upto": 3})
    path = f"/v1/tasks/{task['id']}/events"
    async with asyncio.timeout(WAIT_TIMEOUT), events(node, path) as told:
        seen = [each async for each in told]
    numbers = [number for _, number, _ in seen[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [data["data"]["text"] for event, _, data in seen if event == "token"] == ["0", "1", "2"]
    event, number, final = seen[-1]
    assert (event, number, final["status"]) == ("final", None, "completed")
    assert all(data["taskId"] == task["id"] and ISO_Z.fullmatch(data["timestamp"]) for _, _, data in seen[:-1])
    async with asyncio.timeout(WAIT_TIMEOUT), events(node, path, **{"Last-Event-ID": "3"}) as told:
        assert [each async for each in told] == seen[3:]
    async with asyncio.timeout(WAIT_TIMEOUT), events(node, f"{path}?after=3") as told:
        assert [each async for each in told] == seen[3:]


def asker() -> Agent:
    agent = Agent("asker")

    @agent.capability
    async def ask(call: Any) -> Result:
        if call.answers:
            return Result(data={"answer": f"you said {call.answers.answers['which'].content}"})
        return make_input_required(
            {"which": Question(kind="form", message="Which one?", schema={"type": "object"})}, "c1"
        )

    return agent


async def test_a_question_shows_as_running_with_what_is_asked_and_is_answered() -> None:
    async with rest(asker()) as node:
        message = await sent(node, to("asker", text("go")))
        task_id = message["metadata"]["delivery"]["task_id"]
        asked: dict[str, Any] = {}

        async def is_asked() -> bool:
            asked.update((await node.send("GET", f"/v1/tasks/{task_id}")).json)
            return "input_required" in asked.get("metadata", {})

        await eventually(is_asked)
        assert asked["status"] == "running"
        assert asked["metadata"]["input_required"]["questions"]["which"]["message"] == "Which one?"
        conversation = message["metadata"]["conversation_id"]
        told = (await node.send("GET", f"/v1/conversations/{conversation}/messages")).json["messages"]
        assert told[1]["parts"] == [text("Which one?")]
        assert "which" in told[1]["metadata"]["input_required"]["questions"]
        answer = {"answers": {"which": {"content": "this"}}}
        assert (await node.send("POST", f"/v1/tasks/{task_id}/answers", json=answer)).status == 200
        assert (await said_to(node, message))["parts"] == [text("you said this")]


def remote(url: str) -> dict[str, Any]:
    endpoint = {"transport": "http", "uri": f"{url.rstrip('/')}/agents/percy"}
    capability = {"name": "shout", "input_schema": percy().manifest().capabilities[0].input_schema}
    return {"agent_id": "far", "runtime": "http", "endpoint": endpoint, "capabilities": [capability]}


def neighbour() -> Agent:
    """Can do the same, and is not asked: the message is not for it."""
    agent = Agent("neighbour")

    @agent.capability
    async def shout(text: str) -> str:
        return "not for me"

    return agent


@requirement("004-02")
async def test_a_message_to_an_agent_that_is_away_is_kept_and_delivered_when_it_is_back() -> None:
    async with listening(percy().app) as address:
        pass
    async with rest(neighbour(), manifests=[remote(address)]) as node:
        message = await sent(node, to("far", text("hello")))

        async def is_tried_again() -> bool:
            shown = (await node.send("GET", f"/v1/messages/{message['id']}")).json
            delivery = shown["metadata"]["delivery"]
            assert delivery["status"] in ("pending", "running"), delivery
            return bool(delivery["attempts"] >= 2)

        await eventually(is_tried_again)
        async with listening_at(percy(), address):
            reply = await said_to(node, message)
        assert (reply["parts"], reply["sender"]["id"]) == ([text("HELLO")], "far")
        assert "fallback" not in reply["metadata"]


def listening_at(agent: Agent, address: str) -> Any:
    """The same address again."""
    return listening(agent.app, port=int(address.rstrip("/").rpartition(":")[2]))


async def test_a_message_whose_time_is_over_has_failed_and_says_why() -> None:
    async with rest(neighbour(), manifests=[remote(NOWHERE)]) as node:
        message = await sent(node, to("far", text("hello"), metadata={"ttl_seconds": 1.0}))
        delivery: dict[str, Any] = {}

        async def has_failed() -> bool:
            delivery.update((await node.send("GET", f"/v1/messages/{message['id']}")).json["metadata"]["delivery"])
            return bool(delivery["status"] == "failed")

        await eventually(has_failed)
        assert delivery["error"]["code"] in ("AGENT_OFFLINE", "TIMEOUT")
        assert delivery["error"]["message"]
        reply = await node.send("GET", f"/v1/messages/{message['id']}/reply?wait=1")
        assert reply.status in (503, 504)


async def test_an_agent_that_refuses_a_message_is_not_asked_again(node: Node) -> None:
    body = to("counter", {"type": "json", "content": {"reason": "no"}}, metadata={"capability": "fail"})
    message = await sent(node, body)
    reply = await node.send("GET", f"/v1/messages/{message['id']}/reply?wait=30")
    check_error(reply, 502, "INTERNAL_ERROR", reason="upstream_error")
    shown = (await node.send("GET", f"/v1/messages/{message['id']}")).json["metadata"]["delivery"]
    assert (shown["status"], shown["attempts"]) == ("failed", 1)


async def test_a_restart_keeps_messages_and_what_is_still_to_be_delivered(tmp_path: Path) -> None:
    await _survives({"store": f"sqlite:{tmp_path / 'kept.db'}"})


async def test_so_does_a_restart_with_postgresql() -> None:
    await _survives({"store": shared().database()})


async def _survives(config: dict[str, Any]) -> None:
    async with listening(percy().app) as address:
        pass
    async with rest(percy(), manifests=[remote(address)], **config) as node:
        heard = await sent(node, to("percy", text("first")))
        await said_to(node, heard)
        waiting = await sent(node, to("far", text("later")))
        task = await created(node, agentId="percy", input={"text": "x"})
        await ended(node, task["id"])
    async with listening_at(percy(), address), rest(percy(), manifests=[remote(address)], **config) as node:
        assert (await said_to(node, heard))["parts"] == [text("FIRST")]
        assert (await said_to(node, waiting))["parts"] == [text("LATER")]
        assert (await ended(node, task["id"]))["output"] == {"answer": "X"}
