"""When there are too many MCP sessions, the idlest one of the caller with most is closed: no caller is kept out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.doors.test_fair_shares import end
from tests.fixtures.mcp_raw import ACCEPT, Session, initialize, modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

GREEDY, HONEST, THIRD = "the-key-of-the-greedy-one", "the-key-of-the-honest-one", "the-key-of-a-third"
KEYS = [{"id": name, "key": key} for name, key in (("greedy", GREEDY), ("honest", HONEST), ("third", THIRD))]
TINY = Path(__file__).parents[1] / "fixtures" / "mcp_servers" / "tiny.py"
MOST = 4


@pytest.fixture
def percy() -> Percy:
    return Percy()


@asynccontextmanager
async def at(percy: Percy, mcp: dict[str, Any] | None = None, **limits: Any) -> AsyncIterator[Node]:
    doors = [{"kind": "fabric"}, {"kind": "mcp", "max_sessions": MOST, "sessions_per_agent": MOST, **(mcp or {})}]
    endpoint = {"transport": "stdio", "command": [sys.executable, "-I", str(TINY)]}
    manifests = [{"agent_id": "tiny", "runtime": "mcp", "endpoint": endpoint}]
    config = {"auth": {"keys": KEYS}, "doors": doors, "limits": limits, "health": {"interval": 0}}
    async with running(percy.agent, manifests=manifests, config=config) as node:
        yield node


async def opened(node: Node, token: str, path: str = "/mcp") -> Session:
    """A session that is never ended."""
    session = Session(node, "2025-06-18", path, token)
    async with asyncio.timeout(WAIT_TIMEOUT):
        return await session.__aenter__()


async def initialized(node: Node, token: str, path: str) -> int:
    headers = {"Accept": ACCEPT}
    return (await node.send("POST", path, json=initialize(), headers=headers, token=token)).status


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


async def lives(session: Session) -> bool:
    async with session.post({"jsonrpc": "2.0", "id": 9, "method": "ping"}) as response:
        await response.read()
        assert response.status in (200, 404)
        return bool(response.status == 200)


@requirement("001-52")
@pytest.mark.parametrize("path", ["/mcp", "/agents/percy/mcp", "/agents/tiny/mcp"])
async def test_one_callers_idle_sessions_keep_no_other_caller_from_opening_one(percy: Percy, path: str) -> None:
    async with at(percy) as node:
        left = [await opened(node, GREEDY, path) for _ in range(MOST + 3)]
        honest = await opened(node, HONEST, path)
        third = await opened(node, THIRD, path)
        for _ in range(MOST):
            assert await initialized(node, GREEDY, path) == 200
        assert [await lives(each) for each in (honest, third)] == [True, True]
        assert not any([await lives(each) for each in left])


async def test_the_limit_counts_the_sessions_of_all_addresses_together(percy: Percy) -> None:
    async with at(percy) as node:
        for path in ("/mcp", "/agents/percy/mcp") * MOST:
            await opened(node, GREEDY, path)
        honest = await opened(node, HONEST)
        await opened(node, GREEDY)
        assert await lives(honest)


async def test_it_is_the_idlest_that_is_closed(percy: Percy) -> None:
    """Also if a session is used for plain calls only, of which the SDK hears nothing."""
    async with at(percy, share_per_caller=1) as node:
        sessions = [await opened(node, GREEDY) for _ in range(MOST)]
        for used in (0, 1, 3):
            answer = await sessions[used].answer(calling("percy_reason", task="x"))
            assert answer["result"]["isError"] is False
        await opened(node, HONEST)
        assert [await lives(each) for each in sessions] == [True, True, False, True]


@pytest.mark.parametrize(("path", "tool"), [("/mcp", "percy_hold"), ("/agents/percy/mcp", "hold")])
async def test_a_session_with_a_request_in_flight_is_not_idle(percy: Percy, path: str, tool: str) -> None:
    async with at(percy, share_per_caller=1) as node:
        first = await opened(node, GREEDY, path)
        asked = asyncio.ensure_future(first.answer(calling(tool, task="x")))
        await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        others = [await opened(node, GREEDY, path) for _ in range(MOST - 1)]
        await opened(node, HONEST, path)
        percy.may_go_on.set()
        assert (await asked)["result"]["isError"] is False
        assert [await lives(each) for each in others] == [False, True, True]


async def test_if_all_are_in_use_the_next_one_is_told_when_to_come_back(percy: Percy) -> None:
    async with at(percy, share_per_caller=1) as node:
        sessions = [await opened(node, GREEDY) for _ in range(MOST)]
        asked = []
        for each in sessions:
            percy.started.clear()
            asked.append(asyncio.ensure_future(each.answer(calling("percy_hold", task="x"))))
            await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        refused = await node.send("POST", "/mcp", json=initialize(), headers={"Accept": ACCEPT}, token=HONEST)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json["error"]["data"]["error"]["code"] == "RATE_LIMITED"
        assert refused.json["id"] == 0
        percy.may_go_on.set()
        await asyncio.gather(*asked)
        assert await initialized(node, HONEST, "/mcp") == 200


@requirement("001-52")
@pytest.mark.parametrize(
    ("path", "tool"), [("/mcp", "percy_hold"), ("/agents/percy/mcp", "hold"), ("/agents/tiny/mcp", "wait")]
)
async def test_a_caller_that_uses_all_its_sessions_keeps_no_other_caller_out(
    percy: Percy, path: str, tool: str
) -> None:
    async with at(percy, {"max_sessions": 8, "sessions_per_agent": 8}) as node:
        honest = await opened(node, HONEST, path)
        held = []
        for _ in range(6):
            session = await opened(node, GREEDY, path)
            held.append(asyncio.ensure_future(session.answer(calling(tool, task="x"))))
            await session.answer({"jsonrpc": "2.0", "id": 2, "method": "ping"})  # the call has arrived before
        refused = await node.send("POST", path, json=initialize(), headers={"Accept": ACCEPT}, token=GREEDY)
        assert refused.status == 429
        assert "its share" in refused.json["error"]["message"]
        third = await opened(node, THIRD, path)
        assert await initialized(node, GREEDY, path) == 429
        assert [await lives(each) for each in (honest, third)] == [True, True]
        await end(held)


async def test_conversations_of_the_stateless_era_with_a_program_make_room_too(percy: Percy) -> None:
    """Each client of a program that shakes hands has a process of its own there."""

    async def echo(token: str, client: str) -> Any:
        about = {"io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}}
        head, body = modern("tools/call", {"name": "echo", "arguments": {}}, meta=about)
        reply = await node.send("POST", "/agents/tiny/mcp", json=body, headers=head, token=token)
        return reply.status

    async with at(percy) as node:
        for number in range(MOST + 1):
            assert await echo(GREEDY, f"client {number}") == 200
        assert await echo(HONEST, "honest") == 200


def subscribing(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 8, "method": "resources/subscribe", "params": {"uri": uri}}


async def test_a_caller_that_subscribes_to_as_much_as_it_can_leaves_room_for_others(percy: Percy) -> None:
    others = [Percy(f"other-{number}").agent for number in range(8)]
    config = {"auth": {"keys": KEYS}, "limits": {"subscriptions": 4}}
    async with running(percy.agent, *others, config=config) as node:
        greedy, honest = await opened(node, GREEDY), await opened(node, HONEST)
        listed = await greedy.answer({"jsonrpc": "2.0", "id": 2, "method": "resources/list"})
        uris = [each["uri"] for each in listed["result"]["resources"] if "other-" in each["uri"]]
        answers = [await greedy.answer(subscribing(uri)) for uri in uris[:6]]
        assert ["error" in each for each in answers] == [False] * 3 + [True] * 3
        assert answers[-1]["error"]["data"]["error"]["code"] == "RATE_LIMITED"
        assert "result" in await honest.answer(subscribing(uris[0]))
        head, body = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
        refused = await node.send("POST", "/mcp", json=body, headers=head, token=GREEDY)
        assert "RATE_LIMITED" in refused.body.decode()
        await greedy.__aexit__()
        again = await opened(node, GREEDY)

        async def is_taken() -> bool:
            return "result" in await again.answer(subscribing(uris[0]))

        await eventually(is_taken)


@pytest.mark.parametrize("path", ["/mcp", "/agents/percy/mcp", "/agents/tiny/mcp"])
async def test_a_session_that_is_opened_and_never_used_ends_soon_and_one_that_was_used_does_not(
    percy: Percy, path: str
) -> None:
    async with at(percy, {"session_unused": 0.5}) as node:
        used, listening = await opened(node, HONEST, path), await opened(node, HONEST, path)
        assert await lives(used)
        async with listening.get() as stream:
            assert stream.status == 200
            assert await initialized(node, GREEDY, path) == 200  # and not a word more

            async def is_gone() -> bool:
                node.fabric.telemetry.log.flush()
                return "Closed 1 sessions that were opened and not used" in node.log.getvalue()

            await eventually(is_gone)
            assert [await lives(each) for each in (used, listening)] == [True, True]


async def test_clients_that_left_a_program_keep_no_other_caller_out(percy: Percy) -> None:
    """None of them sent DELETE. Some had their answer, some waited for one, some listened."""
    path, number = "/agents/tiny/mcp", 64
    async with at(percy, {"sessions_per_agent": number}, share_per_caller=1) as node:
        waiting = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            leaving = Node(node.url, node.fabric, client)
            for each in range(number):
                session = await opened(leaving, GREEDY, path)
                if each % 3 == 0:
                    assert "result" in await session.answer(calling("echo"))
                elif each % 3 == 1:
                    waiting.append(asyncio.ensure_future(session.answer(calling("wait"))))
                    await session.answer({"jsonrpc": "2.0", "id": 2, "method": "ping"})  # the call has arrived before
                else:
                    assert (await session.get().__aenter__()).status == 200
        await asyncio.gather(*waiting, return_exceptions=True)
        for token in (HONEST, THIRD, GREEDY):
            newcomer = await opened(node, token, path)
            assert "result" in await newcomer.answer(calling("echo"))
