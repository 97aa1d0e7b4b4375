"""An agent asks back, and its caller answers through its own door: agents of three runtimes, every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
import websockets

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import Question, Questions, Result
from tests.fixtures.agents.a2a_serving import serving as serving_a2a
from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_servers.asking import serving_asking
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.pages import blocks, page
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "the-key-of-another-caller"
DOORS = ["fabric", "mcp", "a2a", "directory", "rest"]
# By runtime: the agent, and its capability that asks for a colour and then for a size.
AGENTS = {"mcp": ("clerk", "order"), "a2a": ("painter", "paint"), "python": ("tailor", "sew")}
WANTED = {"colour": "red", "answer": "red", "size": 7}
on_every_runtime = pytest.mark.parametrize("runtime", AGENTS)
_numbers = count()


def make_tailor() -> Agent:
    agent = Agent("tailor")

    def ask(name: str, kind: str, continuation: str) -> Result:
        schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
        question = Question(kind="form", message=f"Which {name}?", schema=schema)
        return Result(data={}, asked=Questions(questions={name: question}, continuation=continuation))

    @agent.capability
    async def sew(task: str, call: Call) -> Result:
        if not call.answers:
            return ask("colour", "string", "colour")
        if call.answers.continuation == "colour":
            return ask("size", "integer", f"size:{call.answers.answers['colour'].content['colour']}")
        colour, size = call.answers.continuation.removeprefix("size:"), call.answers.answers["size"].content["size"]
        return Result(data={"answer": f"{colour} in {size}"})

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(serving_asking("stateless"))
        painting = await stack.enter_async_context(serving_a2a("jsonrpc"))
        manifests = [
            {"agent_id": "clerk", "runtime": "mcp", "endpoint": {"uri": asking.url}},
            {"agent_id": "painter", "runtime": "a2a", "endpoint": {"uri": painting.url}},
        ]
        config = {
            "doors": [{"kind": kind} for kind in DOORS],
            "auth": {"keys": [{"id": "other", "key": OTHER}]},
        }
        node = await stack.enter_async_context(running(make_tailor(), manifests=manifests, config=config))
        for agent_id, capability in AGENTS.values():
            await eventually(lambda agent_id=agent_id, capability=capability: offers(node, agent_id, capability))  # type: ignore[misc]
        yield node


async def offers(node: Node, agent_id: str, capability: str) -> bool:
    told = await node.operation("fabric.agent.describe", {"agent_id": agent_id})
    return any(each["name"] == capability for each in told["result"]["agent"]["capabilities"])


def fill_in(questions: dict[str, Any]) -> dict[str, Any]:
    """What a person writes into the forms."""
    return {key: {name: WANTED[name] for name in each["schema"]["properties"]} for key, each in questions.items()}


def to_answers(questions: dict[str, Any]) -> dict[str, Any]:
    return {key: {"content": content} for key, content in fill_in(questions).items()}


async def answer_all(result: dict[str, Any], repeat: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> Any:
    """Answer until nothing more is asked; every agent asks twice."""
    for _ in range(2):
        asked = result["input_required"]
        result = await repeat({"continuation": asked["continuation"], "answers": to_answers(asked["questions"])})
    return result


@requirement("001-56")
@on_every_runtime
@pytest.mark.parametrize("name", ["fabric.call", "fabric.tool.call", "direct"])
async def test_at_mcp_call_the_same_request_is_repeated_with_the_answers(node: Node, runtime: str, name: str) -> None:
    agent_id, capability = AGENTS[runtime]
    tool_id = f"agent.{agent_id}.{capability}"
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "fabric.call": ("fabric.call", {"agent_id": agent_id, "capability": capability, "task": "go"}),
        "fabric.tool.call": ("fabric.tool.call", {"tool_id": tool_id, "parameters": {}}),
        "direct": (f"fabric.tool.{tool_id}", {}),
    }
    operation, given = requests[name]
    if runtime != "mcp" and name != "fabric.call":
        given = {**given, "parameters": {"task": "go"}} if "tool_id" in given else {"task": "go"}

    async def repeat(more: dict[str, Any]) -> dict[str, Any]:
        reply = await node.operation(operation, {**given, **more})
        assert reply["ok"], reply
        found: dict[str, Any] = reply["result"]
        return found

    assert (await answer_all(await repeat({}), repeat))["answer"] == "red in 7"


@on_every_runtime
async def test_over_a_websocket_it_is_the_same(node: Node, runtime: str) -> None:
    agent_id, capability = AGENTS[runtime]
    given = {"agent_id": agent_id, "capability": capability, "task": "go"}
    url = node.url.replace("http", "ws") + "/mcp/call"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {PSK}"}) as socket:

        async def repeat(more: dict[str, Any]) -> dict[str, Any]:
            await socket.send(json.dumps({"id": 1, "name": "fabric.call", "arguments": {**given, **more}}))
            async with asyncio.timeout(WAIT_TIMEOUT):
                while True:
                    message = json.loads(await socket.recv())
                    if message["event"] == "final":
                        found: dict[str, Any] = message["data"]["result"]
                        return found

        assert (await answer_all(await repeat({}), repeat))["answer"] == "red in 7"


@on_every_runtime
async def test_a_job_is_answered_by_its_id_and_goes_on(node: Node, runtime: str) -> None:
    agent_id, capability = AGENTS[runtime]
    given = {"agent_id": agent_id, "capability": capability, "task": "go", "async": True}
    job_id = (await node.operation("fabric.call", given))["result"]["job_id"]
    for _ in range(2):
        result = (await node.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000}))["result"]
        answers = to_answers(result["input_required"]["questions"])
        assert (await node.operation("fabric.job.answer", {"job_id": job_id, "answers": answers}))["ok"]
    result = (await node.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000}))["result"]
    assert result["answer"] == "red in 7"


@on_every_runtime
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_model_answers_by_the_tool_that_the_refusal_names(node: Node, runtime: str, mode: str) -> None:
    agent_id, capability = AGENTS[runtime]
    async with client(node, mode) as caller:
        arguments = {} if runtime == "mcp" else {"task": "go"}
        result = await caller.call_tool(f"fabric.tool.agent.{agent_id}.{capability}", arguments)
        for _ in range(2):
            details = result.structured_content["error"]["details"]
            how, contents = details["answer_with"], fill_in(details["questions"])
            for key, answer in how["arguments"]["answers"].items():
                answer["content"] = contents[key]
            result = await caller.call_tool(how["tool"], how["arguments"])
    assert result.structured_content["answer"] == "red in 7"


async def wait_for(node: Node, path: str, is_there: Callable[[Any], bool]) -> Any:
    found: list[Any] = []

    async def look() -> bool:
        found[:] = [(await node.send("GET", path)).json]
        return is_there(found[0])

    await eventually(look)
    return found[0]


@on_every_runtime
@pytest.mark.parametrize("is_bare", [False, True], ids=["as at other doors", "bare"])
async def test_a_rest_task_is_answered_at_its_own_path(node: Node, runtime: str, is_bare: bool) -> None:
    agent_id, capability = AGENTS[runtime]
    body = {"agentId": agent_id, "capability": capability, "input": {} if runtime == "mcp" else {"task": "go"}}
    path = f"/v1/tasks/{(await node.send('POST', '/v1/tasks', json=body)).json['id']}"
    seen: list[Any] = []
    for _ in range(2):
        task = await wait_for(
            node, path, lambda task: task.get("metadata", {}).get("input_required") not in (None, *seen)
        )
        asked = task["metadata"]["input_required"]
        seen.append(asked)
        answers = fill_in(asked["questions"]) if is_bare else to_answers(asked["questions"])
        wrong = await node.send("POST", f"{path}/answers", json={"answers": {"no such question": "x"}})
        assert wrong.status == 400
        assert all(key in wrong.json["error"]["message"] for key in asked["questions"])
        assert (await node.send("POST", f"{path}/answers", json={"answers": answers})).status == 200
    task = await wait_for(node, path, lambda task: task["status"] == "completed")
    assert task["output"]["answer"] == "red in 7"


@on_every_runtime
async def test_a_rest_message_is_answered_by_a_message(node: Node, runtime: str) -> None:
    agent_id, capability = AGENTS[runtime]
    parts = [{"type": "json", "content": {}} if runtime == "mcp" else {"type": "text", "content": "go"}]
    body = {"parts": parts, "metadata": {"capability": capability}}
    first = (await node.send("POST", f"/v1/agents/{agent_id}/messages", json=body)).json
    latest = first
    for content in ({"type": "text", "content": "red"}, {"type": "json", "content": {"size": 7}}):
        asked = (await node.send("GET", f"/v1/messages/{latest['id']}/reply?wait=20")).json
        assert asked["parts"][0]["content"].startswith("Which ")
        assert asked["metadata"]["input_required"]["questions"]
        answer = {
            "id": f"answer-{next(_numbers)}",
            "parts": [content],
            "metadata": {"in_reply_to": asked["id"]},
        }
        sent = await node.send("POST", f"/v1/agents/{agent_id}/messages", json=answer)
        assert sent.status == 201
        latest = sent.json
        assert latest["metadata"]["conversation_id"] == first["metadata"]["conversation_id"]
        assert latest["metadata"]["delivery"]["task_id"] == first["metadata"]["delivery"]["task_id"]
        again = await node.send("POST", f"/v1/agents/{agent_id}/messages", json=answer)
        assert (again.status, again.json["id"]) == (200, latest["id"])  # the same answer, not another call
    for message in (first, latest):
        reply = (await node.send("GET", f"/v1/messages/{message['id']}/reply?wait=20")).json
        assert "red in 7" in json.dumps(reply["parts"])


async def test_an_answer_that_comes_too_late_or_says_nothing_is_refused(node: Node) -> None:
    body = {"parts": [{"type": "text", "content": "go"}], "metadata": {"capability": "sew"}}
    first = (await node.send("POST", "/v1/agents/tailor/messages", json=body)).json
    asked = (await node.send("GET", f"/v1/messages/{first['id']}/reply?wait=20")).json
    answer = {"parts": [{"type": "text", "content": "red"}], "metadata": {"in_reply_to": asked["id"]}}
    assert (await node.send("POST", "/v1/agents/tailor/messages", json=answer)).status == 201
    late = await node.send("POST", "/v1/agents/tailor/messages", json=answer)
    assert late.status == 409
    assert "no longer open" in late.json["error"]["message"]
    second = (await node.send("GET", f"/v1/messages/{first['id']}/reply?wait=20")).json
    assert second["parts"][0]["content"] == "Which size?"


async def test_no_other_caller_can_answer_a_message(node: Node) -> None:
    body = {"parts": [{"type": "text", "content": "go"}], "metadata": {"capability": "sew"}}
    first = (await node.send("POST", "/v1/agents/tailor/messages", json=body)).json
    asked = (await node.send("GET", f"/v1/messages/{first['id']}/reply?wait=20")).json
    answer = {"parts": [{"type": "text", "content": "blue"}], "metadata": {"in_reply_to": asked["id"]}}
    foreign = (await node.send("POST", "/v1/agents/tailor/messages", json=answer, token=OTHER)).json
    # For the other caller this is a message like any other.
    assert foreign["metadata"]["delivery"]["task_id"] != first["metadata"]["delivery"]["task_id"]
    still = (await node.send("GET", f"/v1/messages/{first['id']}/reply")).json
    assert still["id"] == asked["id"]


@on_every_runtime
async def test_a_directory_task_is_answered_by_its_id(node: Node, runtime: str) -> None:
    agent_id, capability = AGENTS[runtime]
    task_id = f"asking-{next(_numbers)}"
    given: dict[str, Any] = {"taskId": task_id, "agentId": agent_id, "action": capability}
    given |= {} if runtime == "mcp" else {"input": {"task": "go"}}
    task = (await node.send("POST", "/a2a/task", json=given)).json
    for _ in range(2):
        assert task["status"] == "input_required"
        asked = task["output"]["input_required"]["questions"]
        wrong = await node.send("POST", "/a2a/answer", json={"taskId": task_id, "answers": {"x": {"content": 1}}})
        assert wrong.status == 400
        assert all(key in wrong.json["error"] for key in asked)
        task = (await node.send("POST", "/a2a/answer", json={"taskId": task_id, "answers": to_answers(asked)})).json
    assert task["status"] == "completed"
    assert task["output"]["answer"] == "red in 7"


@on_every_runtime
@pytest.mark.parametrize("more", [{}, {"async": True}], ids=["call", "job"])
async def test_no_caller_answers_what_another_was_asked(node: Node, runtime: str, more: dict[str, Any]) -> None:
    """Neither with the other's continuation nor with one that it makes up for an agent that keeps the work itself."""
    agent_id, capability = AGENTS[runtime]
    call = {"agent_id": agent_id, "capability": capability, "task": "go"}
    asked = (await node.operation("fabric.call", call))["result"]["input_required"]
    further = {**call, **more, "answers": to_answers(asked["questions"])}
    agent, signature, own = asked["continuation"].split(":", 2)
    forged = [f"{agent}:{own}", f"{agent}:{signature}:{own}x", f"{agent}:{'A' * len(signature)}:{own}", own]
    for token, continuation in [(OTHER, asked["continuation"]), *((PSK, each) for each in forged)]:
        refused = await node.operation("fabric.call", {**further, "continuation": continuation}, token=token)
        assert refused["error_code"] == "BAD_INPUT", refused
        assert "continuation is unknown" in refused["error"]
    answered = await node.operation("fabric.call", {**further, "continuation": asked["continuation"]})
    assert answered["ok"], answered


