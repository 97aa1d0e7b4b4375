"""Bad requests: a typed error, the right status, a trace id, nothing leaked, and the server goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.doors.edge import RequestHead, read_body
from a2a_fabric.web.server import HttpServer, bind_socket
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply, check_envelope, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON = {"Content-Type": "application/json"}
LIMIT = 100_000
GOOD = {"agent_id": "percy", "capability": "reason", "task": "x"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent, config={"limits": {"body_bytes": LIMIT}}) as found:
        yield found


def check_refusal(reply: Reply, status: int, code: str = "BAD_INPUT") -> Any:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    envelope = reply.json
    check_envelope(envelope)
    assert envelope["error_code"] == code
    assert isinstance(envelope["error"], str)
    for leak in ("Traceback", 'File "', ".py", "NoneType", PSK):
        assert leak not in reply.body.decode()
    return envelope


async def check_alive(node: Node) -> None:
    assert (await node.ask("percy", "reason", "still here"))["result"]["answer"] == "still here"


NOT_A_CALL = {
    "nothing": b"",
    "blank": b" \n",
    "not JSON": b"hello",
    "half": b'{"name": "fabric.health", "argum',
    "trailing": b'{"name": "fabric.health"} x',
    "two": b'{"name": "fabric.health"}{"name": "fabric.health"}',
    "a list": b'[{"name": "fabric.health"}]',
    "a string": b'"fabric.health"',
    "a number": b"5",
    "null": b"null",
    "no name": b'{"arguments": {}}',
    "name null": b'{"name": null, "arguments": {}}',
    "name a number": b'{"name": 5}',
    "name a list": b'{"name": ["fabric.health"]}',
    "arguments a list": b'{"name": "fabric.health", "arguments": [1]}',
    "arguments a string": b'{"name": "fabric.health", "arguments": "{}"}',
    "arguments null": b'{"name": "fabric.health", "arguments": null}',
    "arguments a number": b'{"name": "fabric.health", "arguments": 0}',
    "invalid UTF-8 in the name": b'{"name": "fabric.\xff\xfe"}',
    "UTF-16": '{"name": "fabric.health"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"name": "fabric.health"}',
    "NaN": b'{"name": "fabric.call", "arguments": NaN}',
    "deep lists": b"[" * 50_000,
    "deep objects": b'{"a":' * 15_000,
    "deep arguments": b'{"name": "fabric.health", "arguments": ' + b'{"a":' * 15_000 + b"1" + b"}" * 15_000 + b"}",
    "NUL": b"\x00",
    "a lone surrogate": b'{"name": "\\ud800"}',
    "single quotes": b"{'name': 'fabric.health'}",
}


@requirement("000-07", "000-11", "001-42")
@pytest.mark.parametrize("what", NOT_A_CALL)
async def test_what_is_not_a_request_is_refused_with_400(node: Node, what: str) -> None:
    reply = await node.send("POST", "/mcp/call", data=NOT_A_CALL[what], headers=JSON)
    check_refusal(reply, 400)
    await check_alive(node)


async def test_a_hundred_thousand_brackets_are_refused() -> None:
    async with running(Percy().agent) as node:
        for body in (b"[" * 100_000, b'{"name":"fabric.call","arguments":{"a":' + b"[" * 100_000):
            check_refusal(await node.send("POST", "/mcp/call", data=body, headers=JSON), 400)
        deep = b'{"name":"fabric.call","arguments":{"agent_id":"percy","capability":"reason","task":"x","context":{"x":'
        for depth in (200, 900, 5_000, 100_000):
            body = deep + b'{"a":' * depth + b"1" + b"}" * depth + b"}}}"
            reply = await node.send("POST", "/mcp/call", data=body, headers=JSON)
            assert reply.status in (200, 400)
            check_envelope(reply.json)
        await check_alive(node)


BAD_ARGUMENTS: dict[str, tuple[str, Any, str]] = {
    "no agent": ("fabric.call", {"capability": "reason", "task": "x"}, "agent_id"),
    "no capability": ("fabric.call", {"agent_id": "percy", "task": "x"}, "capability"),
    "no task": ("fabric.call", {"agent_id": "percy", "capability": "reason"}, "task"),
    "agent a number": ("fabric.call", {**GOOD, "agent_id": 5}, "agent_id"),
    "agent null": ("fabric.call", {**GOOD, "agent_id": None}, "agent_id"),
    "capability a list": ("fabric.call", {**GOOD, "capability": ["reason"]}, "capability"),
    "task an object": ("fabric.call", {**GOOD, "task": {}}, "task"),
    "context a list": ("fabric.call", {**GOOD, "context": []}, "context"),
    "context a string": ("fabric.call", {**GOOD, "context": "x"}, "context"),
    "attachments an object": ("fabric.call", {**GOOD, "attachments": {}}, "attachments"),
    "an attachment of no type": ("fabric.call", {**GOOD, "attachments": [{"content": "x"}]}, "attachments"),
    "an attachment of odd type": ("fabric.call", {**GOOD, "attachments": [{"type": "ftp"}]}, "attachments"),
    "stream a word": ("fabric.call", {**GOOD, "stream": "yes"}, "stream"),
    "stream a number": ("fabric.call", {**GOOD, "stream": 1}, "stream"),
    "format unknown": ("fabric.call", {**GOOD, "format": "xml"}, "format"),
    "no time": ("fabric.call", {**GOOD, "timeout_ms": 0}, "timeout_ms"),
    "negative time": ("fabric.call", {**GOOD, "timeout_ms": -1}, "timeout_ms"),
    "fractional time": ("fabric.call", {**GOOD, "timeout_ms": 1.5}, "timeout_ms"),
    "time a word": ("fabric.call", {**GOOD, "timeout_ms": "1000"}, "timeout_ms"),
    "time a truth": ("fabric.call", {**GOOD, "timeout_ms": True}, "timeout_ms"),
    "trace a word": ("fabric.call", {**GOOD, "trace": "x"}, "trace"),
    "trace without id": ("fabric.call", {**GOOD, "trace": {}}, "trace"),
    "trace of no UUID": ("fabric.call", {**GOOD, "trace": {"trace_id": "not-a-uuid"}}, "trace"),
    "trace empty": ("fabric.call", {**GOOD, "trace": {"trace_id": ""}}, "trace"),
    "trace huge": ("fabric.call", {**GOOD, "trace": {"trace_id": "a" * 5000}}, "trace"),
    "trace a number": ("fabric.call", {**GOOD, "trace": {"trace_id": 5}}, "trace"),
    "parent of no UUID": (
        "fabric.call",
        {**GOOD, "trace": {"trace_id": "0" * 32, "parent_span_id": "x"}},
        "trace",
    ),
    "an argument the schema forbids": ("fabric.call", {**GOOD, "context": {"depth": "deep"}}, "depth"),
    "status unknown": ("fabric.agent.list", {"status": "bogus"}, "status"),
    "filter a list": ("fabric.agent.list", {"filter": []}, "filter"),
    "tag a number": ("fabric.agent.list", {"tag": 5}, "tag"),
    "describe nobody": ("fabric.agent.describe", {}, "agent_id"),
    "preview of nothing": ("fabric.route.preview", {"agent_id": "percy"}, "capability"),
    "tool without id": ("fabric.tool.call", {"parameters": {}}, "tool_id"),
    "parameters a list": ("fabric.tool.call", {"tool_id": "math.calculate", "parameters": []}, "parameters"),
    "tool arguments": ("fabric.tool.math.calculate", {"expression": 5}, "expression"),
    "tool time": ("fabric.tool.math.calculate", {"expression": "1", "timeout_ms": 0}, "timeout_ms"),
    "tool trace": ("fabric.tool.math.calculate", {"expression": "1", "trace": 5}, "trace"),
    "agent tool context": ("fabric.tool.agent.percy.reason", {"task": "x", "depth": []}, "depth"),
}


@requirement("000-11", "001-42", "001-43", "001-35")
@pytest.mark.parametrize("what", BAD_ARGUMENTS)
async def test_bad_arguments_are_refused_by_the_name_of_the_field(node: Node, what: str) -> None:
    name, arguments, field = BAD_ARGUMENTS[what]
    reply = await node.send("POST", "/mcp/call", json={"name": name, "arguments": arguments})
    envelope = check_refusal(reply, 200)
    assert field in envelope["error"]
    await check_alive(node)


@requirement("001-32")
async def test_a_very_long_time_is_cut_to_what_the_node_allows(node: Node) -> None:
    for timeout_ms in (10**9, 2**53, 2**62):
        assert (await node.ask("percy", "reason", timeout_ms=timeout_ms))["ok"] is True
    reply = await node.ask("percy", "reason", timeout_ms=10**30)
    check_envelope(reply)


NUMBERS = [b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" * 5000, b"0x10", b"01", b"1.", b"+1", b"-"]


@pytest.mark.parametrize("number", NUMBERS)
async def test_odd_numbers_never_hurt(node: Node, number: bytes) -> None:
    body = b'{"name":"fabric.call","arguments":{"agent_id":"percy","capability":"reason","task":"x","context":{"depth":'
    reply = await node.send("POST", "/mcp/call", data=body + number + b"}}}", headers=JSON)
    assert reply.status in (200, 400)
    check_envelope(reply.json)
    assert reply.json["ok"] is False
    assert reply.json["error_code"] == "BAD_INPUT"
    await check_alive(node)


async def test_of_a_repeated_key_one_value_counts(node: Node) -> None:
    body = b'{"name": 5, "name": "fabric.nothing", "name": "fabric.health", "arguments": [], "arguments": {}}'
    reply = await node.send("POST", "/mcp/call", data=body, headers=JSON)
    check_envelope(reply.json)
    assert reply.status in (200, 400)


async def test_unknown_keys_beside_name_and_arguments_are_ignored(node: Node) -> None:
    body = {"name": "fabric.health", "arguments": {"extra": 1}, "id": 7, "jsonrpc": "2.0"}
    assert (await node.send("POST", "/mcp/call", json=body)).json["ok"] is True


@requirement("000-11", "001-43")
@pytest.mark.parametrize(
    ("name", "arguments", "code", "sentence"),
    [
        ("fabric.call", {**GOOD, "agent_id": "percey"}, "AGENT_NOT_FOUND", "Agent 'percey' not found (nearest: percy)"),
        ("fabric.call", {**GOOD, "agent_id": ""}, "AGENT_NOT_FOUND", "Agent '' not found"),
        ("fabric.call", {**GOOD, "agent_id": "a\x00b"}, "AGENT_NOT_FOUND", "not found"),
        ("fabric.call", {**GOOD, "agent_id": "x" * 50_000}, "AGENT_NOT_FOUND", "not found"),
        (
            "fabric.call",
            {**GOOD, "capability": "sing"},
            "CAPABILITY_NOT_FOUND",
            "capability 'sing' is not offered by agent 'percy'",
        ),
        ("fabric.call", {**GOOD, "capability": "x" * 256}, "CAPABILITY_NOT_FOUND", "not offered by agent 'percy'"),
        ("fabric.call", {**GOOD, "capability": "x" * 50_000}, "BAD_INPUT", "has at most 256 characters"),
        ("fabric.agent.describe", {"agent_id": "nobody"}, "AGENT_NOT_FOUND", "Agent 'nobody' not found"),
        ("fabric.route.preview", {"agent_id": "nobody", "capability": "x"}, "AGENT_NOT_FOUND", "'nobody' not found"),
        ("fabric.tool.agent.percy.sing", {}, "CAPABILITY_NOT_FOUND", "capability 'sing' is not offered by agent"),
        ("fabric.agent.lst", {}, "BAD_INPUT", "nearest: fabric.agent.list"),
        ("fabric.tool.math.calculat", {}, "BAD_INPUT", "nearest: fabric.tool.math.calculate"),
        ("fabric.tool.", {}, "BAD_INPUT", "Unknown operation"),
        ("fabric.tool.agent.", {}, "BAD_INPUT", "Unknown operation"),
        ("fabric.tool.agent.percy", {}, "BAD_INPUT", "Unknown operation"),
        ("fabric.tool.agent..", {}, "BAD_INPUT", "Unknown operation"),
        ("", {}, "BAD_INPUT", "Unknown operation"),
        ("x" * 50_000, {}, "BAD_INPUT", "Unknown operation"),
        ("../../etc/passwd", {}, "BAD_INPUT", "Unknown operation"),
        ("fabric.\u202e\u0000", {}, "BAD_INPUT", "Unknown operation"),
    ],
)  # fmt: skip
async def test_unknown_names_are_told_apart_by_code_and_sentence(
    node: Node, name: str, arguments: dict[str, Any], code: str, sentence: str
) -> None:
    reply = await node.send("POST", "/mcp/call", json={"name": name, "arguments": arguments})
    envelope = check_refusal(reply, 200, code)
    assert sentence in envelope["error"]
    assert len(reply.body) < 2000
    await check_alive(node)


async def test_a_name_of_many_segments_costs_nothing(node: Node) -> None:
    name = "fabric.tool.agent." + "a." * 40_000
    for body in ({"name": name}, {"name": "fabric.tool.call", "arguments": {"tool_id": name}}):
        async with asyncio.timeout(10):
            check_refusal(await node.send("POST", "/mcp/call", json=body), 200)


@requirement("001-42", "000-28")
async def test_the_error_is_a_sentence_or_an_object_as_the_caller_likes(node: Node) -> None:
    arguments = {**GOOD, "agent_id": "nobody"}
    sentence = await node.operation("fabric.call", arguments)
    assert isinstance(sentence["error"], str)
    thing = await node.operation("fabric.call", arguments, headers={"X-Fabric-Error-Format": "object"})
    check_envelope(thing)
    assert thing["error"].keys() == {"code", "message", "details"}
    assert thing["error"]["message"] == sentence["error"]
    for reply in (sentence, thing):
        assert reply["error_code"] == "AGENT_NOT_FOUND"
        assert reply["error_details"] == {"agent_id": "nobody"}
    strange = await node.operation("fabric.call", arguments, headers={"X-Fabric-Error-Format": "klingon"})
    assert isinstance(strange["error"], str)


async def test_the_form_of_errors_can_be_configured() -> None:
    async with running(Percy().agent, config={"doors": [{"kind": "fabric", "error_format": "object"}]}) as node:
        arguments = {**GOOD, "agent_id": "nobody"}
        assert (await node.operation("fabric.call", arguments))["error"]["code"] == "AGENT_NOT_FOUND"
        headers = {"X-Fabric-Error-Format": "string"}
        assert isinstance((await node.operation("fabric.call", arguments, headers=headers))["error"], str)
        assert isinstance((await node.send("GET", "/mcp/agent/nobody")).json["error"], dict)
        assert isinstance((await node.send("GET", "/mcp/agent/nobody", headers=headers)).json["error"], str)


@requirement("001-43")
async def test_what_the_agents_code_throws_is_one_sentence(node: Node) -> None:
    failed = await node.send(
        "POST", "/mcp/call", json={"name": "fabric.call", "arguments": {**GOOD, "capability": "fail"}}
    )
    envelope = check_refusal(failed, 200, "UPSTREAM_ERROR")
    assert "broken by x" in envelope["error"]
    refused = await node.ask("percy", "refuse")
    assert (refused["error_code"], refused["error"]) == ("BAD_INPUT", "I would rather not")
    assert refused["error_details"]["wanted"] == "something else"


async def test_answers_and_errors_that_json_cannot_hold_are_typed_errors(node: Node) -> None:
    arguments = {**GOOD, "capability": "odd", "task": "surrogate"}
    reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": arguments})
    check_refusal(reply, 200, "UPSTREAM_ERROR")
    arguments["task"] = "error"
    reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": arguments})
    check_refusal(reply, 200, "BAD_INPUT")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json;charset=utf-8", "application/vnd.x+json"],
)
async def test_json_is_json_however_it_is_spelled(node: Node, content_type: str) -> None:
    body = b'{"name": "fabric.health"}'
    assert (await node.send("POST", "/mcp/call", data=body, headers={"Content-Type": content_type})).status == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data", "x"]
)
async def test_another_content_type_is_refused_with_415(node: Node, content_type: str) -> None:
    body = b'{"name": "fabric.health"}'
    reply = await node.send("POST", "/mcp/call", data=body, headers={"Content-Type": content_type})
    assert content_type in check_refusal(reply, 415)["error"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_another_method_is_refused_with_405(node: Node, method: str) -> None:
    reply = await node.send(method, "/mcp/call")
    check_refusal(reply, 405, "METHOD_NOT_ALLOWED")
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/nowhere", "/mcp/", "/mcp/call/", "/mcp/calls", "//mcp/call", "/MCP/CALL", "/%00", "/" + "x" * 5000]
)
async def test_another_path_is_a_404_in_json(node: Node, path: str) -> None:
    reply = await node.send("POST", path, json={})
    assert reply.status == 404
    check_envelope(reply.json)
    assert reply.json["error_code"] == "NOT_FOUND"
    assert len(reply.body) < 1000


async def test_a_body_that_is_declared_too_large_is_refused_before_it_comes(node: Node) -> None:
    lines = ["POST /mcp/call HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", f"Content-Length: {LIMIT + 1}"]
    head = "\r\n".join([*lines, "", ""]).encode()
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(head) as (reader, _):
        assert b" 413 " in await reader.readline()
    await check_alive(node)


@pytest.mark.parametrize("path", ["/mcp/call", "/mcp/list_agents"])
async def test_a_body_that_grows_too_large_is_refused(node: Node, path: str) -> None:
    method = "POST" if path == "/mcp/call" else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {PSK}\r\n"
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    async with asyncio.timeout(WAIT_TIMEOUT):
        async with node.raw(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 8) as (reader, _):
            assert b" 413 " in await reader.readline()
            await reader.readuntil(b"\r\n\r\n")
            envelope = json.loads(await reader.readuntil(b"}}"))
    assert envelope["error_code"] == "PAYLOAD_TOO_LARGE"
    check_envelope(envelope)
    await check_alive(node)


async def test_a_body_of_exactly_the_limit_is_taken(node: Node) -> None:
    body = b'{"name": "fabric.health", "arguments": {}}'
    reply = await node.send("POST", "/mcp/call", data=body.ljust(LIMIT), headers=JSON)
    assert reply.status == 200
    check_refusal(
        await node.send("POST", "/mcp/call", data=body.ljust(LIMIT + 1), headers=JSON), 413, "PAYLOAD_TOO_LARGE"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,  # TLS at a plain port
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_a_400_in_the_envelope(node: Node, data: bytes) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(data) as (reader, _):
        answer = await reader.read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    check_envelope(json.loads(body))
    await check_alive(node)


@pytest.mark.parametrize(
    "ahead",
    [
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nX-Long: ",
        b"GET /",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nX-Long: ",
        b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
    ],
    ids=["a header", "an address", "a header of a second request", "a trailer"],
)
async def test_a_head_that_never_ends_is_not_kept(node: Node, ahead: bytes) -> None:
    """Refused after 64 KiB, with any credentials: credentials would stand further down."""
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(ahead) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                writer.write(b"a" * 100_000)
                await writer.drain()
            pytest.fail("forty megabytes of a head were taken")
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert b" 431 " in answer or b"X-Trailer" in ahead
    await check_alive(node)


async def test_a_long_head_that_ends_is_taken(node: Node) -> None:
    headers = {**JSON, "X-Long": "a" * 8000, "X-Longer": "b" * 8000}
    assert (await node.send("POST", "/mcp/call", json={"name": "fabric.health"}, headers=headers)).status == 200


async def test_a_body_that_never_comes_does_not_hold_the_request_for_ever() -> None:
    async def silence() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await read_body(silence, RequestHead([]), 1000, timeout=0.05)

    async def trickle() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(TimeoutError):
        await read_body(trickle, RequestHead([]), 1000, timeout=0.1)


async def test_requests_sent_ahead_are_answered_in_order(node: Node) -> None:
    def request(task: str, connection: str) -> bytes:
        body = json.dumps({"name": "fabric.call", "arguments": {**GOOD, "task": task}}).encode()
        lines = ["POST /mcp/call HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", f"Connection: {connection}"]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    ahead = request("first", "keep-alive") + request("second", "close")
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(ahead) as (reader, _):
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.index(b'"first"') < answers.index(b'"second"')


async def test_a_reply_to_head_has_no_body(node: Node) -> None:
    ahead = b"HEAD /mcp/call HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(ahead) as (reader, writer):
        assert b" 405 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")


async def test_an_old_client_is_answered_and_let_go(node: Node) -> None:
    body = b'{"name": "fabric.health"}'
    for connection in ("close", "keep-alive"):
        head = f"POST /mcp/call HTTP/1.0\r\nAuthorization: Bearer {PSK}\r\nConnection: {connection}\r\n"
        ahead = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw(ahead) as (reader, _):
            answer = await reader.read()  # to the end: the server closes
        check_envelope(json.loads(answer.partition(b"\r\n\r\n")[2]))


@pytest.mark.parametrize(
    "ahead",
    [b"", b"POST /mcp/call HTTP/1.1\r\nHost:", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"],
    ids=["silence", "half a head", "half a head after a reply"],
)
async def test_a_connection_on_which_no_whole_request_comes_is_closed(node: Node, ahead: bytes) -> None:
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    server = HttpServer(node.fabric.app, [listener], drain_timeout=1, connections=100, request_seconds=2.0)
    server.config.timeout_keep_alive = 1
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        writer.write(ahead)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await reader.read()
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def test_a_node_with_as_many_connections_as_it_takes_says_so_in_the_envelope() -> None:
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"  # a connection that asked nothing would make room
    async with (
        running(Percy().agent, config={"limits": {"connections": 2}}) as small,
        small.raw(asked) as (one, _),
        small.raw(asked) as (other, _),
    ):
        for reader in (one, other):
            await asyncio.wait_for(reader.readuntil(b"}"), WAIT_TIMEOUT)
        for path in ("/mcp/call", "/monitoring/health"):
            reply = await small.send("POST", path, json={"name": "fabric.health", "arguments": {}})
            check_refusal(reply, 503, "RATE_LIMITED")
