"""Servers of both eras that ask over a back channel, which the stateless era lacks: their questions reach clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.test_mcp_questions import Person, connected
from tests.fixtures.mcp_client import client, words
from tests.fixtures.mcp_servers.dual_asking import dual_program, make
from tests.fixtures.mcp_servers.serving import HTTPServer, serving
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*deprecated"),  # sampling and roots, in the newest revision
]

CLIENTS = ["http-legacy", "http-2026-07-28", "socket-legacy", "socket-2026-07-28"]


class World:
    def __init__(self, node: Node, http: HTTPServer) -> None:
        self.node = node
        self.http = http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """With a server of both eras over HTTP, one that knows the stateless era only, and a program."""
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(serving("both", make=make))
        modern = await stack.enter_async_context(serving("stateless", make=make))
        manifests = [
            {"agent_id": "both", "runtime": "mcp", "endpoint": {"uri": both.url}},
            {"agent_id": "modern", "runtime": "mcp", "endpoint": {"uri": modern.url}},
            {"agent_id": "pipe", "runtime": "mcp", "endpoint": {"command": dual_program()}},
        ]
        node = await stack.enter_async_context(running(manifests=manifests))

        async def are_listed() -> bool:
            tools = str(await node.operation("fabric.tool.list", {}))
            return all(f"{each['agent_id']}.paint" in tools for each in manifests)

        await eventually(are_listed)
        yield World(node, both)


async def test_a_program_is_started_anew_and_calls_on_their_way_end_as_they_are(world: World, tmp_path: Path) -> None:
    """First in this file, while the program is still spoken to in the stateless era."""
    done, person = tmp_path / "done", Person()
    async with client(world.node, "legacy", **person.callbacks) as caller:
        assert words(await caller.call_tool("pipe_remember", {"note": "a"})) == "1 notes"
        slow = asyncio.ensure_future(caller.call_tool("pipe_wait_for", {"file": str(done)}))
        assert words(await caller.call_tool("pipe_remember", {"note": "b"})) == "2 notes"
        assert words(await caller.call_tool("pipe_paint", {"thing": "door"})) == "door in red"
        done.touch()
        assert words(await slow) == "it is there"
        assert [words(await caller.call_tool("pipe_remember", {"note": "c"})) for _ in range(2)] == [
            "1 notes",
            "2 notes",
        ]
        assert words(await caller.call_tool("pipe_paint", {"thing": "wall"})) == "wall in red"
        assert words(await caller.call_tool("pipe_remember", {"note": "d"})) == "3 notes"


@pytest.mark.parametrize("agent_id", ["both", "pipe"])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_whatever_such_a_server_asks_the_client_answers_in_either_era(
    world: World, kind: str, agent_id: str
) -> None:
    person = Person()
    async with connected(world.node, kind, **person.callbacks) as caller:
        assert words(await caller.call_tool(f"{agent_id}_paint", {"thing": "door"})) == "door in red"
        assert words(await caller.call_tool(f"{agent_id}_think", {})) == "m1: hi"
        assert words(await caller.call_tool(f"{agent_id}_folders", {})) == "file:///work"
        prompt = await caller.get_prompt(f"{agent_id}_poem")
        assert prompt.messages[0].content.model_dump()["text"] == "A poem about red"
    assert person.asked == ["Which colour?", "a model", "folders", "Which colour?"]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_what_asks_as_only_the_stateless_era_can_goes_on_to_do_so(world: World, kind: str) -> None:
    async with connected(world.node, kind, **Person().callbacks) as caller:
        await caller.call_tool("both_paint", {"thing": "door"})
        assert words(await caller.call_tool("both_stateless_only", {})) == "done"


async def test_later_calls_of_such_a_tool_are_not_tried_twice(world: World) -> None:
    async with client(world.node, "legacy", **Person().callbacks) as caller:
        await caller.call_tool("both_paint", {"thing": "door"})
        before = world.http.gate.methods.count("tools/call")
        await caller.call_tool("both_paint", {"thing": "wall"})
        assert world.http.gate.methods.count("tools/call") == before + 1


async def test_a_client_that_cannot_answer_is_told_what_is_asked(world: World) -> None:
    async with client(world.node, "legacy") as caller:
        refused = await caller.call_tool("both_paint", {"thing": "door"})
        assert refused.is_error
        assert "Which colour?" in str(refused.content)


async def test_the_call_that_answers_repeats_all_arguments_of_the_tool(world: World) -> None:
    """Also those that have the names of the node's own options."""
    async with client(world.node, "legacy") as caller:
        refused = await caller.call_tool("both_draw", {"format": "png", "stream": True})
        answer = (refused.structured_content or {})["error"]["details"]["answer_with"]
        assert answer["arguments"]["context"] == {"format": "png", "stream": True}
        answer["arguments"]["answers"]["q1"]["content"] = {"colour": "blue"}
        assert words(await caller.call_tool(answer["tool"], answer["arguments"])) == "blue png True"


async def test_a_declined_question_ends_the_call_as_the_tool_decides(world: World) -> None:
    async with client(world.node, "2026-07-28", **Person(action="decline").callbacks) as caller:
        assert words(await caller.call_tool("both_paint", {"thing": "door"})) == "decline"


async def test_a_server_of_the_stateless_era_alone_keeps_its_own_error(world: World) -> None:
    async with client(world.node, "legacy", **Person().callbacks) as caller, asyncio.timeout(WAIT_TIMEOUT):
        refused: Any = await caller.call_tool("modern_paint", {"thing": "door"})
        assert refused.is_error
        assert "no back-channel" in str(refused.content)
