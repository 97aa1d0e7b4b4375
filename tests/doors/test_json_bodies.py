"""What is taken for JSON, how deep it may be nested, and which numbers it may hold: the same at every door."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from a2a_fabric.core.json_text import MAX_JSON_DEPTH, MAX_SLOW_NUMBERS, decode_json_text, find_json_problem
from a2a_fabric.core.result import Result
from a2a_fabric.doors.edge import may_be_json
from a2a_fabric.registry.tool_choice import cut_result
from tests.doors.a2a_agents import percy
from tests.fixtures.mcp_raw import initialize
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running

on_a_node = pytest.mark.asyncio(loop_scope="module")

DOORS = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]
DEPTHS = [129, 200, 490, 700, 950, 1000, 5000, 100_000]
HERE = "@"


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


MESSAGE = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}], "metadata": {"x": HERE}}
BODIES: dict[str, dict[str, Any]] = {
    "/mcp/call": {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "x", "context": {"x": HERE}}},
    "/mcp/register_agent": {"agent_id": "deep", "metadata": {"x": HERE}},
    "/mcp": rpc("tools/call", {"name": "percy_echo", "arguments": {"x": HERE}}),
    "/agents/percy/mcp": rpc("tools/call", {"name": "percy_echo", "arguments": {"x": HERE}}),
    "/agents/percy": rpc("SendMessage", {"message": MESSAGE}),
    "/agents/percy/message:send": {"message": MESSAGE},
    "/a2a": rpc("a2a/task", {"taskId": "1", "action": "x", "sender": "me", "input": {"x": HERE}}),
    "/a2a/task": {"taskId": "1", "action": "x", "sender": "me", "input": {"x": HERE}},
    "/v1/messages": {"recipient": {"id": "percy"}, "parts": [{"type": "data", "data": {"x": HERE}}]},
    "/v1/tasks": {"agentId": "percy", "input": {"x": HERE}},
    "/": rpc("task.create", {"input": {"x": HERE}}),
    "/search": {"query": "x", "more": HERE},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config={"doors": DOORS}) as node:
        yield node


def nested(depth: int, body: dict[str, Any], form: str = "object") -> bytes:
    opening, closing = ('{"a":', "}") if form == "object" else ("[", "]")
    return json.dumps(body).replace(f'"{HERE}"', opening * depth + "1" + closing * depth).encode()


RPC_IN_200 = ("/agents/percy", "/a2a", "/a2a/task")  # an error of JSON-RPC comes with status 200 there
HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0", "Accept": "application/json, text/event-stream"}


@on_a_node
@pytest.mark.parametrize("form", ["object", "list"])
@pytest.mark.parametrize("path", BODIES)
async def test_json_that_is_nested_too_deep_is_the_callers_mistake(node: Node, path: str, form: str) -> None:
    for depth in DEPTHS:
        reply = await node.send("POST", path, data=nested(depth, BODIES[path], form), headers=HEADERS)
        if path == "/search" and reply.status == 413:
            continue  # it takes no more than 64 kB
        assert reply.status == (200 if path in RPC_IN_200 else 400), (depth, reply.body)
        assert b"nested" in reply.body, (depth, reply.body)
        assert reply.json["error"]


@on_a_node
@pytest.mark.parametrize("path", BODIES)
async def test_json_of_an_allowed_depth_is_no_fault_of_the_node(node: Node, path: str) -> None:
    """What the agent or the schema says about it is another matter."""
    for depth in (1, 50, 100, 120):
        reply = await node.send("POST", path, data=nested(depth, BODIES[path]), headers=HEADERS)
        assert reply.status < 500
        assert b"nested" not in reply.body


def numbers(count: int, body: dict[str, Any], number: str = "1e300") -> bytes:
    return json.dumps(body).replace(f'"{HERE}"', f"[{','.join([number] * count)}]").encode()


@on_a_node
@pytest.mark.parametrize("path", BODIES)
async def test_thousands_of_numbers_that_are_slow_to_read_are_refused(node: Node, path: str) -> None:
    """4 MB of `1e300` would stop the event loop for seconds."""
    for number in ("1e300", "1E+299", "4e-320", "0.00001e0000303", "47639670706682956644e191"):
        body = numbers(MAX_SLOW_NUMBERS + 1, BODIES[path], number)
        reply = await node.send("POST", path, data=body, headers=HEADERS)
        assert reply.status == (200 if path in RPC_IN_200 else 400), reply.body
        assert b"slow to read" in reply.body
    for count, number in ((MAX_SLOW_NUMBERS, "1e300"), (5 * MAX_SLOW_NUMBERS, "1.5e-05")):
        reply = await node.send("POST", path, data=numbers(count, BODIES[path], number), headers=HEADERS)
        assert reply.status < 500
        assert b"slow to read" not in reply.body


def test_numbers_are_counted_outside_of_strings_and_after_an_e_only() -> None:
    many = 5 * MAX_SLOW_NUMBERS
    for harmless in ('"9e300"', '"\\"1e300"', "1e100", "1e-0005", '{"1e300":1}', "1300300300"):
        assert find_json_problem(f"[{','.join([harmless] * many)}]".encode()) is None
    assert find_json_problem(b"1e300," * many) is None, "it is no JSON"
    with pytest.raises(msgspec.DecodeError, match="slow to read"):
        decode_json_text(f"[{','.join(['1e300'] * many)}]")


SLOW_NUMBERS = [
    "47639670706682956644e191",  # the first 19 digits do not decide between two floats
    "-8897357150305795685.9E+22",
    "19974253459912648635e81",
    "1" * 110 + "e199",
    "1e-308",
    "9" * 4000,
]
FAST_NUMBERS = [
    "1e288",
    "-1.5E-287",
    "3.2e-210",
    "1.2345678901234567890e-12",
    "0." + "0123456789" * 3,
    "9007199254740993.0000",
    "12345678901234567890",
    "9" * 617,  # the modulus of an RSA key
    "0.0e0000400",
]


@pytest.mark.parametrize("number", SLOW_NUMBERS)
@pytest.mark.parametrize("megabytes", [0.1, 4])
def test_a_text_of_numbers_that_take_a_decoder_long_is_refused(number: str, megabytes: float) -> None:
    text = f"[1,{','.join([number] * int(megabytes * 1e6 / len(number)))}]".encode()
    if len(number) < 100 or megabytes > 1:
        assert "slow to read" in (find_json_problem(text) or "")


@pytest.mark.parametrize("number", FAST_NUMBERS)
@pytest.mark.parametrize("megabytes", [0.1, 4])
def test_a_text_of_numbers_that_a_decoder_reads_fast_is_not_refused(number: str, megabytes: float) -> None:
    text = f"[1,{','.join([number] * int(megabytes * 1e6 / len(number)))}]".encode()
    assert find_json_problem(text) is None


def test_slow_numbers_are_found_wherever_they_are_in_a_large_text() -> None:
    few = ",".join(["1e300"] * 20 * MAX_SLOW_NUMBERS)
    rest = ",".join(["1.25"] * 800_000)
    for text in (f"[{few},{rest}]", f"[{rest},{few}]", f"[{rest},{few},{rest}]"):
        assert "slow to read" in (find_json_problem(text.encode()) or "")


def test_no_list_of_numbers_with_many_digits_is_refused() -> None:
    """One in a few hundred is slow."""
    random_numbers = random.Random(7)
    for digits, exponents in ((20, 40), (21, 200), (30, 18), (77, 60)):
        listed = (
            f"1.{random_numbers.randrange(10**digits):0{digits}}e{random_numbers.randint(-exponents, exponents)}"
            for _ in range(1_000_000 // digits)
        )
        assert find_json_problem(f"[{','.join(listed)}]".encode()) is None


def test_what_an_agent_says_as_text_is_read_as_json_by_the_same_rule() -> None:
    slow, fast = (Result(data={"answer": f"[{','.join([number] * 5000)}]"}) for number in ("1e300", "1.5"))
    assert cut_result(slow, "@").data == slow.data, "it stays a text"
    assert cut_result(fast, "length(@)").data == {"result": 5000}


@on_a_node
@pytest.mark.parametrize("path", ["/mcp/call", "/mcp/ws"])
async def test_over_a_socket_too(node: Node, path: str) -> None:
    address = f"{node.url.replace('http', 'ws', 1)}{path}"
    body = BODIES["/mcp/call"] if path == "/mcp/call" else BODIES["/mcp"]
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        connect(address, additional_headers={"Authorization": f"Bearer {PSK}"}) as socket,
    ):
        for depth in DEPTHS:
            await socket.send(nested(depth, {**body, "id": 7}).decode())
            assert "nested" in str(await socket.recv())
        await socket.send(numbers(MAX_SLOW_NUMBERS + 1, {**body, "id": 7}).decode())
        assert "slow to read" in str(await socket.recv())
        if path == "/mcp/ws":
            await socket.send(json.dumps(initialize()))
            assert json.loads(await socket.recv())["result"]


@on_a_node
@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("kind", ["text/plain;application/json", "text/plain; x=application/json", "application/jsonx",
                                  "application/json, text/plain", "multipart/form-data; boundary=json"])  # fmt: skip
async def test_what_only_mentions_json_is_no_json(node: Node, path: str, kind: str) -> None:
    reply = await node.send("POST", path, data=nested(1, BODIES[path]), headers={**HEADERS, "Content-Type": kind})
    assert b"content type must be application/json" in reply.body
    assert reply.status == 415, reply.body


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON ; charset=utf-8", "application/a2a+json",
                                  "application/vnd.x+json;v=1", "text/json", None])  # fmt: skip
def test_media_types_of_json(kind: str | None) -> None:
    assert may_be_json(kind)


@pytest.mark.parametrize("kind", ["", "json", "/json", "text/plain;application/json", "application/jsonp", "a/b json"])
def test_media_types_of_something_else(kind: str) -> None:
    assert not may_be_json(kind)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("[", "]"), ('{"a":', "}"), ('[{"a":1},', "]"), ('["]]\\"]\\\\",', "]"), ('{"[":[],"a":', "}")],
)
def test_depth_is_counted_outside_of_strings(opening: str, closing: str) -> None:
    inner = max(opening.count("[") - opening.count('"['), opening.count("{")) if opening[0] == "[" else 1
    for depth in (1, MAX_JSON_DEPTH - inner, MAX_JSON_DEPTH + 1, 10_000):
        text = opening * depth + "1" + closing * depth
        assert bool(find_json_problem(text.encode())) == (depth > MAX_JSON_DEPTH)
    assert not find_json_problem(json.dumps(["[{" * 1000, {"x": '"[' * 1000}] * 50).encode())
    assert not find_json_problem(json.dumps([{"a": [{}]}] * 10_000).encode())