async def test_an_argument_of_an_agent_may_be_called_answers() -> None:
    """Without a continuation it belongs to the agent alone."""
    agent = Agent("quiz")

    @agent.capability
    async def mark(answers: list[str]) -> dict[str, int]:
        return {"right": len(answers)}

    async with running(agent) as found:
        reply = await found.operation("fabric.tool.agent.quiz.mark", {"answers": ["a", "b"]})
        assert reply["result"] == {"right": 2}


async def test_the_examples_of_the_page_are_accepted_as_they_stand(node: Node) -> None:
    """Each with the ids of a call that waits for this very answer."""
    shown = [json.loads(each) for each in blocks(page("questions.md"), "json")]
    call = {"agent_id": "tailor", "capability": "sew", "task": "a coat"}

    async def begin(**more: Any) -> Any:
        return (await node.operation("fabric.call", {**call, **more}))["result"]

    [by_tool] = [each for each in shown if "tool" in each]
    by_call, by_job = (each for each in shown if "name" in each)
    [by_directory] = [each for each in shown if each.get("method") == "a2a/answer"]
    for arguments in (by_tool["arguments"], by_call["arguments"]):
        arguments["continuation"] = (await begin())["input_required"]["continuation"]
        answered = await node.operation("fabric.call", arguments)
        assert answered["result"]["input_required"]["message"] == "Which size?"
    job_id = (await begin(**{"async": True}))["job_id"]
    await node.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000})
    assert (await node.operation(by_job["name"], {**by_job["arguments"], "job_id": job_id}))["ok"]
    task = {
        "taskId": by_directory["params"]["taskId"],
        "agentId": "tailor",
        "action": "sew",
        "input": {"task": "a coat"},
    }
    await node.send("POST", "/a2a/task", json=task)
    answer = (await node.send("POST", "/a2a", json=by_directory)).json["result"]
    assert "size" in answer["output"]["input_required"]["questions"]
    to_task, to_message = (each.partition("\n\n")[2] for each in blocks(page("questions.md"), "http"))
    body = {"agentId": "tailor", "capability": "sew", "input": {"task": "a coat"}}
    path = f"/v1/tasks/{(await node.send('POST', '/v1/tasks', json=body)).json['id']}"
    await wait_for(node, path, lambda task: "input_required" in task.get("metadata", {}))
    assert (await node.send("POST", f"{path}/answers", json=json.loads(to_task))).status == 200
    message = {"parts": [{"type": "text", "content": "go"}], "metadata": {"capability": "sew"}}
    first = (await node.send("POST", "/v1/agents/tailor/messages", json=message)).json
    asked = (await node.send("GET", f"/v1/messages/{first['id']}/reply?wait=20")).json
    reply = {**json.loads(to_message), "metadata": {"in_reply_to": asked["id"]}}
    assert (await node.send("POST", "/v1/agents/tailor/messages", json=reply)).status == 201
