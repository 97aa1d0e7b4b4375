"""Requests whose head a connection has sent before are known by their bytes: nothing else may be taken for one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import jwt
import pytest

from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.web.fast_cycle import CachedHead
from tests.doors.test_reload import edit
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent) as found:
        yield found


def make_body(task: str) -> bytes:
    arguments = {"agent_id": "percy", "capability": "reason", "task": task}
    return json.dumps({"name": "fabric.call", "arguments": arguments}).encode()


def request(task: str, *, length: int | None = None, more: str = "", token: str = PSK) -> bytes:
    body = make_body(task)
    size = len(body) if length is None else length
    head = (
        f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
    )
    return head.encode() + body


async def reply(connection: Connection) -> tuple[int, Any]:
    reader = connection[0]
    async with asyncio.timeout(WAIT_TIMEOUT):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def answered(connection: Connection, data: bytes) -> tuple[int, Any]:
    connection[1].write(data)
    return await reply(connection)


async def heard(connection: Connection, task: str, **how: Any) -> None:
    """Ask, and see that this very task was answered."""
    status, envelope = await answered(connection, request(task, **how))
    assert status == 200
    assert envelope["ok"]
    assert task in json.dumps(envelope["result"])


@pytest.mark.parametrize("more", ["", "Connection: keep-alive\r\n", "Connection: x\r\n"])
async def test_the_same_head_with_other_bodies_of_any_length_reaches_the_agent_each_time(node: Node, more: str) -> None:
    async with node.raw(b"") as connection:
        for task in ("one", "two", "three", "one", "w" * 2000, "four"):
            await heard(connection, task, more=more)


async def test_a_known_head_may_come_in_pieces_or_ahead_of_its_body(node: Node) -> None:
    async with node.raw(b"") as connection:
        await heard(connection, "first")
        whole = request("second")
        for cut in (1, 20, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
            connection[1].write(whole[:cut])
            await connection[1].drain()
            await asyncio.sleep(0)
            status, envelope = await answered(connection, whole[cut:])
            assert status == 200
            assert "second" in json.dumps(envelope)
            await heard(connection, "between")


async def test_requests_sent_ahead_are_answered_in_order(node: Node) -> None:
    async with node.raw(b"") as connection:
        await heard(connection, "first")
        connection[1].write(request("a") + request("b") + request("cc")[:-3])
        told = [await reply(connection), await reply(connection)]
        told.append(await answered(connection, request("cc")[-3:]))
        assert [task in json.dumps(each[1]) for task, each in zip(("a", "b", "cc"), told, strict=True)] == [True] * 3
        await heard(connection, "last")


async def test_other_credentials_on_the_same_connection_are_looked_at(node: Node) -> None:
    async with node.raw(b"") as connection:
        await heard(connection, "first")
        status, envelope = await answered(connection, request("second", token="x" * len(PSK)))
        assert (status, envelope["ok"]) == (401, False)
        await heard(connection, "third")


async def test_a_length_that_is_none_is_refused_as_ever(node: Node) -> None:
    async with node.raw(b"") as connection:
        await heard(connection, "first")
        bad = request("second").replace(b"Content-Length: ", b"Content-Length: +")
        assert (await answered(connection, bad))[0] == 400


async def test_other_requests_in_between_are_answered_as_ever(node: Node) -> None:
    chunked = request("in chunks", more="Transfer-Encoding: chunked\r\n")
    head = chunked.partition(b"\r\n\r\n")[0].split(b"\r\n")
    body = make_body("in chunks")
    asked = b"\r\n".join(line for line in head if not line.startswith(b"Content-Length")) + b"\r\n\r\n"
    async with node.raw(b"") as connection:
        for _ in range(2):
            await heard(connection, "plain")
            status, envelope = await answered(connection, asked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert (status, "in chunks" in json.dumps(envelope)) == (200, True)
            assert (await answered(connection, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200


async def test_a_client_that_says_close_gets_one_answer_and_the_end(node: Node) -> None:
    async with node.raw(b"") as connection:
        await heard(connection, "first")
        await heard(connection, "second", more="Connection: close\r\n")
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert await connection[0].read() == b""


async def test_a_kept_connection_follows_settings_that_change(node: Node) -> None:
    """The same bytes mean what the configuration of the moment says, whatever they meant before."""
    secret, audience = "a secret that two parties share, and nobody else", "https://fabric.example"
    claims = {"iss": "https://login.example", "sub": "eve", "aud": audience, "exp": int(time.time()) + 3600}
    token = jwt.encode(claims, secret, algorithm="HS256")
    issuer = {"id": "corp", "issuer": "https://login.example", "audience": [audience], "secret": secret,
              "scopes": ["agent:percy"]}  # fmt: skip
    async with node.raw(b"") as connection:
        for issuers, status in (([], 401), ([issuer], 200), ([], 401), ([issuer], 200)):
            edit(node, auth={"issuers": issuers})
            for _ in range(2):
                assert (await answered(connection, request("hello", token=token)))[0] == status, issuers
        assert (await answered(connection, request("hello", token="x" * len(token))))[0] == 401
        edit(node, auth={"keys": [{"id": "later", "key": "x" * len(token)}]})
        assert (await answered(connection, request("hello", token="x" * len(token))))[0] == 200
        edit(node, auth={"keys": []})
        assert (await answered(connection, request("hello", token="x" * len(token))))[0] == 401


@pytest.fixture
async def node_with_views() -> AsyncIterator[Node]:
    views = [{"name": "all"}, {"name": "none", "agents": ["no-such-agent"]}]
    async with running(Percy().agent, config={"views": views}) as found:
        yield found


async def test_one_connection_may_change_between_views_with_the_same_headers(node_with_views: Node) -> None:
    async with node_with_views.raw(b"") as connection:
        for task in ("one", "two", "three"):
            for path, ok in (("/views/all", True), ("/views/all", True), ("/views/none", False), ("", True)):
                data = request(task).replace(b"/mcp/call", f"{path}/mcp/call".encode(), 1)
                _, envelope = await answered(connection, data)
                assert envelope["ok"] is ok, path


async def test_a_view_named_by_the_path_and_by_a_header_narrows_twice(node_with_views: Node) -> None:
    async with node_with_views.raw(b"") as connection:
        for task in ("one", "two", "three"):
            data = request(task, more="X-Fabric-View: none\r\n").replace(b"/mcp/call", b"/views/all/mcp/call", 1)
            _, envelope = await answered(connection, data)
            assert envelope["error_code"] == "AUTH_DENIED"


async def count_functions(connection: Connection, data: bytes) -> int:
    """The fewest functions in Python that ran in this thread, client and node together, for one of several requests."""
    counts: list[int] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        counts[-1] += event == "call"

    for _ in range(20):
        counts.append(0)
        sys.setprofile(count)
        try:
            await answered(connection, data)
        finally:
            sys.setprofile(None)
    return min(counts)


async def test_a_call_through_a_view_runs_no_more_functions_than_another(node_with_views: Node) -> None:
    plain = request("one")
    async with node_with_views.raw(b"") as connection:
        counts: list[int] = []
        for path in (b"/mcp/call", b"/views/all/mcp/call"):
            data = plain.replace(b"/mcp/call", path, 1)
            for _ in range(3):
                assert (await answered(connection, data))[0] == 200
            counts.append(await count_functions(connection, data))
        assert counts[0] == counts[1] > 0


def learned(data: bytes) -> CachedHead:
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    repeated = CachedHead("/mcp/call", None, headers, RequestHead(headers))  # type: ignore[arg-type]  # no door is asked
    repeated.learn(data)
    return repeated


def test_what_a_head_says_of_its_length_is_told_as_this_request_has_it() -> None:
    known = learned(request("one"))
    assert known.match_body(request("three")) == make_body("three")
    length = str(len(make_body("three"))).encode()
    assert dict(known.headers)[b"content-length"] == known.head.get_raw(b"content-length") == length
    assert known.head.get(b"authorization") == f"Bearer {PSK}"


@pytest.mark.parametrize(
    "data",
    [
        request("three")[:-1],
        request("three") + b" ",
        request("three", length=0),
        request("three", length=10**20),
        request("three").replace(b"Host: x", b"Host: y"),
        request("three").replace(b"Length: ", b"Length: -"),
        request("three").replace(b"Bearer", b"Basic"),
        request("three", more="X: y\r\n"),
        request("one")[:-1] + b"}\r\n",
        b"",
        b"\r\n",
    ],
)
def test_more_or_less_than_one_whole_request_with_that_head_is_for_the_parser(data: bytes) -> None:
    assert learned(request("one")).match_body(data) is None


@pytest.mark.parametrize(
    "data",
    [
        request("one", more="Connection: close\r\n"),
        request("one", more="Expect: 100-continue\r\n"),
        request("one", more="Transfer-Encoding: chunked\r\n"),
        request("one", more="Content-Length: 5\r\n"),
        request("one", more=f"X: {'x' * 10_000}\r\n"),
        request("one") + request("two"),
        request("one", length=1),
    ],
)
def test_heads_with_more_to_them_than_a_length_are_not_learned(data: bytes) -> None:
    assert not learned(data).is_learned
