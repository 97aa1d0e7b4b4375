"""Tools and resources through the official client: every era, over HTTP and WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import mcp_types as types
import msgspec
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from a2a_fabric.agent import Agent
from a2a_fabric.core.result import Part, Result
from tests.fixtures.mcp_client import MODES, client, socket_client, words
from tests.fixtures.node import PSK, Node, check_trace, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

Connect = Callable[..., AbstractAsyncContextManager[Client]]

OPERATIONS = [
    "fabric_agent_list", "fabric_agent_describe", "fabric_route_preview", "fabric_call",
    "fabric_agent_search", "fabric_route", "fabric_ask",
    "fabric_agent_register", "fabric_agent_heartbeat", "fabric_agent_unregister", "fabric_agent_health",
    "fabric_job_status",
    "fabric_job_stream", "fabric_job_result", "fabric_job_list", "fabric_job_cancel", "fabric_job_answer",
    "fabric_job_retry", "fabric_graph_plan", "fabric_graph_run",
    "fabric_task_send", "fabric_task_get", "fabric_task_update", "fabric_task_cancel", "fabric_signal_send",
    "fabric_message_send", "fabric_message_receive", "fabric_message_acknowledge", "fabric_message_publish",
    "fabric_message_queue_status", "fabric_message_status", "fabric_message_subscribe", "fabric_message_unsubscribe",
    "fabric_message_topics", "fabric_health",
    "fabric_tool_list", "fabric_tool_describe", "fabric_tool_call",
]  # fmt: skip
ALL = {"doors": [{"kind": "mcp", "gateway_tools": "all"}]}
MINIMAL = ["fabric_tool_list", "fabric_tool_describe", "fabric_tool_call", "fabric_call"]
ways = pytest.mark.parametrize("connect", [client, socket_client])
eras = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
async def percy() -> Percy:
    return Percy()


@pytest.fixture
async def node(percy: Percy) -> AsyncIterator[Node]:
    async with running(percy.agent) as found:
        yield found


def declared() -> Agent:
    agent = Agent("Data-Science", description="Knows numbers.")

    async def act(value: int) -> dict[str, Any]:
        """Do it."""
        return {"value": value}

    for effects in ("none", "reads", "writes"):
        agent.capability(name=effects, side_effects=effects, idempotent=effects != "writes")(act)
    return agent


async def by_name(connected: Client) -> dict[str, types.Tool]:
    return {tool.name: tool for tool in (await connected.list_tools()).tools}


@requirement("001-01", "001-52")
@ways
@eras
async def test_operations_and_capabilities_are_tools_in_every_era(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        tools = await by_name(connected)
        assert list(tools)[-len(MINIMAL) :] == MINIMAL
        assert {"percy_reason", "percy_plan"} <= tools.keys()
        assert tools["percy_reason"].description == "Repeat the task."
        assert tools["percy_reason"].input_schema["required"] == ["task"]
        result = await connected.call_tool("percy_reason", {"task": "think", "depth": 3})
        assert result.structured_content == {"answer": "think", "depth": 3}
        assert json.loads(words(result)) == {"answer": "think", "depth": 3}
        assert not result.is_error


@pytest.mark.parametrize(
    ("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")]
)
async def test_both_eras_are_served_at_one_address(node: Node, mode: str, version: str) -> None:
    async with client(node, mode) as connected:
        assert connected.session.protocol_version == version


@requirement("001-52")
async def test_every_operation_is_listed_with_its_schemas_and_hints(percy: Percy) -> None:
    async with running(percy.agent, config=ALL) as node, client(node) as connected:
        tools = await by_name(connected)
        operations = {operation.name: operation for operation in node.fabric.operations}
    assert list(tools)[-len(OPERATIONS) :] == OPERATIONS
    for name in OPERATIONS:
        tool = tools[name]
        operation = operations[(tool.meta or {})["a2a-fabric/name"]]
        assert tool.title is None
        assert tool.input_schema == json.loads(msgspec.json.encode(operation.input_schema))
        assert tool.output_schema == operation.output_schema
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is operation.read_only
        assert tool.annotations.destructive_hint is not operation.read_only


async def test_hints_say_what_the_capability_declares_and_nothing_else(percy: Percy) -> None:
    async with running(declared(), percy.agent) as node, client(node) as connected:
        tools = await by_name(connected)
    hints = {name: tools[f"data_science_{name}"].annotations for name in ("none", "reads", "writes")}
    told = {
        name: (a.read_only_hint, a.destructive_hint, a.idempotent_hint, a.open_world_hint)
        for name, a in hints.items()
        if a is not None
    }
    assert told == {
        "none": (True, False, True, False),
        "reads": (True, False, True, True),
        "writes": (False, True, False, True),
    }
    silent = tools["percy_reason"].annotations
    assert silent is None or silent.model_dump(exclude_none=True) == {}


@requirement("001-52")
@eras
async def test_dotted_names_are_always_accepted_and_say_the_same(node: Node, percy: Percy, mode: str) -> None:
    spellings = ["percy_reason", "fabric.tool.agent.percy.reason"]
    async with client(node, mode) as connected:
        for name in spellings:
            result = await connected.call_tool(name, {"task": "again"})
            assert result.structured_content == {"answer": "again", "depth": 1}
        asked = await connected.call_tool("fabric.call", {"agent_id": "percy", "capability": "reason", "task": "again"})
        assert asked.structured_content == {"answer": "again", "depth": 1}
        counted = [await connected.call_tool(n, {"expression": "6*7"}) for n in ("fabric.tool.math.calculate",
                   "fabric_tool_math_calculate", "fabric.tool.calculate")]  # fmt: skip
        assert [result.structured_content["result"] for result in counted] == [42, 42, 42]
    assert len(percy.calls) == 3


async def test_dotted_names_are_listed_where_that_is_configured(percy: Percy) -> None:
    doors = {"doors": [{"kind": "mcp", "tool_names": "dotted"}]}
    async with running(percy.agent, config=doors) as node, client(node) as connected:
        tools = await by_name(connected)
        assert {"fabric.tool.list", "fabric.tool.agent.percy.reason"} <= tools.keys()
        result = await connected.call_tool("percy_reason", {"task": "safe still works"})
        assert result.structured_content == {"answer": "safe still works", "depth": 1}


async def test_two_agents_with_the_same_safe_name_are_told_apart(percy: Percy) -> None:
    other = Percy("Percy")
    async with running(percy.agent, other.agent) as node, client(node) as connected:
        tools = await by_name(connected)
        alike = [name for name in tools if name.startswith("percy_reason")]
        assert len(alike) == 2
        for name in alike:
            await connected.call_tool(name, {"task": name})
        theirs = {(tools[name].meta or {})["a2a-fabric/agent"]: name for name in alike}
        assert [call.input.context["task"] for call in percy.calls] == [theirs["percy"]]
        assert [call.input.context["task"] for call in other.calls] == [theirs["Percy"]]
        assert theirs["percy"] == "percy_reason"


async def test_above_the_limit_the_gateways_own_tools_find_the_rest(percy: Percy) -> None:
    doors = {"doors": [{"kind": "mcp", "max_listed": 0}]}
    async with running(percy.agent, config=doors) as node, client(node) as connected:
        assert list(await by_name(connected)) == MINIMAL
        found = await connected.call_tool("fabric_tool_list", {"query": "REPEAT percy"})
        assert [tool["tool_id"] for tool in found.structured_content["tools"]] == ["agent.percy.reason"]
        shown = await connected.call_tool("fabric_tool_describe", {"tool_id": "agent.percy.reason"})
        assert shown.structured_content["tool"]["capabilities"][0]["input_schema"]["required"] == ["task"]
        given = {"tool_id": "agent.percy.reason", "parameters": {"task": "found"}}
        called = await connected.call_tool("fabric_tool_call", given)
        assert called.structured_content == {"answer": "found", "depth": 1}
        direct = await connected.call_tool("percy_reason", {"task": "unlisted"})
        assert direct.structured_content == {"answer": "unlisted", "depth": 1}


async def test_built_in_tools_are_listed_where_that_is_configured() -> None:
    async with running(config={"doors": [{"kind": "mcp", "builtin_tools": True}]}) as node, client(node) as connected:
        tools = await by_name(connected)
        assert "fabric_tool_math_calculate" in tools
        assert (await connected.call_tool("fabric_tool_math_calculate", {"expression": "2+2"})).structured_content[
            "result"
        ] == 4


async def test_a_caller_is_shown_what_it_may_call(percy: Percy) -> None:
    keys = [{"id": "narrow", "key": "narrow-key-1", "scopes": ["capability:reason"]}]
    async with running(percy.agent, config={"auth": {"keys": keys}}) as node:
        async with client(node, token="narrow-key-1") as connected:
            assert [name for name in await by_name(connected) if not name.startswith("fabric_")] == ["percy_reason"]
            refused = await connected.call_tool("percy_plan", {"task": "x"})
            assert refused.is_error
            assert refused.structured_content["error"]["code"] == "AUTH_DENIED"
        async with client(node) as connected:
            assert "percy_plan" in await by_name(connected)


@requirement("001-35")
@ways
@eras
async def test_a_call_becomes_the_canonical_envelope(node: Node, percy: Percy, connect: Connect, mode: str) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    meta: Any = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with connect(node, mode) as connected:
        result = await connected.call_tool("percy_reason", {"task": "go", "depth": 2}, meta=meta)
    call = percy.calls[0]
    assert call.trace.trace_id == str(UUID(trace_id))
    assert (call.auth.mode, call.auth.principal_id) == ("psk", "psk")
    assert (call.target.agent_id, call.target.capability, call.target.timeout_ms > 0) == ("percy", "reason", True)
    assert call.input.context == {"task": "go", "depth": 2}
    assert call.response.stream is False
    told = (result.meta or {})["a2a-fabric/trace"]
    check_trace(told)
    assert told["trace_id"] == call.trace.trace_id


@requirement("001-35")
async def test_the_header_carries_the_trace_too(node: Node, percy: Percy) -> None:
    trace_id = "1af7651916cd43dd8448eb211c80319c"
    async with client(node, headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}) as connected:
        await connected.call_tool("percy_reason", {"task": "go"})
    assert percy.calls[0].trace.trace_id == str(UUID(trace_id))


@ways
@eras
@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("percy_refuse", {"task": "x"}, "BAD_INPUT"),
        ("percy_fail", {"task": "x"}, "UPSTREAM_ERROR"),
        ("percy_reason", {"task": 7}, "BAD_INPUT"),
        ("percy_reason", {}, "BAD_INPUT"),
        ("percy_wait", {"task": "x", "timeout_ms": 50}, "TIMEOUT"),
        ("percy_odd", {"task": "surrogate"}, "UPSTREAM_ERROR"),
        ("percy_odd", {"task": "error"}, "BAD_INPUT"),
        ("fabric_call", {"agent_id": "nobody", "capability": "x", "task": "x"}, "AGENT_NOT_FOUND"),
        ("fabric_call", {"agent_id": "percy", "capability": "x", "task": "x"}, "CAPABILITY_NOT_FOUND"),
        ("fabric_tool_call", {"tool_id": "nothing.here"}, "BAD_INPUT"),
        ("fabric_agent_describe", {}, "BAD_INPUT"),
        ("fabric_health", {"trace": {"trace_id": "no"}}, "BAD_INPUT"),
    ],
)  # fmt: skip
@requirement("001-52")
async def test_a_failure_is_a_result_with_the_canonical_error(
    node: Node, connect: Connect, mode: str, tool: str, arguments: dict[str, Any], code: str
) -> None:
    async with connect(node, mode) as connected:
        result = await connected.call_tool(tool, arguments)
    assert result.is_error
    body = result.structured_content
    assert body["ok"] is False
    assert set(body["error"]) == {"code", "message", "details"}
    assert body["error"]["code"] == code
    check_trace(body["trace"])
    assert words(result) == f"{code}: {body['error']['message']}"


@ways
@eras
async def test_a_tool_that_is_not_there_is_the_protocols_own_error(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        for name in ("nope", "fabric.tool.agent.percy.nope", "percy_", "x" * 1000, "../../etc", ""):
            with pytest.raises(MCPError) as caught:
                await connected.call_tool(name, {})
            assert caught.value.code == types.INVALID_PARAMS
            assert caught.value.data["error"]["code"] in ("BAD_INPUT", "CAPABILITY_NOT_FOUND")


@eras
async def test_content_of_every_kind_survives(mode: str) -> None:
    agent = Agent("painter")

    @agent.capability
    async def paint() -> Any:
        """Answer with more than words."""
        parts = (
            Part(kind="text", text="see"),
            Part(kind="image", blob="aW1n", mime_type="image/png"),
            Part(kind="audio", blob="YXVk", mime_type="audio/wav"),
            Part(kind="file", blob="ZmlsZQ==", mime_type="application/pdf", name="a.pdf"),
            Part(kind="file", url="https://example.org/x", name="x"),
            Part(kind="json", data={"a": [1]}),
        )
        return Result(data={"answer": "see"}, parts=parts)

    async with running(agent) as node, client(node, mode) as connected:
        result = await connected.call_tool("painter_paint")
    kinds = [block.type for block in result.content]
    assert kinds == ["text", "image", "audio", "resource", "resource_link", "text"]
    image, resource, link = result.content[1], result.content[3], result.content[4]
    assert isinstance(image, types.ImageContent)
    assert (image.data, image.mime_type) == ("aW1n", "image/png")
    assert isinstance(resource, types.EmbeddedResource)
    assert isinstance(resource.resource, types.BlobResourceContents)
    assert resource.resource.blob == "ZmlsZQ=="
    assert isinstance(link, types.ResourceLink)
    assert str(link.uri) == "https://example.org/x"
    assert result.structured_content == {"answer": "see"}


async def test_words_alone_are_read_as_words(node: Node) -> None:
    async with client(node) as connected:
        result = await connected.call_tool("percy_odd", {"task": "text"})
    assert words(result) == "just words"
    assert result.structured_content == {"answer": "just words"}


@ways
@eras
async def test_manifests_are_resources(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        listed = (await connected.list_resources()).resources
        assert [(str(each.uri), each.mime_type) for each in listed] == [("fabric://agents/percy", "application/json")]
        templates = (await connected.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["fabric://agents/{agent_id}"]
        content = (await connected.read_resource("fabric://agents/percy")).contents[0]
        assert isinstance(content, types.TextResourceContents)
        described = await connected.call_tool("fabric_agent_describe", {"agent_id": "percy"})
        manifest = json.loads(content.text)
        assert manifest["capabilities"] == described.structured_content["agent"]["capabilities"]
        for uri in ("fabric://agents/nobody", "fabric://agents/math.calculate", "file:///etc/passwd"):
            with pytest.raises(MCPError) as caught:
                await connected.read_resource(uri)
            assert caught.value.code == (-32002 if mode == "legacy" else types.INVALID_PARAMS)


async def test_many_resources_come_in_pages() -> None:
    manifests = [
        {"agent_id": f"a{number:04}", "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": [{"name": "x"}]}
        for number in range(1200)
    ]
    config = {"health": {"interval": 0}}
    async with running(manifests=manifests, config=config) as node, client(node) as connected:
        seen: list[str] = []
        cursor = None
        while True:
            page = await connected.list_resources(cursor=cursor)
            seen += [each.name for each in page.resources]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [manifest["agent_id"] for manifest in manifests]
        listed = [f"{manifest['agent_id']}_x" for manifest in manifests[:250]]
        assert list(await by_name(connected)) == [*listed, *MINIMAL]


async def test_the_fabric_door_stays_where_it_was(node: Node) -> None:
    async with client(node) as connected:
        await connected.list_tools()
        assert (await node.ask("percy", "reason", "hello"))["result"]["answer"] == "hello"
        assert (await node.send("GET", "/mcp/list_agents")).status == 200
        assert PSK not in node.log.getvalue()
