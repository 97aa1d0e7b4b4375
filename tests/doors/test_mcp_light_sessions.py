"""Sessions that need no more than tools do without the SDK; the first request that needs more hands them over to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.testing import FakeClock
from tests.fixtures.mcp_raw import ACCEPT, Session, initialize, last_message, modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, eventually, running
from tests.fixtures.percy import Percy

OTHER = "another-key-of-the-node"
CALL: dict[str, Any] = {"name": "percy_reason", "arguments": {"task": "hi"}}
PATHS = ["/mcp", "/agents/percy/mcp"]


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent, config={"auth": {"keys": [{"id": "other", "key": OTHER}]}}) as found:
        yield found


def request(method: str, request_id: int = 5, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, **({"params": params} if params else {})}


def find(node: Node, session: Session) -> OpenSession:
    sessions: OpenSessions = node.fabric.doors[1].hot["/mcp"]._sessions  # type: ignore[attr-defined]
    found = sessions.find(session.headers["Mcp-Session-Id"])
    assert found is not None
    return found


def is_light(node: Node, session: Session) -> bool:
    return find(node, session).light is not None


async def status_of(session: Session, body: dict[str, Any], **headers: str) -> int:
    async with asyncio.timeout(WAIT_TIMEOUT), session.post(body, **headers) as response:
        await response.read()
        return int(response.status)


async def open_by(node: Node, opening: dict[str, Any], path: str) -> tuple[Reply, Any]:
    reply = await node.send("POST", path, json=opening, headers={"Accept": ACCEPT})
    return reply, last_message(reply.body.decode())


def unsure(version: str) -> dict[str, Any]:
    """An `initialize` that only the SDK judges."""
    opening = initialize(version)
    opening["params"]["clientInfo"]["icons"] = []
    return opening


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_session_opens_as_the_sdk_opens_it(node: Node, path: str, version: str) -> None:
    (light, said), (sdk, sdk_said) = [
        await open_by(node, each, path) for each in (initialize(version), unsure(version))
    ]
    assert said == sdk_said
    assert light.status == sdk.status == 200
    assert light.headers["content-type"] == "application/json"
    assert sdk.headers["content-type"].startswith("text/event-stream")
    assert len(light.headers["mcp-session-id"]) == len(sdk.headers["mcp-session-id"])


@pytest.mark.parametrize("path", PATHS)
async def test_tools_need_no_sdk(node: Node, path: str) -> None:
    name = "percy_reason" if path == "/mcp" else "reason"
    async with Session(node, path=path) as session:
        assert (await session.answer(request("ping")))["result"] == {}
        assert (await session.answer(request("tools/list")))["result"]["tools"]
        answer = await session.answer(request("tools/call", name=name, arguments={"task": "hi"}))
        assert answer["result"]["structuredContent"]["answer"] == "hi"
        assert is_light(node, session)
        opened = find(node, session)
    assert not opened.is_open


@pytest.mark.parametrize(
    "body",
    [request("resources/list"), request("prompts/list"), request("logging/setLevel", level="debug"), request("nope")],
    ids=lambda body: str(body["method"]),
)
@pytest.mark.parametrize("path", PATHS)
async def test_the_sdk_takes_over_with_the_first_request_that_needs_it(
    node: Node, path: str, body: dict[str, Any]
) -> None:
    async with Session(node, path=path) as light, Session(node, path=path, opening=unsure("2025-11-25")) as sdk:
        assert (is_light(node, light), is_light(node, sdk)) == (True, False)
        assert await light.answer(body) == await sdk.answer(body)
        assert not is_light(node, light)
        assert (await light.answer(request("tools/list")))["result"]["tools"]
        opened = find(node, light)

    async def has_ended() -> bool:
        return not opened.is_open

    await eventually(has_ended)


async def test_requests_at_the_same_time_hand_over_once(node: Node) -> None:
    async with Session(node) as session:
        bodies = [request("resources/list", number) for number in range(5)]
        answers = await asyncio.gather(*map(session.answer, bodies), session.answer(request("tools/call", 9, **CALL)))
        assert [each["id"] for each in answers] == [0, 1, 2, 3, 4, 9]
        assert all("result" in each for each in answers)


def listen(node: Node, session: Session, path: str = "/mcp", **headers: str) -> Any:
    """The stream on which a client waits for notifications."""
    return node.client.get(node.url + path, headers={**session.headers, **headers})


async def register(node: Node, agent_id: str) -> None:
    newcomer = {"agent_id": agent_id, "endpoint": "http://127.0.0.1:9/", "capabilities": ["echo"]}
    assert (await node.operation("fabric.agent.register", newcomer))["ok"]


async def read_until(stream: Any, text: bytes) -> None:
    while text not in (line := await stream.content.readline()):
        assert line, "the stream has ended"


@pytest.mark.parametrize("opening", [None, unsure("2025-11-25")], ids=["light", "sdk"])
async def test_a_stream_tells_of_changed_lists(node: Node, opening: dict[str, Any] | None) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), Session(node, opening=opening) as session:
        async with listen(node, session) as stream:
            assert (stream.status, stream.content_type) == (200, "text/event-stream")
            assert stream.headers["mcp-session-id"] == session.headers["Mcp-Session-Id"]
            await register(node, "newcomer")
            await read_until(stream, b"notifications/tools/list_changed")
            async with listen(node, session) as second:
                refusal = second.status, await second.json()
            assert is_light(node, session) is (opening is None)
        assert refusal[0] == 409
        assert refusal[1]["error"]["code"] == -32600
        assert "Only one SSE stream" in refusal[1]["error"]["message"]


async def test_a_stream_goes_on_when_the_sdk_takes_the_session_over(node: Node) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), Session(node) as session, listen(node, session) as stream:
        assert is_light(node, session)
        subscribed = request("resources/subscribe", uri="fabric://agents/percy")
        assert "result" in await session.answer(subscribed)
        assert not is_light(node, session)

        async def has_stream() -> bool:
            return find(node, session).streams == 1

        await eventually(has_stream)
        await register(node, "newcomer")
        await read_until(stream, b"notifications/tools/list_changed")
        node.fabric.registry.health.record_failure("percy", AgentOffline("away"))
        await read_until(stream, b"notifications/resources/updated")


async def test_a_new_stream_tells_of_what_changed_since_the_last_one_broke(node: Node) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), Session(node) as session:
        async with listen(node, session) as stream:
            assert stream.status == 200
            stream.close()

        async def has_ended() -> bool:
            return find(node, session).streams == 0

        await eventually(has_ended)
        await register(node, "newcomer")
        async with listen(node, session) as stream:
            await read_until(stream, b"notifications/tools/list_changed")
        assert is_light(node, session)


async def test_a_stream_ends_with_its_session_with_its_agent_and_with_the_node(node: Node) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        async with Session(node) as session, listen(node, session) as stream:
            async with node.client.delete(node.url + "/mcp", headers=session.headers) as deleted:
                assert deleted.status == 200
            assert await stream.read() == b""
        await register(node, "newcomer")
        path = "/agents/newcomer/mcp"
        async with Session(node, path=path) as session, listen(node, session, path) as stream:
            assert stream.status == 200
            await node.operation("fabric.agent.unregister", {"agent_id": "newcomer"})
            await stream.read()
        async with running(Percy().agent) as other, Session(other) as session:
            stream = await listen(other, session)
            node_ends = asyncio.ensure_future(stream.read())
            other.fabric.app.stop()
            assert await node_ends == b""


async def test_a_stream_counts_as_one_of_its_callers() -> None:
    limits = {"limits": {"streams": 1}}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        running(Percy().agent, config=limits) as node,
        Session(node) as first,
        Session(node) as second,
        listen(node, first) as stream,
        listen(node, second) as refused,
    ):
        assert (stream.status, refused.status) == (200, 429)


async def test_other_callers_and_paths_do_not_have_the_session(node: Node) -> None:
    async with Session(node) as session:
        assert await status_of(session, request("ping"), Authorization=f"Bearer {OTHER}") == 404
        assert await status_of(session, request("resources/list"), Authorization=f"Bearer {OTHER}") == 404
        elsewhere = await node.send("POST", "/agents/percy/mcp", json=request("ping"), headers=session.headers)
        assert elsewhere.status == 404
        assert is_light(node, session)
        assert await status_of(session, request("ping")) == 200


async def test_an_ended_session_is_gone(node: Node) -> None:
    async with Session(node) as session:
        pass
    for body in (request("ping"), request("tools/call", 5, **CALL), request("resources/list")):
        assert await status_of(session, body) == 404


@pytest.mark.parametrize(
    "change",
    [
        {"protocolVersion": "2025-03-26"},
        {"protocolVersion": "1999-01-01"},
        {"capabilities": {"tasks": {}}},
        {"clientInfo": {"name": "x" * 5000, "version": "1"}},
        {"strange": 1},
    ],
    ids=str,
)
async def test_what_it_is_not_sure_of_is_the_sdks_to_answer(node: Node, change: dict[str, Any]) -> None:
    opening = initialize()
    opening["params"].update(change)
    reply, said = await open_by(node, opening, "/mcp")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "result" in said


async def test_another_version_in_a_session_is_the_sdks_to_judge(node: Node) -> None:
    async with Session(node) as session:
        assert await status_of(session, request("ping"), **{"MCP-Protocol-Version": "2024-11-05"}) == 200
        assert not is_light(node, session)


async def test_the_first_request_of_a_stateless_client_needs_no_sdk(node: Node) -> None:
    head, body = modern("server/discover", meta={"io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"}})
    assert (await node.send("POST", "/mcp", json=body, headers=head)).json["result"]["supportedVersions"]
    head, body = modern("tools/call", CALL)
    assert (await node.send("POST", "/mcp", json=body, headers=head)).json["result"]["isError"] is False
    assert not node.fabric.doors[1].servers._servers  # type: ignore[attr-defined]


async def test_a_light_session_ends_when_it_was_idle_for_long() -> None:
    clock = FakeClock()
    sessions = OpenSessions("sessions", 10, idle_timeout=100, unused_timeout=50, clock=clock)
    used, unused = [await sessions.open("someone") for _ in range(2)]
    for each, answered in ((used, 2), (unused, 1)):
        for _ in range(answered):
            each.requests = 1
            sessions.finish_request(each)
    clock.advance(60)
    sessions._sweep()
    assert (used.is_open, unused.is_open) == (True, False)
    clock.advance(60)
    sessions._sweep()
    assert not used.is_open
    assert sessions._sweep_timer is None
