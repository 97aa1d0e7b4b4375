"""Content of every kind, in through a door and out again, past the agent and past the store."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.client import FabricClient
from a2a_fabric.core.call import KIND_KEY, attachment_from_part
from a2a_fabric.core.result import Part, Result
from tests.fixtures.mcp_client import client
from tests.fixtures.node import PSK, Node, check_envelope, running
from tests.marks import requirement

BYTES = base64.b64encode(bytes(range(256))).decode()
PARTS = (
    Part(kind="text", text="grüß dich"),
    Part(kind="image", blob=BYTES, mime_type="image/png", name="a.png"),
    Part(kind="audio", blob=BYTES, mime_type="audio/wav"),
    Part(kind="video", url="https://example.org/v.mp4", mime_type="video/mp4"),
    Part(kind="video", blob=BYTES, mime_type="video/mp4", meta={"seconds": 3}),
    Part(kind="file", blob=BYTES, mime_type="application/pdf", name="a.pdf"),
    Part(kind="json", data={"a": [1, None]}),
    Part(kind="function_call", data={"name": "add", "arguments": {"a": 1}}),
    Part(kind="function_result", data={"name": "add", "result": 2}),
)
ATTACHED = [msgspec.to_builtins(attachment_from_part(part)) for part in PARTS]
SEEN = [msgspec.to_builtins(part) for part in PARTS]
AGAIN = {"agent_id": "painter", "capability": "show", "task": "", "attachments": ATTACHED}


def painter() -> Agent:
    agent = Agent("painter")

    @agent.capability
    async def show(things: list[Part], loud: bool = False) -> AsyncIterator[Any]:
        """Give back what was sent."""
        yield "here"
        yield Result(data={"count": len(things)}, parts=tuple(things))

    @agent.capability
    async def blind(task: str) -> str:
        return task

    return agent


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(painter(), base=tmp_path) as node:  # with a folder: its store is a file
        yield node


@requirement("001-33")
async def test_a_plain_call_carries_all_kinds_both_ways(node: Node) -> None:
    envelope = await node.operation("fabric.call", AGAIN)
    check_envelope(envelope)
    assert (envelope["result"], envelope["parts"]) == ({"count": len(PARTS)}, SEEN)
    assert "notes" not in envelope


async def test_the_final_event_of_a_stream_carries_them(node: Node) -> None:
    async with node.stream("fabric.call", AGAIN) as events:
        final = [event async for event in events][-1]
    assert final["data"]["parts"] == SEEN


async def test_a_capability_as_a_tool_takes_them_among_its_arguments(node: Node) -> None:
    envelope = await node.operation("fabric.tool.agent.painter.show", {"attachments": ATTACHED})
    assert envelope["parts"] == SEEN


async def test_the_python_client_takes_and_gives_parts(node: Node) -> None:
    async with FabricClient(node.url, PSK) as fabric:
        result = await fabric.call("painter", "show", attachments=PARTS)
        assert result.parts == PARTS
        events = [event async for event in fabric.stream("painter", "show", attachments=PARTS)]
    assert events[-1].parts == PARTS


async def test_a_job_keeps_them(node: Node) -> None:
    async with FabricClient(node.url, PSK) as fabric:
        job = await fabric.submit("painter", "show", attachments=PARTS)
        result = await job.result(30)
        assert result.parts == PARTS
        kept = await node.fabric.store.jobs.get(job.job_id)
        blind = await (await fabric.submit("painter", "blind", "x", attachments=PARTS[:1])).result(30)
    assert kept is not None
    assert kept.result is not None
    assert kept.result.parts == PARTS
    assert blind.notes == ("an attachment of kind text was not sent: 'blind' takes no attachments",)


async def test_what_an_agent_does_not_take_is_noted(node: Node) -> None:
    envelope = await node.ask("painter", "blind", "hello", attachments=ATTACHED[1:2])
    assert envelope["result"] == {"answer": "hello"}
    assert envelope["notes"] == ["'a.png' was not sent: 'blind' takes no attachments"]


@pytest.mark.parametrize("operation", ["fabric.call", "fabric.tool.agent.painter.blind"])
async def test_bad_base64_is_bad_input_by_its_place(node: Node, operation: str) -> None:
    bad = {"attachments": [ATTACHED[0], {"type": "file", "content": "not base64"}]}
    envelope = await node.operation(operation, {**AGAIN, "capability": "blind", **bad})
    assert envelope["error_code"] == "BAD_INPUT"
    assert envelope["error_details"]["field"] == "attachments[1].content"


async def test_a_job_with_bad_base64_is_never_accepted(node: Node) -> None:
    bad = {"attachments": [{"type": "file", "content": "?"}], "async": True}
    assert (await node.operation("fabric.call", {**AGAIN, **bad}))["error_code"] == "BAD_INPUT"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_mcp_shows_its_own_kinds_as_they_are_and_the_rest_as_the_nearest_with_a_note(
    node: Node, mode: str
) -> None:
    async with client(node, mode) as connected:
        result = await connected.call_tool("painter_show", {"attachments": ATTACHED})
    kinds = [block.type for block in result.content]
    assert kinds == ["text", "image", "audio", "resource_link", "resource", "resource", "text", "text", "text"]
    video, call = result.content[4], result.content[7]
    assert isinstance(video, types.EmbeddedResource)
    assert isinstance(video.resource, types.BlobResourceContents)
    assert (video.resource.blob, video.resource.mime_type) == (BYTES, "video/mp4")
    assert video.meta == {"seconds": 3, KIND_KEY: "video"}
    assert isinstance(call, types.TextContent)
    assert json.loads(call.text) == PARTS[7].data
    assert call.meta == {KIND_KEY: "function_call"}
    assert (result.meta or {})["a2a-fabric/notes"] == [
        "video content is sent as a resource: MCP has no block for it",
        "json content is sent as text: MCP has no block for it",
        "function_call content is sent as text: MCP has no block for it",
        "function_result content is sent as text: MCP has no block for it",
    ]


async def test_an_mcp_client_is_told_that_tools_without_a_schema_take_attachments(node: Node) -> None:
    async with client(node) as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
    assert "attachments" in tools["painter_show"].input_schema["properties"]
