"""Standard task requests and responses: as a capability of every federated agent, and as jobs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement

AGENT = """
from a2a_fabric import Agent
from a2a_fabric.core import Call, Question, Result, make_input_required
from a2a_fabric.core.errors import AgentOffline

agent = Agent("worker")
failures = {"left": 0}


@agent.capability(name="convert-length", side_effects="none")
async def convert(metres: float) -> dict:
    return {"feet": round(metres * 3.28084, 2)}


@agent.capability(name="say", side_effects="none")
async def say(task: str) -> dict:
    return {"answer": f"said {task}"}


@agent.capability(name="flaky", side_effects="none")
async def flaky(task: str) -> dict:
    failures["left"] = (failures["left"] or 3) - 1
    if failures["left"]:
        raise AgentOffline("not yet")
    return {"answer": "at last"}


@agent.capability(name="pay", side_effects="writes")
async def pay(task: str, call: Call) -> Result:
    if not call.answers:
        form = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
        question = Question(kind="form", message="How much?", schema=form)
        return make_input_required({"amount": question}, continuation="pay")
    return Result(data={"answer": f"paid {call.answers.answers['amount'].content['amount']}"})
"""


BARE = """
from a2a_fabric import Agent

agent = Agent("bare")


@agent.capability(name="answer", side_effects="none")
async def answer(task: str) -> dict:
    return {"answer": f"bare: {task}"}
"""


def make_folder(root: Path, name: str, **more: Any) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(AGENT.replace('"worker"', f'"{name}"'))
    length = {"type": "object", "properties": {"metres": {"type": "number"}}, "required": ["metres"]}
    skills = [
        {"id": "convert-length", "description": "Converts.", "sideEffects": "none", "inputSchema": length},
        {"id": "say", "description": "Says.", "sideEffects": "none"},
        {"id": "flaky", "description": "Fails twice.", "sideEffects": "none"},
        {"id": "pay", "description": "Pays.", "sideEffects": "writes"},
    ]
    card = {
        "name": name,
        "version": "1.0.0",
        "description": "Works.",
        "skills": skills,
        "invocation": {"type": "python", "url": "python:agent:agent"},
        **more,
    }
    (folder / "agent.json").write_text(json.dumps(card))
    return folder


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    make_folder(tmp_path / "agents", "worker")
    make_folder(tmp_path / "agents", "strict", dependencies={"agents": []})
    make_folder(tmp_path / "agents", "hidden", context="personal", coordination={"canDelegate": False})
    bare = make_folder(tmp_path / "agents", "bare", skills=[])
    (bare / "agent.py").write_text(BARE)
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "rest", "directory")]
    keys = [{"id": "team", "key": "a-team-key-of-a-test", "audiences": ["work", "shared"]}]
    config = {"agents": ["agents"], "doors": doors, "auth": {"keys": keys}, "store": "memory:"}
    async with running(config=config, base=tmp_path, from_files=True) as found:
        yield found


def request(task_id: str, kind: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": task_id, "type": kind, "payload": payload, **more}


async def call(node: Node, agent_id: str, task: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The response of the capability `task`."""
    arguments = {"agent_id": agent_id, "capability": "task", "task": "", "context": task}
    envelope = await node.operation("fabric.call", arguments, **more)
    assert envelope["ok"], envelope
    return dict(envelope["result"])


async def send(node: Node, task: dict[str, Any], **more: Any) -> dict[str, Any]:
    envelope = await node.operation("fabric.task.send", {"request": task}, **more)
    assert envelope["ok"], envelope
    return dict(envelope["result"])


