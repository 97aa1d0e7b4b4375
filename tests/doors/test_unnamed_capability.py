"""Work that names no capability: REST and the directory decide by the rule of all doors, and the reply says which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.doors.test_first_list import offer, server, tool
from tests.fixtures.node import Node, Reply, eventually, running


def make_writer() -> Agent:
    agent = Agent("writer")

    @agent.capability(description="Translates a text into another language.")
    async def translate(task: str) -> dict[str, str]:
        return {"answer": f"translated: {task}"}

    @agent.capability(description="Makes a long text short.")
    async def summarize(task: str) -> dict[str, str]:
        return {"answer": f"summary: {task}"}

    @agent.capability(description="Adds numbers.")
    async def add(first: int, second: int) -> dict[str, int]:
        return {"sum": first + second}

    return agent


def make_solo() -> Agent:
    agent = Agent("solo", description="Greets people.")

    @agent.capability
    async def greet(task: str) -> dict[str, str]:
        return {"answer": f"hello {task}"}

    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": kind} for kind in ("fabric", "rest", "directory")]
    async with running(make_writer(), make_solo(), config={"doors": doors}) as found:
        yield found


async def finish(node: Node, task: dict[str, Any]) -> dict[str, Any]:
    async def has_ended() -> bool:
        task.update((await node.send("GET", f"/v1/tasks/{task['id']}")).json)
        return task["status"] in ("completed", "failed")

    await eventually(has_ended)
    return task


@pytest.mark.parametrize(
    ("words", "capability"), [("please summarize this", "summarize"), ("a translation, please", "translate")]
)
async def test_a_rest_task_goes_where_its_words_point(node: Node, words: str, capability: str) -> None:
    for body in ({"input": {"task": words}}, {"parts": [{"type": "text", "content": words}]}):
        reply = await node.send("POST", "/v1/tasks", json={"agentId": "writer", **body})
        assert reply.status == 201
        assert reply.json["metadata"]["capability"] == capability
        assert reply.json["metadata"]["capability_reason"].startswith("The message names no capability.")
        task = await finish(node, reply.json)
        assert task["status"] == "completed"
        assert words in task["output"]["answer"]
        assert task["metadata"]["capability"] == capability  # also later


async def test_arguments_without_words_go_to_the_capability_that_takes_them(node: Node) -> None:
    reply = await node.send("POST", "/v1/tasks", json={"agentId": "writer", "input": {"first": 2, "second": 3}})
    task = await finish(node, reply.json)
    assert task["output"] == {"sum": 5}
    assert task["metadata"]["capability"] == "add"


async def test_nothing_is_said_where_there_was_nothing_to_choose(node: Node) -> None:
    only = await node.send("POST", "/v1/tasks", json={"agentId": "solo", "input": {"task": "you"}})
    assert "capability_reason" not in only.json.get("metadata", {})
    named = {"agentId": "writer", "capability": "summarize", "input": {"task": "a translation"}}
    reply = await node.send("POST", "/v1/tasks", json=named)
    assert reply.json["metadata"] == {"capability": "summarize"}


async def test_a_rest_message_says_where_it_went_and_so_does_its_reply(node: Node) -> None:
    body = {"parts": [{"type": "text", "content": "summarize the minutes"}]}
    sent = await node.send("POST", "/v1/agents/writer/messages", json=body)
    assert sent.json["metadata"]["delivery"]["capability"] == "summarize"
    reply = await node.send("GET", f"/v1/messages/{sent.json['id']}/reply?wait=20")
    assert reply.json["parts"][0]["content"] == "summary: summarize the minutes"
    assert reply.json["metadata"]["capability"] == "summarize"
    assert "nearest" in reply.json["metadata"]["capability_reason"]


async def test_the_rpc_client_is_served_by_the_same_rule(node: Node) -> None:
    params = {"agentId": "writer", "parts": [{"type": "text", "content": "a translation, please"}]}
    sent = (
        await node.send("POST", "/", json={"jsonrpc": "2.0", "id": 1, "method": "sendMessage", "params": params})
    ).json
    status = {"jsonrpc": "2.0", "id": 2, "method": "getTask", "params": {"taskId": sent["result"]}}
    assert (await node.send("POST", "/", json=status)).json["result"]["name"] == "translate"


async def test_a_default_capability_answers_whatever_the_words_are() -> None:
    manifest = {
        "agent_id": "desk",
        "runtime": "python",
        "endpoint": {"uri": "python:tests.doors.test_unnamed_capability:desk"},
        "capabilities": [{"name": "translate"}, {"name": "summarize", "default": True}],
    }
    doors = [{"kind": "rest"}, {"kind": "directory"}]
    async with running(manifests=[manifest], config={"doors": doors}) as found:
        task = await found.send("POST", "/v1/tasks", json={"agentId": "desk", "input": {"task": "translate it"}})
        assert task.json["metadata"]["capability"] == "summarize"
        assert "default" in task.json["metadata"]["capability_reason"]
        params = {"taskId": "d-1", "agentId": "desk", "input": {"task": "translate it"}, "async": True}
        reply = (await found.send("POST", "/a2a/task", json=params)).json
        assert reply["output"]["_fabric"]["chosen"]["action"] == "summarize"


def desk(task: str) -> dict[str, str]:
    return {"answer": task}


@pytest.mark.parametrize("path", ["/a2a/task", "/a2a/agents/writer/rpc"])
async def test_a_directory_task_may_leave_its_action_out(node: Node, path: str) -> None:
    params = {"taskId": f"one {path}", "input": {"task": "summarize the minutes"}}
    params |= {"agentId": "writer"} if path == "/a2a/task" else {}
    reply = (await node.send("POST", path, json=params)).json
    assert reply["status"] == "completed"
    assert reply["output"]["answer"] == "summary: summarize the minutes"
    chosen = reply["output"]["_fabric"]["chosen"]
    assert (chosen["agentId"], chosen["action"]) == ("writer", "summarize")
    again = (await node.send("POST", path, json=params)).json
    assert again == reply  # the same task
    status = (await node.send("POST", "/a2a/status", json={"taskId": params["taskId"]})).json
    assert status["output"]["_fabric"]["chosen"] == chosen


async def test_a_directory_task_may_leave_its_agent_out_as_well(node: Node) -> None:
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "a2a/task"}
    for words, agent, action in (
        ("greet the people", "solo", "greet"),
        ("ask writer to translate", "writer", "translate"),
    ):
        params = {"taskId": words, "input": {"task": words}}
        result = (await node.send("POST", "/a2a", json={**rpc, "params": params})).json["result"]
        assert words in result["output"]["answer"]
        chosen = result["output"]["_fabric"]["chosen"]
        assert (chosen["agentId"], chosen["action"]) == (agent, action)
        assert chosen["reason"].startswith("The message names no agent.")


async def test_a_directory_stream_may_leave_its_action_out(node: Node) -> None:
    params = {"taskId": "s-1", "agentId": "writer", "input": {"task": "summarize it"}}
    reply = await node.send("POST", "/a2a/stream", json=params, headers={"Accept": "text/event-stream"})
    assert '"action":"summarize"' in reply.body.decode()


async def test_a_directory_task_without_action_and_input_is_refused(node: Node) -> None:
    for params in ({"taskId": "x"}, {"taskId": "x", "agentId": "writer"}, {"taskId": "x", "input": {}}):
        reply = await node.send("POST", "/a2a/task", json=params)
        assert reply.status == 400
        assert "`action`" in reply.json["error"]


async def test_an_agent_that_the_caller_may_not_call_is_never_chosen() -> None:
    keys = [{"id": "narrow", "key": "a-narrow-key-of-a-test", "scopes": ["agent:solo"]}]
    config = {"doors": [{"kind": "directory"}, {"kind": "rest"}], "auth": {"keys": keys}}
    async with running(make_writer(), make_solo(), config=config) as found:
        params = {"taskId": "t", "input": {"task": "ask writer to summarize"}}
        reply = await found.send("POST", "/a2a/task", json=params, token="a-narrow-key-of-a-test")
        assert reply.json["output"]["answer"] == "hello ask writer to summarize"


async def test_no_door_lets_words_alone_change_something() -> None:
    """Neither at an agent that can do nothing else, nor at the node itself, which has no other agent."""
    agent = Agent("eraser", tags=["files"])

    async def act(text: str = "") -> dict[str, str]:
        return {"answer": "gone"}

    for name in ("erase_file", "overwrite_file"):
        agent.capability(name=name, side_effects="writes", description="Changes files for good.")(act)
    doors = [{"kind": kind} for kind in ("fabric", "rest", "directory", "a2a")]
    async with running(agent, config={"doors": doors}) as node:

        def requests(words: str) -> list[tuple[str, dict[str, Any]]]:
            parts = [{"type": "text", "content": words}]
            message = {"messageId": words, "role": "ROLE_USER", "parts": [{"text": words}]}
            return [
                ("/v1/tasks", {"agentId": "eraser", "parts": parts}),
                ("/v1/agents/eraser/messages", {"parts": parts}),
                ("/a2a/task", {"taskId": f"at {words}", "agentId": "eraser", "input": {"task": words}}),
                ("/a2a/task", {"taskId": f"of {words}", "input": {"task": words}}),
                ("/agents/eraser/message:send", {"message": message}),
                ("/gateway/message:send", {"message": message}),
            ]

        for path, body in requests("which files did I change for good?"):
            reply = await node.send("POST", path, json=body, headers={"A2A-Version": "1.0"})
            assert reply.status == 400, (path, reply.body)
            assert "change" in reply.body.decode()
            assert "Name" in reply.body.decode()
        for path, body in requests("overwrite file x"):
            reply = await node.send("POST", path, json=body, headers={"A2A-Version": "1.0"})
            assert reply.status in (200, 201), (path, reply.body)


async def test_words_alone_run_no_tool_of_a_server_that_does_not_say_what_its_tools_change(tmp_path: Path) -> None:
    tools = [tool(f"{verb}_entity", "An entity of the graph.") for verb in ("remove", "show")]
    offer(tmp_path, "graph", tools)
    doors = [{"kind": kind} for kind in ("fabric", "rest", "directory", "a2a")]
    async with running(manifests=[server(tmp_path, "graph")], config={"doors": doors}) as node:

        async def ask(words: str) -> list[Reply]:
            message = {"messageId": words, "role": "ROLE_USER", "parts": [{"text": words}]}
            parts = [{"type": "text", "content": words}]
            headers = {"A2A-Version": "1.0"}
            return [
                await node.send("POST", "/agents/graph/message:send", json={"message": message}, headers=headers),
                await node.send("POST", "/v1/tasks", json={"agentId": "graph", "parts": parts}),
                await node.send("POST", "/v1/agents/graph/messages", json={"parts": parts}),
                await node.send(
                    "POST", "/a2a/task", json={"taskId": words, "agentId": "graph", "input": {"task": words}}
                ),
            ]

        async def is_known() -> bool:
            return bool(node.fabric.registry.get_agent("graph").capabilities)

        await eventually(is_known)
        for reply in await ask("never remove anything of the graph"):
            assert reply.status == 400, reply.body
            assert "remove_entity, show_entity" in reply.body.decode()
        assert [reply.status for reply in await ask("show entity x")] == [200, 201, 201, 200]
