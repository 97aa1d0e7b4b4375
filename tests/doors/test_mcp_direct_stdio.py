"""Plain calls in a session with a program on stdio go straight to its pipe. Sessions, cancellation and limits hold."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.mcp_raw import Session, last_message, modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

TINY = Path(__file__).parents[1] / "fixtures" / "mcp_servers" / "tiny.py"
PATH = "/agents/tiny/mcp"


@asynccontextmanager
async def node_with_tiny(mcp: dict[str, Any] | None = None, **endpoint: Any) -> AsyncIterator[Node]:
    program = {"transport": "stdio", "command": [sys.executable, "-I", str(TINY)], **endpoint}
    manifest = {"agent_id": "tiny", "runtime": "mcp", "endpoint": program}
    doors = [{"kind": "fabric"}, {"kind": "mcp", **(mcp or {})}]
    async with running(manifests=[manifest], config={"doors": doors, "health": {"interval": 0}}) as node:
        yield node


def calling(name: str, request_id: str | int = 7) -> dict[str, Any]:
    params = {"name": name, "arguments": {"words": ["a", "b"]}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@requirement("001-52")
async def test_a_plain_call_is_answered_by_one_json_body() -> None:
    async with node_with_tiny() as node, Session(node, path=PATH) as session:
        for request_id in (7, "seven"):
            async with session.post(calling("echo", request_id)) as reply:
                assert (reply.status, reply.content_type) == (200, "application/json")
                assert reply.headers["x-trace-id"]
                answer = await reply.json()
            assert answer["id"] == request_id
            assert answer["result"]["content"][0]["text"] == "heard"


async def test_a_message_of_several_lines_reaches_the_program_as_one() -> None:
    async with node_with_tiny() as node, Session(node, path=PATH) as session:
        body = json.dumps(calling("echo"), indent=2)
        headers = {**session.headers, "Content-Type": "application/json"}
        async with node.client.post(node.url + PATH, data=body, headers=headers) as reply:
            assert (await reply.json())["result"]["content"][0]["text"] == "heard"


async def is_waiting(node: Node, session: Session) -> asyncio.Future[Any]:
    """A call that the program never answers, and that it has got."""
    waiting = asyncio.ensure_future(session.answer(calling("wait", "waiting")))

    async def has_slot() -> bool:
        return bool(node.fabric.runtime_pool.count_calls("tiny"))

    await eventually(has_slot)
    assert (await session.answer(calling("echo")))["id"] == 7  # the program reads its lines in order
    return waiting


async def test_a_call_that_its_client_cancels_is_answered() -> None:
    async with node_with_tiny() as node, Session(node, path=PATH) as session:
        waiting = await is_waiting(node, session)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "waiting"}}
        async with session.post(cancel) as accepted:
            assert accepted.status == 202
        answer = await asyncio.wait_for(waiting, WAIT_TIMEOUT)
        assert (answer["id"], answer["error"]["code"]) == ("waiting", -32800)


async def test_a_session_that_ends_ends_its_calls() -> None:
    async with node_with_tiny() as node:
        async with Session(node, path=PATH) as session:
            waiting = await is_waiting(node, session)
        answer = await asyncio.wait_for(waiting, WAIT_TIMEOUT)
        assert answer["id"] == "waiting"
        assert "has ended" in answer["error"]["message"]
        async with session.post(calling("echo")) as over:
            assert over.status == 404


async def test_a_second_request_with_the_id_of_a_running_one_does_not_take_its_answer() -> None:
    async with node_with_tiny() as node, Session(node, path=PATH) as session:
        waiting = await is_waiting(node, session)
        async with session.post(calling("echo", "waiting")) as reply:
            assert reply.status == 400
            assert "in flight already" in last_message(await reply.text())["error"]["message"]
        assert not waiting.done()
        waiting.cancel()


async def test_a_session_that_is_used_for_plain_calls_only_is_not_idle() -> None:
    idle = 0.5
    async with node_with_tiny({"session_idle": idle}) as node, Session(node, path=PATH) as session:
        ends_at = time.monotonic() + 3 * idle
        while time.monotonic() < ends_at:
            assert "result" in await session.answer(calling("echo"))

        async def is_over() -> bool:
            async with session.post({"jsonrpc": "2.0", "method": "notifications/initialized"}) as reply:
                return bool(reply.status == 404)

        assert not await is_over()


def count_programs() -> int:
    """The children of this process that are such a program."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return sum(str(TINY).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)


@requirement("001-52")
async def test_sessions_with_a_shared_program_use_one_process() -> None:
    async with node_with_tiny({"sessions_per_agent": 2}, shared=True) as node:
        sessions = [await Session(node, path=PATH).__aenter__() for _ in range(6)]  # their clients leave
        for session in sessions:
            answer = await session.answer(calling("echo"))
            assert answer["result"]["content"][0]["text"] == "heard"
            listed = await session.answer({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["echo", "wait"]
        assert count_programs() == 1
        head, body = modern("tools/call", {"name": "echo", "arguments": {}})
        stateless = await node.send("POST", PATH, json=body, headers=head)
        assert stateless.json["result"]["content"][0]["text"] == "heard"
        assert count_programs() == 1


async def test_each_session_has_a_process_of_its_own_if_the_program_is_not_shared() -> None:
    async with node_with_tiny() as node:
        for number in (1, 2):
            session = await Session(node, path=PATH).__aenter__()
            await session.answer(calling("echo"))
            assert count_programs() >= number


async def test_a_session_closed_for_another_gets_404_and_its_client_can_open_a_new_one() -> None:
    async with node_with_tiny({"sessions_per_agent": 2}) as node:
        first, second, third = [await Session(node, path=PATH).__aenter__() for _ in range(3)]
        async with first.post(calling("echo")) as closed:
            assert closed.status == 404
        for session in (third, await Session(node, path=PATH).__aenter__()):
            assert "result" in await session.answer(calling("echo"))
        async with second.post(calling("echo")) as closed:
            assert closed.status == 404


async def test_shared_is_for_programs() -> None:
    manifest = {"agent_id": "far", "runtime": "mcp", "endpoint": {"uri": "http://127.0.0.1:9/mcp", "shared": True}}
    async with running(manifests=[manifest]) as node:
        refused = await node.ask("far", "anything")
        assert "`shared` is for a program" in json.dumps(refused)