@requirement("003-39")
async def test_every_federated_agent_answers_a_task_request_with_a_task_response(node: Node) -> None:
    trace_id = "11111111-2222-4333-8444-555555555555"
    observability = {"traceId": trace_id, "baggage": {"tenant": "kitchen"}}
    response = await call(node, "worker", request("t-1", "convert-length", {"metres": 10}, observability=observability))
    assert (response["id"], response["status"], response["result"]) == ("t-1", "completed", {"feet": 32.81})
    assert response["metadata"]["agent"] == "worker"
    assert response["metadata"]["duration_ms"] > 0
    assert {"startedAt", "completedAt"} <= response["metadata"].keys()
    assert response["observability"]["traceId"] == trace_id
    assert response["observability"]["baggage"] == {"tenant": "kitchen"}
    bare = await call(node, "bare", request("t-3", "answer", {"task": "hello"}))
    assert (bare["status"], bare["result"]) == ("completed", {"answer": "bare: hello"}), bare  # a card without skills
    words = await call(node, "strict", request("t-2", "say", {"task": "hello"}))
    assert words["result"] == {"answer": "said hello"}


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"type": "say", "payload": {}}, "MISSING_REQUIRED_FIELD", "id"),
    ({"id": "x", "payload": {}}, "MISSING_REQUIRED_FIELD", "type"),
    ({"id": "x", "type": "say", "payload": "text"}, "INVALID_FIELD_TYPE", "payload"),
    ({"id": "x", "type": "say", "payload": {}, "context": {"priority": "now"}}, "INVALID_FIELD_VALUE", None),
    ({"id": "x", "type": "task", "payload": {}}, "INVALID_FIELD_VALUE", "type"),
    ({"id": "x", "type": "fly", "payload": {}}, "CAPABILITY_NOT_FOUND", None),
    ({"id": "x", "type": "convert-length", "payload": {}}, "MISSING_REQUIRED_FIELD", None),
    ({"id": "x", "type": "convert-length", "payload": {"metres": "ten"}}, "INVALID_FIELD_TYPE", "metres"),
    ({"id": "x", "type": "say", "payload": {}, "routing": {"target": "strict"}}, "INVALID_FIELD_VALUE", None),
    ({"id": "x", "type": "say", "payload": {}, "observability": {"traceId": "no"}}, "INVALID_FIELD_VALUE", None),
]


@requirement("003-39")
async def test_a_wrong_request_is_a_failed_response_that_names_the_mistake(node: Node) -> None:
    for task, code, field in WRONG:
        response = await call(node, "worker", task)
        assert (response["status"], response["error"]["code"]) == ("failed", code), response
        assert response["error"]["recoverable"] is (code != "CAPABILITY_NOT_FOUND")
        assert "result" not in response
        assert response["observability"]["traceId"]
        assert field is None or response["error"]["details"]["field"] == field


@requirement("003-39")
async def test_a_task_is_tried_again_as_its_retry_policy_says(node: Node) -> None:
    policy = {"maxAttempts": 3, "backoffType": "linear", "initialDelay": 1}
    response = await call(node, "worker", request("r-1", "flaky", {"task": "go"}, retryPolicy=policy))
    assert (response["status"], response["metadata"]["retryCount"]) == ("completed", 2)
    once = await call(node, "worker", request("r-2", "flaky", {"task": "go"}))
    assert (once["error"]["code"], once["error"]["recoverable"]) == ("AGENT_UNAVAILABLE", True)


@requirement("003-24", "003-39")
async def test_a_task_from_another_agent_follows_the_rules_of_the_cards(node: Node) -> None:
    refused = await call(node, "worker", request("d-1", "say", {"task": "x"}, routing={"source": "strict"}))
    assert (refused["error"]["code"], refused["error"]["recoverable"]) == ("COORDINATION_FAILED", False)
    loop = request("d-2", "say", {"task": "x"}, routing={"delegationChain": ["worker", "somebody"]})
    in_a_circle = (await call(node, "worker", loop))["error"]
    assert (in_a_circle["code"], in_a_circle["recoverable"]) == ("DELEGATION_FAILED", False)
    as_hidden = request("d-3", "say", {"task": "x"}, routing={"source": "hidden"})  # whose card allows nothing
    assert (await call(node, "worker", as_hidden))["error"]["code"] == "COORDINATION_FAILED"
    assert (await call(node, "worker", as_hidden, token="a-team-key-of-a-test"))["status"] == "completed"


