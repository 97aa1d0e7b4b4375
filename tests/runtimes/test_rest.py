"""The `rest` runtime behind a real node: platforms of document 004 that answer, stream, ask, refuse, hang and break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.fixtures.agents.rest import AGENT, RestPlatform
from tests.fixtures.agents.rpc import body_of, reply
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import NOWHERE, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG: dict[str, Any] = {
    "routing": {"fallback": False},
    "limits": {"reply_bytes": 100_000},
    "breaker": {"failures": 1000},
}
NAMES = ("echo", "count", "refuse", "fail", "sleep", "show", "ask", "end as")


def manifest(agent_id: str, uri: str, *names: str, **endpoint: Any) -> dict[str, Any]:
    capabilities = [{"name": name, "streaming": True, "idempotent": False} for name in names or NAMES]
    place = {"uri": uri, **endpoint}
    return {"agent_id": agent_id, "runtime": "rest", "endpoint": place, "capabilities": capabilities}


# What a platform answers to a new task, with which status, and the code of what comes of it.
NONSENSE: dict[str, tuple[Any, int, str]] = {
    "html": (b"<html>", 200, "UPSTREAM_ERROR"),
    "list": ([], 200, "UPSTREAM_ERROR"),
    "no-id": ({"status": "completed"}, 201, "UPSTREAM_ERROR"),
    "odd-status": ({"id": "1", "status": "sleepy"}, 201, "UPSTREAM_ERROR"),
    "odd-parts": ({"id": "1", "status": "completed", "output": {}, "parts": [5]}, 201, "UPSTREAM_ERROR"),
    "odd-error": ({"id": "1", "status": "failed", "error": [1]}, 201, "UPSTREAM_ERROR"),
    "odd-question": (
        {"id": "1", "status": "running", "metadata": {"input_required": {"questions": 7}}}, 201, "UPSTREAM_ERROR",
    ),
    "unauthorized": ({"error": {"code": "UNAUTHORIZED", "message": "no", "details": {}}}, 401, "UPSTREAM_ERROR"),
    "invalid": ({"error": {"code": "INVALID_REQUEST", "message": "no", "details": {}}}, 400, "BAD_INPUT"),
    "unknown": ({"error": {"code": "NOT_FOUND", "message": "no agent", "details": {}}}, 404, "UPSTREAM_ERROR"),
    "limited": ({"error": {"code": "RATE_LIMITED", "message": "slow", "details": {}}}, 429, "RATE_LIMITED"),
    "broken": (b"", 500, "UPSTREAM_ERROR"),
    "closed": (b"", 503, "AGENT_OFFLINE"),
    "large": (b"x" * 200_000, 200, "UPSTREAM_ERROR"),
}  # fmt: skip


async def nonsense(scope: Any, receive: Any, send: Any) -> None:
    """Each first part of a path has its own answer, whatever was asked."""
    if scope["type"] != "http":
        return
    await body_of(receive)
    answer, status, _ = NONSENSE[scope["path"].split("/")[1]]
    if not isinstance(answer, bytes):
        await reply(send, answer, status)
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": answer})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform() -> RestPlatform:
    return RestPlatform()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> RestPlatform:
    """One that knows messages only."""
    return RestPlatform("messages")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(platform: RestPlatform, plain: RestPlatform) -> AsyncIterator[Node]:
    async with (
        listening(platform) as url,
        listening(plain) as other,
        listening(RestPlatform("tasks")) as quiet,
        listening(nonsense) as odd,
    ):
        found = [
            manifest("worker", f"{url}/v1", token="secret-token"),
            manifest("by-card", f"{url}/v1/agents/{AGENT}"),
            {"agent_id": "least", "runtime": "rest", "endpoint": {"uri": f"{url}/v1/agents/{AGENT}/"}},
            manifest("elsewhere", f"{url}/v1", agent="nobody"),
            manifest("plain", f"{other}/v1", agent=AGENT),
            manifest("talker", f"{url}/v1", agent=AGENT, mode="messages"),
            manifest("quiet", f"{quiet}/v1", agent=AGENT),
            manifest("away", NOWHERE),
            *(manifest(f"odd-{name}", f"{odd}/{name}") for name in NONSENSE),
        ]
        async with running(manifests=found, config=CONFIG) as made:
            yield made


async def answer(node: Node, agent: str, capability: str, **arguments: Any) -> Any:
    envelope = await node.ask(agent, capability, "", **arguments)
    assert envelope["ok"], envelope
    return envelope["result"]


async def code(node: Node, agent: str, capability: str, **arguments: Any) -> tuple[str, str]:
    envelope = await node.ask(agent, capability, "", **arguments)
    assert not envelope["ok"], envelope
    return envelope["error_code"], envelope["error"]


@requirement("004-17", "004-18", "004-22")
async def test_a_call_is_a_task_that_is_looked_at_until_it_is_done(node: Node, platform: RestPlatform) -> None:
    before = len(platform.requests)
    assert await answer(node, "worker", "echo", context={"days": 7}) == {"seen": {"days": 7}}
    asked = list(enumerate(platform.requests))[before:]
    [(number, body)] = [(number, body) for number, (verb, path, body) in asked if (verb, path) == ("POST", "/tasks")]
    looks = {path for _, (verb, path, _) in asked if verb == "GET" and path.startswith("/tasks")}
    assert (body["agentId"], body["capability"], body["input"]) == ("worker", "echo", {"days": 7})
    assert looks <= {f"/tasks/{task}" for task in platform.tasks}
    headers = platform.headers[number]
    assert headers["authorization"] == "Bearer secret-token"
    assert headers["traceparent"]


async def test_the_address_on_a_card_is_enough(node: Node) -> None:
    assert await answer(node, "by-card", "echo", context={"a": 1}) == {"seen": {"a": 1}}


@requirement("004-08")
async def test_the_least_manifest_is_completed_by_the_card(node: Node) -> None:
    async def is_known() -> bool:
        found = node.fabric.registry.catalog.get("least")
        return found is not None and bool(found.capabilities)

    await eventually(is_known)
    found = node.fabric.registry.catalog.get("least")
    assert found is not None
    assert (found.display_name, found.description, found.version) == ("Worker", "Works.", "3.1.0")
    assert [capability.name for capability in found.capabilities] == ["echo", "count"]


async def test_events_are_passed_on_where_the_platform_has_them(node: Node, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    go_on.touch()
    given = {"words": ["one", "two"], "go_on": str(go_on)}
    events = await node.events("worker", "count", "", context=given)
    assert [event["data"]["text"] for event in events if event["event"] == "token"] == ["one", "two"]
    assert events[-1]["data"]["result"]["counted"] == 2
    events = await node.events("quiet", "count", "", context=given)  # this one has none
    assert events[-1]["data"]["result"]["counted"] == 2
    events = await node.events("worker", "count", "", context={**given, "breaks off": True})
    assert events[-1]["data"]["result"]["counted"] == 2


@requirement("004-05")
async def test_parts_of_every_kind_go_both_ways(node: Node, platform: RestPlatform) -> None:
    attachments = [
        {"type": "file", "content": "YWJj", "mime_type": "image/png", "name": "a.png"},
        {"type": "url", "content": "https://example.com/a.wav", "mime_type": "audio/wav"},
        {"type": "data", "content": {"name": "f", "arguments": {}}, "kind": "function_call"},
        {"type": "data", "content": {"any": 1}, "kind": "json", "meta": {"extension": "mycompany.custom_type"}},
    ]
    envelope = await node.ask("worker", "show", "", attachments=attachments)
    sent = next(body for verb, _, body in reversed(platform.requests) if verb == "POST")
    assert [part["type"] for part in sent["parts"]] == ["image", "audio", "function_call", "mycompany.custom_type"]
    back = [(part["kind"], part.get("blob") or part.get("url") or part.get("data")) for part in envelope["parts"]]
    assert back == [
        ("image", "YWJj"),
        ("audio", "https://example.com/a.wav"),
        ("function_call", {"name": "f", "arguments": {}}),
        ("json", {"any": 1}),
    ]
    assert envelope["parts"][3]["meta"] == {"extension": "mycompany.custom_type"}


@requirement("004-20")
async def test_leaving_deletes_the_task(node: Node, platform: RestPlatform, tmp_path: Path) -> None:
    platform.deleted.clear()
    note = tmp_path / "note"
    given = {"agent_id": "worker", "capability": "sleep", "task": "", "context": {"note": str(note)}}
    async with node.stream("fabric.call", given):
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not note.exists():  # noqa: ASYNC110  # files send no events
                await asyncio.sleep(0.01)
    async with asyncio.timeout(WAIT_TIMEOUT):
        await platform.deleted.wait()
    assert note.read_text() == "cancelled"


async def test_a_timeout_deletes_it_too(node: Node, platform: RestPlatform, tmp_path: Path) -> None:
    platform.deleted.clear()
    note = tmp_path / "note"
    assert (await code(node, "worker", "sleep", context={"note": str(note)}, timeout_ms=1000))[0] == "TIMEOUT"
    async with asyncio.timeout(WAIT_TIMEOUT):
        await platform.deleted.wait()


@requirement("004-23")
async def test_failures_keep_their_words(node: Node) -> None:
    assert await code(node, "worker", "refuse", context={"reason": "too wet"}) == ("BAD_INPUT", "too wet")
    assert await code(node, "worker", "fail", context={"reason": "broken"}) == ("UPSTREAM_ERROR", "broken")
    ended = await code(node, "worker", "end as", context={"status": "cancelled"})
    assert ended[0] == "UPSTREAM_ERROR"
    refused = await node.ask("worker", "echo", "", context={"location": None})
    assert refused["error_code"] == "BAD_INPUT"
    assert refused["error_details"]["field"] == "location"
    assert (await code(node, "elsewhere", "echo"))[0] == "UPSTREAM_ERROR"
    assert (await code(node, "away", "echo"))[0] == "AGENT_OFFLINE"


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_is_an_error_of_the_right_kind(node: Node, name: str) -> None:
    assert (await code(node, f"odd-{name}", "echo", timeout_ms=20_000))[0] == NONSENSE[name][2]


async def test_a_question_comes_back_and_its_answer_goes_on(node: Node) -> None:
    asked = (await answer(node, "worker", "ask"))["input_required"]
    assert asked["questions"]["which"]["message"] == "Which one?"
    answers = {"which": {"content": "this"}}
    done = await answer(node, "worker", "ask", continuation=asked["continuation"], answers=answers)
    assert done == {"said": {"which": "this"}}


@requirement("004-13", "004-16")
@pytest.mark.parametrize("agent", ["plain", "talker"])
async def test_a_platform_without_tasks_is_sent_a_message(node: Node, agent: str, plain: RestPlatform) -> None:
    envelope = await node.ask(agent, "echo", "hello", conversation_id=f"conv-{agent}")
    assert envelope["ok"], envelope
    assert envelope["result"]["answer"] == "hello"
    if agent == "plain":
        bound = next(name for name in plain.conversations if name.endswith(".conv-plain"))  # to its caller
        assert [message["sender"]["id"] for message in plain.conversations[bound]] == ["me", AGENT]


async def test_health_is_what_the_platform_says(node: Node, platform: RestPlatform) -> None:
    looked = node.fabric.runtime_pool.get_runtime(node.fabric.registry.get_agent("by-card"))
    for said, status in (("online", "online"), ("degraded", "degraded"), ("odd", "online")):
        platform.status = said
        assert await looked.health() == status
    platform.status = "online"


async def test_another_node_is_such_a_platform_too() -> None:
    """Its REST door in front, this runtime behind: words, events, failures, and calls that would go in a circle."""
    agent = Agent("counter")

    @agent.capability
    async def count(task: str) -> AsyncIterator[Any]:
        for word in task.split():
            yield word
        yield {"counted": len(task.split())}

    @agent.capability
    async def refuse(task: str) -> None:
        raise ValueError(task)

    doors = [{"kind": "fabric"}, {"kind": "rest"}]
    async with running(agent, config={"doors": doors, "node_id": "far"}) as far:
        place = {"uri": f"{far.url}/v1/agents/counter", "token": PSK}
        entry = {"agent_id": "remote", "runtime": "rest", "endpoint": place}
        async with running(manifests=[entry], config={**CONFIG, "node_id": "near"}) as near:

            async def is_known() -> bool:
                found = near.fabric.registry.catalog.get("remote")
                return found is not None and bool(found.capabilities)

            await eventually(is_known)
            events = await near.events("remote", "count", "one two three")
            assert [event["data"]["text"] for event in events if event["event"] == "token"] == ["one", "two", "three"]
            assert events[-1]["data"]["result"]["counted"] == 3
            assert (await near.ask("remote", "count", "one two"))["result"] == {"counted": 2}
            refused = await near.ask("remote", "refuse", "not today")
            assert (refused["error_code"], "not today" in refused["error"]) == ("UPSTREAM_ERROR", True)
            [job] = (await far.send("GET", "/v1/tasks?status=failed")).json["tasks"]
            assert job["error"]["message"] == "not today"
