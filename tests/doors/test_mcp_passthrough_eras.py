"""`/agents/ID/mcp` between the eras: a client of one and a server of another or of both, nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.fixtures.conformance_server import serving
from tests.fixtures.forked.commands import forked_command
from tests.fixtures.mcp_client import client, words
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement

WAIT_TIMEOUT = 30.0
PATH = "/agents/fixture/mcp"
OTHER = "the-key-of-somebody-else"
# Where the server is, which era it speaks, and which the client speaks.
KINDS = [
    ("stdio", "both", "2026-07-28"),
    ("stdio", "handshake", "2026-07-28"),
    ("http", "handshake", "2026-07-28"),
    ("stdio", "both", "legacy"),
    ("stdio", "stateless", "legacy"),
    ("http", "stateless", "legacy"),
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
bridged = pytest.mark.parametrize("kind", [KINDS[1], KINDS[2]], ids=lambda kind: "-".join(kind))


def on(node: Node, mode: str, **more: Any) -> Any:
    return client(node, mode, path=PATH, timeout=WAIT_TIMEOUT, **more)


def program(era: str) -> dict[str, Any]:
    return {"command": forked_command("tests.fixtures.conformance_server", "stdio", era)}


@asynccontextmanager
async def node_before(kind: tuple[str, str, str]) -> AsyncIterator[Node]:
    where, era, _ = kind
    config = {"auth": {"keys": [{"id": "other", "key": OTHER}]}}
    if where == "stdio":
        manifest = {"agent_id": "fixture", "runtime": "mcp", "endpoint": program(era)}
        async with running(manifests=[manifest], config=config) as node:
            yield node
        return
    async with serving(era=era) as url:  # type: ignore[arg-type]
        manifest = {"agent_id": "fixture", "runtime": "mcp", "endpoint": {"uri": url}}
        async with running(manifests=[manifest], config=config) as node:
            yield node


@pytest.fixture
async def node(kind: tuple[str, str, str]) -> AsyncIterator[Node]:
    async with node_before(kind) as found:
        yield found


async def answer_question(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    given: dict[str, Any] = {"name": "Ada", "username": "ada", "email": "ada@example.org", "color": "red", "ok": True}
    wanted = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={name: given[name] for name in wanted})


async def answer_prompt(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Paris"), model="none")


async def name_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///here")])  # type: ignore[arg-type]


@requirement("001-52")
@kinds
async def test_everything_a_server_has_is_there_under_its_own_name(node: Node, kind: tuple[str, str, str]) -> None:
    async with on(node, kind[2]) as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        assert "$defs" in tools["json_schema_2020_12_tool"].input_schema
        mixed = await connected.call_tool("test_multiple_content_types", {})
        assert [block.type for block in mixed.content] == ["text", "image", "resource"]
        assert len((await connected.list_resources()).resources) == 3
        templates = await connected.list_resource_templates()
        assert templates.resource_templates[0].uri_template == "test://template/{id}/data"
        read = await connected.read_resource("test://template/7/data")
        assert json.loads(read.contents[0].text)["id"] == "7"
        assert len((await connected.list_prompts()).prompts) == 5
        prompt = await connected.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert "arg1='a'" in prompt.messages[0].content.text
        about = types.PromptReference(name="test_prompt_with_arguments")
        completed = await connected.complete(about, {"name": "arg1", "value": "par"})
        assert completed.completion.values == ["paris", "park"]


@kinds
async def test_progress_errors_and_meta_come_through(node: Node, kind: tuple[str, str, str]) -> None:
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with on(node, kind[2]) as connected:
        await connected.call_tool("test_tool_with_progress", {}, progress_callback=listen)
        seen = await connected.call_tool("extra_seen", {}, meta={"mine/own": [1]})
        with pytest.raises(MCPError) as raised:
            await connected.call_tool("extra_error_data", {})
        failed = await connected.call_tool("test_error_handling", {})
        with pytest.raises(MCPError) as missing:
            await connected.read_resource("test://nothing")
    assert heard == [0, 50, 100]
    assert seen.structured_content["meta"]["mine/own"] == [1]
    assert seen.meta["extra/seen"] is True
    assert (raised.value.code, raised.value.data) == (-31999, {"colour": "octarine", "known": ["red"]})
    assert failed.is_error
    assert missing.value.data == {"uri": "test://nothing"}


@kinds
async def test_the_server_that_answers_is_known(node: Node, kind: tuple[str, str, str]) -> None:
    mode = "auto" if kind[2] == "2026-07-28" else "legacy"
    async with on(node, mode) as connected:
        await connected.list_tools()
        assert connected.server_info is not None
        assert connected.server_info.name == "conformance-fixture"
        assert connected.instructions == "Everything the suite asks for."
        assert connected.server_capabilities.prompts is not None


@kinds
async def test_a_server_can_ask_whatever_its_client_can_answer(node: Node, kind: tuple[str, str, str]) -> None:
    ways = {"sampling_callback": answer_prompt, "elicitation_callback": answer_question}
    _, era, mode = kind
    in_rounds = era == "stateless" or (era == "both" and mode != "legacy")
    async with on(node, mode, list_roots_callback=name_roots, **ways) as connected:
        if in_rounds:
            rounds = await connected.call_tool("test_input_required_result_multi_round", {})
            state = await connected.call_tool("test_input_required_result_request_state", {})
            several = await connected.call_tool("test_input_required_result_multiple_inputs", {})
            roots = await connected.call_tool("test_input_required_result_list_roots", {})
            said = [words(each) for each in (rounds, state, several, roots)]
            assert said[:2] == ["Ada likes red", "state-ok"]
            assert said[2].startswith("All inputs received")
            assert said[3] == "Roots: file:///here"
        else:
            sampled = await connected.call_tool("test_sampling", {"prompt": "What is the capital of France?"})
            asked = await connected.call_tool("test_elicitation", {"message": "Who are you?"})
            assert words(sampled) == "LLM response: Paris"
            assert '"username": "ada"' in words(asked)


@kinds
async def test_log_lines_reach_who_asked_for_them(node: Node, kind: tuple[str, str, str]) -> None:
    logged: list[Any] = []

    async def note(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    async with on(node, kind[2], logging_callback=note) as connected:
        if kind[2] == "legacy":
            level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="info"))
            await connected.session.send_request(level, types.EmptyResult)
            await connected.call_tool("test_tool_with_logging", {})
        else:
            wanted = {"io.modelcontextprotocol/logLevel": "info"}
            await connected.call_tool("test_tool_with_logging", {}, meta=wanted)
    assert logged == ["Tool execution started", "Tool processing data", "Tool execution completed"]


@kinds
async def test_a_client_that_cancels_ends_the_servers_work(
    node: Node, kind: tuple[str, str, str], tmp_path: Path
) -> None:
    note = tmp_path / "note"
    running_there = asyncio.Event()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        running_there.set()

    async with on(node, kind[2]) as connected:
        call = asyncio.ensure_future(connected.call_tool("extra_wait", {"note": str(note)}, progress_callback=listen))
        await asyncio.wait_for(running_there.wait(), WAIT_TIMEOUT)
        call.cancel()

        async def is_cancelled() -> bool:
            return note.exists()

        await eventually(is_cancelled)
        with pytest.raises(asyncio.CancelledError):
            await call


@kinds
async def test_news_of_changed_lists_arrive(node: Node, kind: tuple[str, str, str]) -> None:
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    if kind[2] == "legacy":
        async with on(node, "legacy", message_handler=hear) as connected:
            while not told.is_set():  # the client opens its stream for news after the handshake, in its own time
                await connected.call_tool("test_trigger_tool_change", {})
        return
    async with (
        on(node, "2026-07-28") as connected,
        connected.listen(tools_list_changed=True) as news,
    ):
        await connected.call_tool("test_trigger_tool_change", {})
        assert type(await anext(aiter(news))).__name__ == "ToolsListChanged"


def asking(**params: Any) -> tuple[dict[str, str], dict[str, Any]]:
    given = {"name": "test_elicitation", "arguments": {"message": "Who are you?"}, **params}
    able: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    return modern("tools/call", given, meta=able)


async def first_round(node: Node) -> dict[str, Any]:
    headers, body = asking()
    reply = await node.send("POST", PATH, json=body, headers=headers)
    assert reply.json["result"]["resultType"] == "input_required"
    result: dict[str, Any] = reply.json["result"]
    return result


def answers(result: dict[str, Any]) -> dict[str, Any]:
    (key,) = result["inputRequests"]
    content = {"username": "ada", "email": "ada@example.org"}
    return {"requestState": result["requestState"], "inputResponses": {key: {"action": "accept", "content": content}}}


@bridged
async def test_a_question_waits_for_its_own_client_only_and_once(node: Node, kind: tuple[str, str, str]) -> None:
    result = await first_round(node)
    (question,) = result["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "Who are you?"
    headers, body = asking(**answers(result))
    stolen = await node.send("POST", PATH, json=body, headers={**headers, "Authorization": f"Bearer {OTHER}"})
    assert (stolen.status, stolen.json["error"]["code"]) == (400, -32602)
    reply = await node.send("POST", PATH, json=body, headers=headers)
    assert '"username": "ada"' in reply.json["result"]["content"][0]["text"]
    again = await node.send("POST", PATH, json=body, headers=headers)
    assert (again.status, again.json["error"]["code"]) == (400, -32602)


@bridged
async def test_a_question_that_is_not_answered_is_asked_again(node: Node, kind: tuple[str, str, str]) -> None:
    result = await first_round(node)
    headers, body = asking(requestState=result["requestState"], inputResponses={})
    second = (await node.send("POST", PATH, json=body, headers=headers)).json["result"]
    assert second["inputRequests"] == result["inputRequests"]
    assert second["requestState"] != result["requestState"]
    headers, body = asking(**answers(second))
    reply = await node.send("POST", PATH, json=body, headers=headers)
    assert '"username": "ada"' in reply.json["result"]["content"][0]["text"]


@bridged
async def test_two_clients_are_asked_at_the_same_time_and_each_gets_its_own_answer(
    node: Node, kind: tuple[str, str, str]
) -> None:
    one, two = await asyncio.gather(first_round(node), first_round(node))
    for result, name in ((two, "zoe"), (one, "ada")):
        given = answers(result)
        (response,) = given["inputResponses"].values()
        response["content"]["username"] = name
        headers, body = asking(**given)
        reply = await node.send("POST", PATH, json=body, headers=headers)
        assert f'"username": "{name}"' in reply.json["result"]["content"][0]["text"]


@bridged
async def test_a_client_that_cannot_be_asked_is_not(node: Node, kind: tuple[str, str, str]) -> None:
    call = {"name": "test_elicitation", "arguments": {"message": "Who are you?"}}
    headers, body = modern("tools/call", call)
    reply = await node.send("POST", PATH, json=body, headers=headers)
    assert "error" in reply.json or reply.json["result"]["isError"]


@bridged
async def test_what_only_the_other_era_has_is_not_found(node: Node, kind: tuple[str, str, str]) -> None:
    for method in ("initialize", "ping", "logging/setLevel", "resources/subscribe"):
        headers, body = modern(method)
        reply = await node.send("POST", PATH, json=body, headers=headers)
        assert (reply.status, reply.json["error"]["code"]) == (404, -32601)


@bridged
async def test_a_resource_can_be_watched(node: Node, kind: tuple[str, str, str]) -> None:
    wanted = {"resourceSubscriptions": ["test://watched-resource"], "promptsListChanged": True}
    headers, body = modern("subscriptions/listen", {"notifications": wanted})
    async with asyncio.timeout(WAIT_TIMEOUT), node.client.post(node.url + PATH, json=body, headers=headers) as stream:
        messages = [await _event(stream), await _event(stream)]
    by_method = {message["method"]: message["params"] for message in messages}
    assert set(by_method) == {"notifications/subscriptions/acknowledged", "notifications/resources/updated"}
    assert by_method["notifications/subscriptions/acknowledged"]["notifications"]["promptsListChanged"] is True
    for params in by_method.values():
        assert params["_meta"]["io.modelcontextprotocol/subscriptionId"] == 1


async def _event(stream: Any) -> Any:
    async for line in stream.content:
        if line.startswith(b"data: {"):
            return json.loads(line[6:])
    raise AssertionError("the stream ended")
