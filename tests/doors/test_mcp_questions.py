"""Agents that ask back, through the doors: MCP clients of both eras in front, MCP servers of both eras behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext

from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Question, Questions
from a2a_fabric.doors.mcp.results import render_input_required
from a2a_fabric.protocols.mcp.questions import parse_capabilities
from tests.doors.test_mcp_fast_path import comparable, goes_the_short_way, stranger
from tests.fixtures.agents.calling import until
from tests.fixtures.mcp_client import client, socket_client, words
from tests.fixtures.mcp_raw import Session, initialize, modern
from tests.fixtures.mcp_servers.asking import asking_program, serving_asking
from tests.fixtures.node import Node, Reply, eventually, running
from tests.system.node import COMMAND, environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENTS = ["http-handshake", "http-stateless", "stdio-handshake", "stdio-stateless"]
CLIENTS = ["http-legacy", "http-2026-07-28", "socket-legacy", "socket-2026-07-28"]
ERAS = ["legacy", "2026-07-28"]
BEE = "the-key-of-the-bee-12345"
CONFIG = {"auth": {"keys": [{"id": "bee", "key": BEE}]}, "routing": {"fallback": False}}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CAN_FILL_IN: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}}}}
WAIT_TIMEOUT = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    """With an agent for each era and each way to it."""
    async with AsyncExitStack() as stack:
        manifests: list[dict[str, Any]] = []
        for agent_id in AGENTS:
            transport, _, era = agent_id.partition("-")
            endpoint: dict[str, Any] = {"command": asking_program(), "era": era}
            if transport == "http":
                server = await stack.enter_async_context(serving_asking(era))  # type: ignore[arg-type]  # one of two
                endpoint = {"uri": server.url}
            manifests.append({"agent_id": agent_id, "runtime": "mcp", "endpoint": endpoint})
        hasty = {**manifests[0], "agent_id": "hasty", "endpoint": {**manifests[0]["endpoint"], "answer_timeout": 0.2}}
        node = await stack.enter_async_context(running(manifests=[*manifests, hasty], config=CONFIG))
        for manifest in (*manifests, hasty):
            await eventually(lambda manifest=manifest: _offers(node, manifest["agent_id"]))  # type: ignore[misc]
        yield node


async def _offers(node: Node, agent_id: str) -> bool:
    told = await node.operation("fabric.agent.describe", {"agent_id": agent_id})
    return bool(told["result"]["agent"]["capabilities"])


class Person:
    """Answers what a client is asked."""

    def __init__(self, *, action: str = "accept") -> None:
        self.action = action
        self.asked: list[str] = []

    async def elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        if isinstance(params, types.ElicitRequestURLParams) or self.action != "accept":
            return types.ElicitResult(action=self.action)  # type: ignore[arg-type]  # one of three
        wanted: dict[str, Any] = {"colour": "red", "size": 7}
        return types.ElicitResult(
            action="accept", content={key: wanted[key] for key in params.requested_schema["properties"]}
        )

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        assert params.max_tokens == 9
        self.asked.append("a model")
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="hi"), model="m1")

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        self.asked.append("folders")
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///work"}]})

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }


def connected(node: Node, kind: str, **more: Any) -> AbstractAsyncContextManager[Client]:
    transport, _, mode = kind.partition("-")
    return client(node, mode, **more) if transport == "http" else socket_client(node, mode, **more)


def tool(agent_id: str, name: str) -> str:
    return f"fabric.tool.agent.{agent_id}.{name}"


@pytest.mark.parametrize("agent_id", AGENTS)
@pytest.mark.parametrize("kind", CLIENTS)
async def test_whatever_a_server_asks_the_client_answers_in_either_era(node: Node, kind: str, agent_id: str) -> None:
    person = Person()
    async with connected(node, kind, **person.callbacks) as caller:
        said = {
            name: words(await caller.call_tool(tool(agent_id, name), arguments))
            for name, arguments in {
                "paint": {"thing": "door"},
                "order": {},
                "think": {},
                "folders": {},
                "sign": {},
                "everything": {},
            }.items()
        }
    assert said == {
        "paint": "door in red",
        "order": "red in 7",
        "think": "m1: hi",
        "folders": "file:///work",
        "sign": "accept",
        "everything": "red m1 1",
    }
    assert person.asked[:3] == ["Which colour?", "Which colour?", "Which size in red?"]
    assert sorted(person.asked[3:]) == sorted(
        ["a model", "folders", "Sign here", "Which colour?", "a model", "folders"]
    )


@pytest.mark.parametrize("agent_id", AGENTS)
@pytest.mark.parametrize("kind", CLIENTS)
async def test_who_declines_or_cancels_is_understood(node: Node, kind: str, agent_id: str) -> None:
    for action in ("decline", "cancel"):
        async with connected(node, kind, **Person(action=action).callbacks) as caller:
            assert words(await caller.call_tool(tool(agent_id, "paint_if"), {})) == action
            refused = await caller.call_tool(tool(agent_id, "paint"), {"thing": "door"})
            assert refused.is_error
            assert action in words(refused)


@pytest.mark.parametrize("agent_id", ["http-handshake", "http-stateless"])
@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_cannot_be_asked_is_told_how_to_answer(node: Node, mode: str, agent_id: str) -> None:
    async with client(node, mode) as caller:
        result = await caller.call_tool(tool(agent_id, "order"), {})
        for answer in ({"colour": "red"}, {"size": 7}):
            assert result.is_error
            error = result.structured_content["error"]
            assert error["code"] == "INPUT_REQUIRED"
            (question,) = error["details"]["questions"].values()
            assert f"{question['message']} To answer, call" in words(result), "a question mark needs no full stop"
            assert json.loads(words(result).partition("\n")[2]) == error["details"]
            how = error["details"]["answer_with"]
            assert how["arguments"]["continuation"] == error["details"]["continuation"]
            for each in how["arguments"]["answers"].values():
                each["content"] = answer
            result = await caller.call_tool(how["tool"], how["arguments"])
    assert words(result) == "red in 7"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fabric_tool_call", {"tool_id": "agent.http-stateless.paint", "parameters": {"thing": "door"}}),
        ("fabric_call", {"agent_id": "http-stateless", "capability": "paint", "task": "door"}),
    ],
)
async def test_the_gateways_own_tools_ask_in_the_same_way(
    node: Node, mode: str, name: str, arguments: dict[str, Any]
) -> None:
    async with client(node, mode, **Person().callbacks) as caller:
        assert words(await caller.call_tool(name, arguments)) == "door in red"
    async with client(node, mode) as caller:
        asked = await caller.call_tool(name, arguments)
        how = asked.structured_content["error"]["details"]["answer_with"]
        how["arguments"]["answers"] = {key: {"content": {"colour": "blue"}} for key in how["arguments"]["answers"]}
        assert words(await caller.call_tool(how["tool"], how["arguments"])) == "door in blue"


async def test_a_client_that_answers_by_a_call_may_be_asked_the_rest(node: Node) -> None:
    """A question that is asked after the continuation in the arguments has another one."""
    given = {"agent_id": "http-handshake", "capability": "order", "task": ""}
    asked = (await node.operation("fabric.call", given))["result"]["input_required"]
    answers = {key: {"content": {"colour": "blue"}} for key in asked["questions"]}
    async with client(node, "2026-07-28", **Person().callbacks) as caller:
        further = {**given, "continuation": asked["continuation"], "answers": answers}
        assert words(await caller.call_tool("fabric_call", further)) == "blue in 7"


async def call(node: Node, params: dict[str, Any], meta: dict[str, Any]) -> Reply:
    head, body = modern("tools/call", params, meta=meta)
    return await node.send("POST", "/mcp", json=body, headers=head)


@pytest.mark.parametrize("capabilities", [CAN_FILL_IN, {CAPABILITIES: {"elicitation": {"url": {}}}}])
async def test_the_short_way_asks_and_hears_the_answers_as_the_sdk_does(
    node: Node, capabilities: dict[str, Any]
) -> None:
    params: dict[str, Any] = {"name": tool("http-stateless", "paint"), "arguments": {"thing": "door"}}
    meta = {**capabilities, **stranger()}
    told = []
    for is_short in (False, True):
        assert goes_the_short_way(node, "tools/call", params, meta) == is_short
        told.append(await call(node, params, meta))
    results = [each.json["result"] for each in told]
    assert [sorted(each) for each in results[:1]] == [sorted(each) for each in results[1:]]
    if capabilities is not CAN_FILL_IN:
        assert all(each["isError"] for each in results)
        return
    assert [each["resultType"] for each in results] == ["input_required"] * 2
    assert results[0]["inputRequests"] == results[1]["inputRequests"]
    (key,) = results[0]["inputRequests"]
    assert results[0]["inputRequests"][key]["method"] == "elicitation/create"
    response = {"inputResponses": {key: {"action": "accept", "content": {"colour": "red"}}}}
    answered = {**params, **response, "requestState": results[0]["requestState"]}
    assert goes_the_short_way(node, "tools/call", answered, meta)
    done = [await call(node, answered, meta), await call(node, answered, {**meta, **stranger()})]
    assert comparable(done[0]) == comparable(done[1])
    assert done[0].json["result"]["structuredContent"] == {"answer": "door in red"}


@pytest.mark.parametrize("wrong", [{"k": {"action": "maybe"}}, {"k": {}}, {"k": "yes"}, []])
async def test_responses_that_are_none_are_left_to_the_sdk_which_refuses_them(node: Node, wrong: Any) -> None:
    params = {"name": tool("http-stateless", "paint"), "arguments": {"thing": "x"}, "inputResponses": wrong}
    reply = await call(node, params, CAN_FILL_IN)
    assert reply.json["error"]["code"] == types.INVALID_PARAMS


async def test_a_state_that_is_none_is_bad_input(node: Node) -> None:
    params = {"name": tool("http-stateless", "paint"), "arguments": {"thing": "x"}, "requestState": "nonsense"}
    for _ in range(2):
        result = (await call(node, params, CAN_FILL_IN)).json["result"]
        assert (result["isError"], result["structuredContent"]["error"]["code"]) == (True, "BAD_INPUT")


@pytest.mark.parametrize("mode", ERAS)
async def test_an_agent_that_wants_nothing_but_time_gets_it(node: Node, mode: str) -> None:
    async with client(node, mode) as caller:
        assert words(await caller.call_tool(tool("http-stateless", "patience"), {})) == "done"


@pytest.mark.parametrize("kind", ["http-legacy", "socket-legacy"])
async def test_a_client_that_leaves_while_it_is_asked_cancels_the_question_and_the_call(
    node: Node, kind: str, tmp_path: Path
) -> None:
    note, is_asked = tmp_path / "note", asyncio.Event()

    async def think_long(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        is_asked.set()
        await asyncio.sleep(600)
        raise AssertionError

    async with connected(node, kind, elicitation_callback=think_long) as caller:
        calling = asyncio.ensure_future(caller.call_tool(tool("http-handshake", "ask_and_note"), {"note": str(note)}))
        await asyncio.wait_for(is_asked.wait(), WAIT_TIMEOUT)
        calling.cancel()
        await asyncio.wait([calling])
        await until(lambda: note.exists() and note.read_text().startswith("cancel"), WAIT_TIMEOUT)
    await until(lambda: note.read_text() == "cancel cancelled", WAIT_TIMEOUT)


async def test_a_client_whose_stream_breaks_while_it_is_asked_may_resume_until_its_session_ends(
    node: Node, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    opening = initialize()
    opening["params"]["capabilities"] = {"elicitation": {}}
    async with Session(node, opening=opening) as session:
        params = {"name": tool("http-handshake", "ask_and_note"), "arguments": {"note": str(note)}}
        async with session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) as response:
            async for line in response.content:
                if b"elicitation/create" in line:
                    break
            response.close()
        await asyncio.sleep(0.5)
        assert not note.exists()
    await until(lambda: note.exists() and note.read_text() == "cancel cancelled", WAIT_TIMEOUT)


@pytest.mark.parametrize("agent_id", AGENTS)
async def test_the_fabric_door_returns_the_question_and_takes_the_answers(node: Node, agent_id: str) -> None:
    given: dict[str, Any] = {"agent_id": agent_id, "capability": "order", "task": ""}
    for answer, message in (({"colour": "red"}, "Which colour?"), ({"size": 7}, "Which size in red?")):
        asked = (await node.operation("fabric.call", given))["result"]["input_required"]
        assert asked["message"] == message
        answers = {key: {"action": "accept", "content": answer} for key in asked["questions"]}
        given = {**given, "continuation": asked["continuation"], "answers": answers}
    assert (await node.operation("fabric.call", given))["result"] == {"answer": "red in 7"}


async def test_a_listener_hears_the_question_as_an_event(node: Node) -> None:
    events = await node.events("http-handshake", "paint", "door")
    kinds = [event["event"] for event in events]
    assert kinds[-2:] == ["input_required", "final"]


async def test_no_other_caller_can_answer(node: Node) -> None:
    given = {"agent_id": "http-handshake", "capability": "paint", "task": "door"}
    asked = (await node.operation("fabric.call", given))["result"]["input_required"]
    answers = {key: {"content": {"colour": "red"}} for key in asked["questions"]}
    further = {**given, "continuation": asked["continuation"], "answers": answers}
    foreign = await node.operation("fabric.call", further, token=BEE)
    assert foreign["error_code"] == "BAD_INPUT"
    assert "continuation is unknown" in foreign["error"]
    assert (await node.operation("fabric.call", further))["result"] == {"answer": "door in red"}


async def test_a_late_answer_is_refused(node: Node, tmp_path: Path) -> None:
    note = tmp_path / "note"
    given = {"agent_id": "hasty", "capability": "ask_and_note", "task": str(note)}
    asked = (await node.operation("fabric.call", given))["result"]["input_required"]
    await until(note.exists, WAIT_TIMEOUT)
    late = await node.operation("fabric.call", {**given, "continuation": asked["continuation"]})
    assert late["error_code"] == "BAD_INPUT"
    assert "has expired" in late["error"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_started_us_is_asked_over_its_pipes(mode: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    agents = [
        {"agent_id": era, "runtime": "mcp", "endpoint": {"command": asking_program(), "era": era}}
        for era in ("handshake", "stateless")
    ]
    (tmp_path / "agents.yaml").write_text(json.dumps(agents))
    command = StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], "mcp", "--alone", "--agents", "agents.yaml"],
        env=environment(home),
        cwd=str(tmp_path),
    )
    async with asyncio.timeout(2 * WAIT_TIMEOUT), Client(command, mode=mode, **Person().callbacks) as caller:
        for era in ("handshake", "stateless"):
            given = {"agent_id": era, "capability": "order", "task": ""}
            assert words(await caller.call_tool("fabric_call", given)) == "red in 7"


async def test_a_question_of_another_protocol_is_put_into_the_words_of_this_one() -> None:
    form = Question(kind="form", message="Go on?", schema={"properties": {"yes": {"type": "boolean"}}})
    told = render_input_required(Questions(questions={"q1": form}, continuation="a:1"), new_trace())
    read = types.InputRequiredResult.model_validate(json.loads(json.dumps(told, default=str)), by_name=False)
    assert read.input_requests is not None
    assert isinstance(request := read.input_requests["q1"], types.ElicitRequest)
    assert isinstance(request.params, types.ElicitRequestFormParams)
    assert request.params.requested_schema["type"] == "object"


@pytest.mark.parametrize(
    ("declared", "kinds"),
    [
        ({}, []),
        ({"elicitation": {}}, ["form"]),
        ({"elicitation": {"form": {}}}, ["form"]),
        ({"elicitation": {"url": {}}}, ["url"]),
        ({"elicitation": {"form": {}, "url": {}}, "roots": {}}, ["form", "url", "roots"]),
        ({"sampling": {}}, ["sampling"]),
        ({"sampling": {"tools": {}}}, ["sampling", "tools"]),
        ({"sampling": "yes"}, []),
        ([], []),
    ],
)
async def test_a_client_is_asked_only_what_it_said_it_can_answer(declared: Any, kinds: list[str]) -> None:
    questions = {
        "form": Question(kind="form"),
        "url": Question(kind="url"),
        "sampling": Question(kind="sampling"),
        "tools": Question(kind="sampling", params={"tools": []}),
        "roots": Question(kind="roots"),
    }
    abilities = parse_capabilities(json.dumps(declared).encode())
    covered = {
        name
        for name, each in questions.items()
        if abilities.can_answer(Questions(questions={"q": each}, continuation=""))
    }
    assert covered == set(kinds)