@requirement("003-39")
async def test_a_task_is_a_job_that_can_be_asked_for_answered_and_cancelled(node: Node) -> None:
    done = await send(node, request("j-1", "convert-length", {"metres": 1}, context={"priority": "high"}))
    assert (done["status"], done["result"], done["metadata"]["agent"]) == ("completed", {"feet": 3.28}, "hidden")
    again = await send(node, request("j-1", "convert-length", {"metres": 1}, context={"priority": "high"}))
    assert again["metadata"]["startedAt"] == done["metadata"]["startedAt"]  # the same task, and not a second one
    other = await send(node, request("j-1", "convert-length", {"metres": 2}))
    assert (other["status"], other["error"]["code"]) == ("failed", "CONFLICT")

    asked = await send(node, request("j-2", "pay", {"task": "the bill"}, routing={"target": "worker"}))
    assert (asked["status"], asked["inputRequired"]["message"]) == ("input_required", "How much?")
    paid = await node.operation("fabric.task.update", {"id": "j-2", "payload": {"amount": 7}})
    assert paid["result"]["result"] == {"answer": "paid 7"}, paid
    twice = await node.operation("fabric.task.update", {"id": "j-2", "payload": {"amount": 7}})
    assert twice["error_code"] == "CONFLICT"

    waiting = await send(node, request("j-3", "pay", {"task": "the bill"}, routing={"target": "worker"}))
    assert waiting["status"] == "input_required"
    cancelled = await node.operation("fabric.task.cancel", {"id": "j-3"})
    assert cancelled["result"]["status"] == "cancelled"
    assert (await node.operation("fabric.task.get", {"id": "j-3"}))["result"]["status"] == "cancelled"
    assert (await node.operation("fabric.task.get", {"id": "never"}))["error_code"] == "JOB_NOT_FOUND"


async def test_a_caller_learns_nothing_of_agents_and_tasks_that_are_not_its_own(node: Node) -> None:
    team = {"token": "a-team-key-of-a-test"}
    await send(node, request("mine", "say", {"task": "x"}))
    assert (await node.operation("fabric.task.get", {"id": "mine"}, **team))["error_code"] == "JOB_NOT_FOUND"
    hidden = request("h-1", "say", {"task": "x"}, routing={"target": "hidden"})
    missing = request("h-1", "say", {"task": "x"}, routing={"target": "absent"})
    answers = [(await send(node, each, **team))["error"] for each in (hidden, missing)]
    assert answers[0]["code"] == answers[1]["code"]
    assert answers[0]["message"].replace("hidden", "absent") == answers[1]["message"]
    arguments = {"agent_id": "hidden", "capability": "task", "task": "", "context": request("h", "say", {})}
    envelope = await node.operation("fabric.call", arguments, **team)
    other = await node.operation("fabric.call", {**arguments, "agent_id": "absent"}, **team)
    assert (envelope["ok"], envelope["error_code"]) == (False, other["error_code"])


@requirement("003-39")
async def test_a2a_clients_send_a_task_request_as_the_skill_task(node: Node) -> None:
    data = {"data": request("a-1", "convert-length", {"metres": 2})}
    message = {"messageId": "m-1", "role": "ROLE_USER", "metadata": {"skill": "task"}, "parts": [data]}
    reply = await node.send(
        "POST", "/agents/worker/message:send", json={"message": message}, headers={"A2A-Version": "1.0"}
    )
    assert '"status":"completed"' in reply.body.decode().replace(" ", ""), reply.body
    assert "6.56" in reply.body.decode()


@requirement("003-39")
async def test_a_task_request_can_be_sent_as_a_rest_task_and_as_a_direct_tool(node: Node) -> None:
    task = request("rest-1", "convert-length", {"metres": 3})
    body = {"agentId": "worker", "capability": "task", "input": task}
    created = (await node.send("POST", "/v1/tasks", json=body)).json

    async def is_done() -> bool:
        return bool((await node.send("GET", f"/v1/tasks/{created['id']}/status")).json["status"] == "completed")

    await eventually(is_done)
    done = (await node.send("GET", f"/v1/tasks/{created['id']}")).json
    assert done["output"]["result"] == {"feet": 9.84}, done
    direct = await node.operation("fabric.tool.agent.worker.task", task)
    assert direct["result"]["status"] == "completed", direct


@requirement("003-39")
async def test_a_task_request_can_be_sent_by_json_rpc_and_by_mcp_tools(node: Node) -> None:
    task = request("d-1", "convert-length", {"metres": 3})
    params = {"taskId": "own-1", "agentId": "worker", "action": "task", "input": task}
    reply = await node.send("POST", "/a2a", json={"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": params})
    assert reply.json["result"]["output"]["result"] == {"feet": 9.84}, reply.json
    async with client(node) as connected:
        for tool, arguments in (
            ("fabric_call", {"agent_id": "worker", "capability": "task", "task": "", "context": task}),
            ("fabric.tool.agent.worker.task", task),
            ("fabric_task_send", {"request": {**task, "id": "d-2"}}),
        ):
            answer = await connected.call_tool(tool, arguments)
            assert answer.structured_content is not None
            assert answer.structured_content["status"] == "completed", answer
            assert answer.structured_content["result"] == {"feet": 9.84}
