"""`/agents/ID/mcp` of an agent that is itself an MCP server: nothing they say is lost, nothing of ours leaks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.propagation import MANDATE_META_KEY, PASSPORT_META_KEY
from tests.fixtures.conformance_server import serving
from tests.fixtures.forked.commands import forked_command
from tests.fixtures.mcp_client import MODES, client, words
from tests.fixtures.mcp_raw import Session, modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

PATH = "/agents/fixture/mcp"
OTHER = "the-key-of-somebody-else"
NARROW = "the-key-of-one-capability"
eras = pytest.mark.parametrize("mode", MODES)


def keys() -> dict[str, Any]:
    scoped = {"id": "narrow", "key": NARROW, "scopes": ["capability:test_simple_text"]}
    return {"auth": {"keys": [{"id": "other", "key": OTHER}, scoped]}}


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    async with serving() as url:
        yield url


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving() as url:
        endpoint = {"uri": url, "headers": {"X-Key": "the node's own"}}
        manifests = [
            {"agent_id": "fixture", "runtime": "mcp", "endpoint": endpoint},
            {"agent_id": "gone", "runtime": "mcp", "endpoint": {"uri": "http://127.0.0.1:9/mcp"}},
            {"agent_id": "secret", "runtime": "mcp", "trust_tier": "local", "endpoint": endpoint},
        ]
        async with running(manifests=manifests, config=keys()) as found:
            yield found


def on(node: Node, mode: str, **more: Any) -> Any:
    return client(node, mode, path=PATH, **more)


async def answer_question(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    given: dict[str, Any] = {"name": "Ada", "username": "ada", "email": "ada@example.org", "color": "red", "ok": True}
    wanted = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={name: given[name] for name in wanted})


async def answer_prompt(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Paris"), model="none")


@requirement("001-52")
@eras
async def test_names_resources_prompts_and_completions_are_the_agents_own(node: Node, mode: str) -> None:
    async with on(node, mode) as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        assert "$defs" in tools["json_schema_2020_12_tool"].input_schema
        mixed = await connected.call_tool("test_multiple_content_types", {})
        assert [block.type for block in mixed.content] == ["text", "image", "resource"]
        read = await connected.read_resource("test://template/7/data")
        assert json.loads(read.contents[0].text)["id"] == "7"
        prompt = await connected.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert "arg1='a'" in prompt.messages[0].content.text
        about = types.PromptReference(name="test_prompt_with_arguments")
        completed = await connected.complete(about, {"name": "arg1", "value": "par"})
        assert completed.completion.values == ["paris", "park"]


@requirement("001-23", "001-52")
@eras
async def test_progress_arrives_in_order_before_the_result(node: Node, mode: str) -> None:
    heard: list[float] = []

    async def listen(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    async with on(node, mode) as connected:
        await connected.call_tool("test_tool_with_progress", {}, progress_callback=listen)
    assert heard == [0, 50, 100]


async def test_a_server_of_the_handshake_era_asks_the_client_while_the_call_runs(node: Node) -> None:
    logged: list[Any] = []

    async def note(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    ways = {"sampling_callback": answer_prompt, "elicitation_callback": answer_question, "logging_callback": note}
    async with on(node, "legacy", **ways) as connected:
        sampled = await connected.call_tool("test_sampling", {"prompt": "What is the capital of France?"})
        asked = await connected.call_tool("test_elicitation", {"message": "Who are you?"})
        await connected.call_tool("test_tool_with_logging", {})
    assert words(sampled) == "LLM response: Paris"
    assert '"username": "ada"' in words(asked)
    assert logged == ["Tool execution started", "Tool processing data", "Tool execution completed"]


async def test_in_the_stateless_era_questions_go_in_rounds_with_their_state(node: Node) -> None:
    async with on(node, "2026-07-28", elicitation_callback=answer_question) as connected:
        rounds = await connected.call_tool("test_input_required_result_multi_round", {})
        state = await connected.call_tool("test_input_required_result_request_state", {})
    assert words(rounds) == "Ada likes red"
    assert words(state) == "state-ok"


@eras
async def test_an_error_keeps_its_code_and_its_data(node: Node, mode: str) -> None:
    async with on(node, mode) as connected:
        with pytest.raises(MCPError) as raised:
            await connected.call_tool("extra_error_data", {})
    assert raised.value.code == -31999
    assert raised.value.data == {"colour": "octarine", "known": ["red"]}


@eras
async def test_the_callers_credentials_stay_here_and_the_manifests_go_on(node: Node, mode: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = {"traceparent": trace, "Cookie": "a=b", "X-Api-Key": PSK, "Mcp-Param-Extra": "yes"}
    async with on(node, mode, headers=sent) as connected:
        seen = await connected.call_tool("extra_seen", {}, meta={"mine/own": [1]})
    found = seen.structured_content
    assert found["meta"]["mine/own"] == [1]
    assert seen.meta["extra/seen"] is True
    headers = found["headers"]
    assert headers["x-key"] == "the node's own"
    assert headers["mcp-param-extra"] == "yes"
    assert headers["traceparent"].split("-")[1] == trace.split("-")[1]
    assert headers["traceparent"] != trace
    assert not {"authorization", "cookie", "x-api-key", "origin"} & headers.keys()
    assert PSK not in json.dumps(found)


@eras
async def test_a_client_that_leaves_ends_the_agents_work(node: Node, mode: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    running_there = asyncio.Event()

    async def listen(done: float, total: float | None, message: str | None) -> None:
        running_there.set()

    async with on(node, mode) as connected:
        call = asyncio.ensure_future(connected.call_tool("extra_wait", {"note": str(note)}, progress_callback=listen))
        async with asyncio.timeout(WAIT_TIMEOUT):
            await running_there.wait()
        call.cancel()

        async def is_cancelled() -> bool:
            return note.exists()

        await eventually(is_cancelled)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_news_of_both_eras_come_through(node: Node) -> None:
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    async with on(node, "legacy", message_handler=hear) as connected:
        await connected.call_tool("test_trigger_tool_change", {})
        async with asyncio.timeout(WAIT_TIMEOUT):
            await told.wait()
    headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with node.client.post(node.url + PATH, json=body, headers=headers) as stream:
        first = await _event(stream)
        assert first["method"] == "notifications/subscriptions/acknowledged"
        headers, body = modern("tools/call", {"name": "test_trigger_tool_change", "arguments": {}})
        await node.send("POST", PATH, json=body, headers=headers)
        assert (await _event(stream))["method"] == "notifications/tools/list_changed"


async def _event(stream: Any) -> Any:
    async with asyncio.timeout(WAIT_TIMEOUT):
        async for line in stream.content:
            if line.startswith(b"data: {"):
                return json.loads(line[6:])
    raise AssertionError("the stream ended")


async def test_a_stream_that_waits_for_news_does_not_hold_up_the_end_of_the_node(upstream: str) -> None:
    manifest = {"agent_id": "fixture", "runtime": "mcp", "endpoint": {"uri": upstream}}
    headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with (
        running(manifests=[manifest]) as node,
        asyncio.timeout(WAIT_TIMEOUT),
        node.client.post(node.url + PATH, json=body, headers=headers) as stream,
    ):
        await _event(stream)
        node.fabric.app.stop()
        rest = await stream.content.read()
    assert b"data:" not in rest


async def test_a_session_belongs_to_the_caller_that_opened_it(node: Node) -> None:
    async with Session(node, path=PATH) as session:
        stolen = {**session.headers, "Authorization": f"Bearer {OTHER}"}
        ping = {"jsonrpc": "2.0", "id": 5, "method": "ping"}
        reply = await node.send("POST", PATH, json=ping, headers=stolen)
        assert reply.status == 404
        assert reply.json["id"] == 5
        own = await node.send("POST", PATH, json=ping, headers=session.headers)
        assert own.status == 200
    after = await node.send("POST", PATH, json=ping, headers=session.headers)
    assert after.status == 404


@eras
async def test_who_may_use_one_capability_only_sees_and_calls_that_one(node: Node, mode: str) -> None:
    async def has_described() -> bool:
        manifest = node.fabric.registry.catalog.get("fixture")
        return manifest is not None and bool(manifest.capabilities)

    await eventually(has_described)
    async with on(node, mode, token=NARROW) as connected:
        assert [tool.name for tool in (await connected.list_tools()).tools] == ["test_simple_text"]
        refused = await connected.call_tool("extra_seen", {})
        assert refused.is_error


@pytest.mark.parametrize(
    ("path", "token", "status", "code"),
    [
        (PATH, "wrong", 401, "AUTH_INVALID"),
        (PATH, None, 401, "AUTH_DENIED"),
        ("/agents/nobody/mcp", PSK, 404, "AGENT_NOT_FOUND"),
        ("/agents/gone/mcp", PSK, 503, "AGENT_OFFLINE"),
    ],
)
async def test_what_cannot_go_through_gets_the_canonical_error(
    node: Node, path: str, token: str | None, status: int, code: str
) -> None:
    headers, body = modern("tools/list")
    del headers["Authorization"]
    reply = await node.send("POST", path, token=token, json=body, headers=headers)
    assert reply.status == status
    assert reply.json["id"] == (None if status == 401 else 1)  # the body of a refused caller is not read
    assert reply.json["error"]["data"]["error"]["code"] == code


async def test_other_methods_and_oversized_replies_are_refused(upstream: str) -> None:
    manifest = {"agent_id": "fixture", "runtime": "mcp", "endpoint": {"uri": upstream}}
    async with running(manifests=[manifest], config={"limits": {"reply_bytes": 50_000}}) as node:
        put = await node.send("PUT", PATH)
        assert put.status == 405
        assert put.headers["allow"] == "POST, GET, DELETE"
        headers, body = modern("tools/call", {"name": "extra_big", "arguments": {"size": 100_000}})
        reply = await node.send("POST", PATH, json=body, headers=headers)
        assert b"larger than 50000 bytes" in reply.body
        assert reply.json["id"] == 1


async def test_each_request_that_goes_through_has_one_line_in_the_log(node: Node) -> None:
    headers, body = modern("tools/list")
    await node.send("POST", PATH, json=body, headers=headers)

    async def is_written() -> bool:
        return PATH in node.log.getvalue()

    await eventually(is_written)
    lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
    mine = [line for line in lines if line.get("operation") == f"{PATH} tools/list"]
    assert [(line["http_status"], line["status"]) for line in mine] == [(200, "completed")]


@pytest.fixture
async def piped(tmp_path: Path) -> AsyncIterator[Node]:
    """The same server, but on stdin and stdout."""
    endpoint = {"command": forked_command("tests.fixtures.conformance_server", "stdio")}
    async with running(manifests=[{"agent_id": "fixture", "runtime": "mcp", "endpoint": endpoint}]) as found:
        yield found


async def test_a_server_on_stdio_is_spoken_to_as_it_is_in_a_session(piped: Node) -> None:
    heard: list[float] = []

    async def listen(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    ways = {"sampling_callback": answer_prompt, "elicitation_callback": answer_question}
    async with on(piped, "legacy", **ways) as connected:
        assert connected.server_info.name == "conformance-fixture"
        await connected.call_tool("test_tool_with_progress", {}, progress_callback=listen)
        sampled = await connected.call_tool("test_sampling", {"prompt": "What is the capital of France?"})
        asked = await connected.call_tool("test_elicitation", {"message": "Who are you?"})
        read = await connected.read_resource("test://static-text")
        prompts = await connected.list_prompts()
        with pytest.raises(MCPError) as raised:
            await connected.call_tool("extra_error_data", {})
    assert heard == [0, 50, 100]
    assert words(sampled) == "LLM response: Paris"
    assert '"username": "ada"' in words(asked)
    assert read.contents[0].mime_type == "text/plain"
    assert len(prompts.prompts) == 5
    assert raised.value.data == {"colour": "octarine", "known": ["red"]}


async def test_each_session_with_a_server_on_stdio_has_a_program_of_its_own_until_it_ends(piped: Node) -> None:
    def children() -> int:
        return len(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    async def down_to(number: int) -> None:
        async def is_so() -> bool:
            return children() <= number

        await eventually(is_so)

    async with on(piped, "legacy") as one:
        await one.call_tool("test_simple_text", {})
        before = children()
        async with on(piped, "legacy") as two:
            assert words(await two.call_tool("test_simple_text", {})).startswith("This is")
            assert children() == before + 1
        await down_to(before)
        assert words(await one.call_tool("test_simple_text", {})).startswith("This is")


async def test_a_program_that_ends_in_mid_call_ends_the_call_and_the_session(piped: Node) -> None:
    async with Session(piped, path=PATH) as session:
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "extra_die", "arguments": {}}}
        reply = await piped.send("POST", PATH, json=call, headers=session.headers)
        assert b'"id":7' in reply.body
        assert b"has ended" in reply.body

        async def is_over() -> bool:
            ping = {"jsonrpc": "2.0", "id": 8, "method": "ping"}
            return (await piped.send("POST", PATH, json=ping, headers=session.headers)).status == 404

        await eventually(is_over)


@eras
async def test_credentials_in_meta_are_refused_because_the_agent_would_get_them(node: Node, mode: str) -> None:
    async with on(node, mode) as connected:
        for key in (PASSPORT_META_KEY, MANDATE_META_KEY):
            with pytest.raises(MCPError, match="X-Agent-Passport"):
                await connected.call_tool("test_simple_text", {}, meta={key: "{}"})
            with pytest.raises(MCPError, match="X-Agent-Passport"):
                await connected.list_tools(meta={key: "{}"})
