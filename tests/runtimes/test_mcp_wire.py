"""The wire to MCP servers of the handshake era, over HTTP and on stdio: what is odd, rare or broken stays bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.mcp_servers.scripted import JSON, TEXT, Exchange, ScriptedServer, Tool, serving_scripted
from tests.fixtures.mcp_servers.serving import odd
from tests.runtimes.mcp_bench import Bench, failure_of

PONG = {"answer": "pong"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, tmp_path)


async def plain(exchange: Exchange) -> None:
    await exchange.reply(exchange.result())


async def events(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.event(exchange.result())
    await exchange.end()


class Served:
    """A runtime in front of a server whose tool `odd` answers in the way that is tested; `plain` is beyond doubt."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stack = AsyncExitStack()
        self.server: ScriptedServer
        self.runtime: McpRuntime

    async def __call__(self, tool: Tool, **endpoint: str) -> McpRuntime:
        self.server = await self._stack.enter_async_context(serving_scripted(odd=tool, plain=plain))
        path = endpoint.pop("path", "/mcp")
        self.runtime = self._bench.runtime(uri=self.server.url + path, era="handshake", **endpoint)
        return self.runtime

    async def aclose(self) -> None:
        await self.runtime.aclose()
        await self._stack.aclose()


@pytest.fixture
async def served(bench: Bench) -> AsyncIterator[Served]:
    served = Served(bench)
    async with asyncio.timeout(60):
        yield served
        await served.aclose()


def notification(name: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}).encode()


@pytest.mark.parametrize("tool", [plain, events])
async def test_one_session_serves_all_calls_and_is_deleted_at_the_end(served: Served, tool: Tool) -> None:
    runtime = await served(tool)
    for stream in (False, True):
        assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG
    assert served.server.sessions == ["session-1"]
    await runtime.aclose()
    assert served.server.deleted == ["session-1"]


async def test_every_request_names_the_session_and_the_version(served: Served) -> None:
    seen: list[dict[str, str]] = []

    async def look(exchange: Exchange) -> None:
        seen.append(exchange.headers)
        await exchange.reply(exchange.result())

    runtime = await served(look)
    for stream in (False, True):  # they go different ways
        await runtime(call_of("odd", stream=stream), ignore_event)
    assert [(each["mcp-session-id"], each["mcp-protocol-version"]) for each in seen] == 2 * [
        ("session-1", "2025-11-25")
    ]
    assert all("traceparent" in each for each in seen)


async def test_a_user_name_and_a_password_in_the_address_are_sent_as_a_header(served: Served, bench: Bench) -> None:
    seen: list[str] = []

    async def look(exchange: Exchange) -> None:
        seen.append(exchange.headers["authorization"])
        await exchange.reply(exchange.result())

    await served(look)
    address = served.server.url.replace("http://", "http://percy:a%40b@") + "/mcp"
    runtime = bench.runtime(uri=address, era="handshake")
    assert (await runtime(call_of("odd"), ignore_event)).data == PONG
    assert seen == ["Basic cGVyY3k6YUBi"]
    await runtime.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_that_the_server_no_longer_knows_is_renewed_and_the_call_sent_again(
    served: Served, stream: bool
) -> None:
    async def forget(exchange: Exchange) -> None:
        if exchange.headers["mcp-session-id"] == "session-1":
            await exchange.reply(b'{"error": "no such session"}', 404)
        else:
            await exchange.reply(exchange.result())

    runtime = await served(forget)
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG
    assert served.server.sessions == ["session-1", "session-2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_ends_in_its_midst_is_not_sent_again(served: Served, stream: bool) -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.start()
        progress = {"progressToken": exchange.message["id"], "progress": 1}
        await exchange.event(
            json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}).encode()
        )
        await exchange.end()

    runtime = await served(break_off)
    failed = await failure_of(runtime(call_of("odd", stream=stream), ignore_event), UpstreamInterrupted)
    assert failed.full_message == "SSE stream ended without a response"
    assert served.server.calls == ["odd"]
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    assert served.server.sessions == ["session-1"]


@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [
        (400, UpstreamRefused, "The MCP server answered HTTP 400: no"),
        (405, UpstreamRefused, "The MCP server answered HTTP 405: no"),
        (202, UpstreamRefused, "server answered a request with 202 Accepted"),
        (503, AgentOffline, "The MCP server answered HTTP 503"),
        (502, UpstreamInterrupted, "The MCP server answered HTTP 502"),
        (500, UpstreamFailed, "The MCP server answered HTTP 500"),
    ],
)
async def test_a_status_that_is_no_answer_fails_the_call_alone(
    served: Served, status: int, kind: type[FabricError], sentence: str
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.reply(b"no", status, b"text/plain" if status >= 400 else JSON)

    runtime = await served(answer)
    for stream in (False, True):
        failed = await failure_of(runtime(call_of("odd", stream=stream), ignore_event), kind)
        assert failed.full_message == sentence
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    assert served.server.sessions == ["session-1"]


async def test_the_reply_may_come_on_the_stream_that_is_open_for_all(served: Served) -> None:
    async def answer_elsewhere(exchange: Exchange) -> None:
        await exchange.start()
        exchange.server.answers.put_nowait({"reply": exchange.result()})
        await exchange.until_client_leaves()

    runtime = await served(answer_elsewhere)
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    stream = await served.server.streams.get()
    for as_stream in (False, True):
        call = asyncio.ensure_future(runtime(call_of("odd", stream=as_stream), ignore_event))
        served.server.left.clear()
        await stream.event((await served.server.answers.get())["reply"])
        assert (await call).data == PONG
        await served.server.left.wait()  # the stream of the call is not kept


@pytest.mark.parametrize("stream", [False, True])
async def test_of_two_replies_the_first_counts(served: Served, stream: bool) -> None:
    async def answer_twice(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(exchange.result())
        await exchange.event(exchange.result({"content": [{"type": "text", "text": "again"}]}))
        await exchange.end()

    runtime = await served(answer_twice)
    for _ in range(3):
        assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG


@pytest.mark.parametrize("as_events", [False, True])
async def test_a_reply_with_a_strange_id_belongs_to_the_request_that_it_answers(
    served: Served, as_events: bool
) -> None:
    async def answer(exchange: Exchange) -> None:
        body = exchange.result(TEXT, "strange")
        if as_events:
            await exchange.start()
            await exchange.event(body)
            await exchange.end()
        else:
            await exchange.reply(body)

    runtime = await served(answer)
    for stream in (False, True):
        assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_without_an_end_is_left_after_the_reply(served: Served, stream: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(exchange.result())
        await exchange.until_client_leaves()

    runtime = await served(answer)
    assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG
    await served.server.left.wait()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{oops", UpstreamFailed),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\xff\xfe"}]}}', UpstreamFailed),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":"pong"}}', UpstreamFailed),
        (b'{"jsonrpc":"2.0","id":1,"result":[]}', UpstreamFailed),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}', UpstreamFailed),
        (b"[" * 100_000, UpstreamFailed),
        (
            b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"%b"}]}}' % (b"x" * 200_000),
            UpstreamRefused,
        ),
    ],
)
@pytest.mark.parametrize("as_events", [False, True])
async def test_a_reply_that_cannot_be_read_fails_the_call_alone(
    bench: Bench, served: Served, body: bytes, kind: type[FabricError], as_events: bool
) -> None:
    bench.context = replace(bench.context, reply_bytes=150_000)

    async def answer(exchange: Exchange) -> None:
        if as_events:
            await exchange.start()
            await exchange.event(body)
            await exchange.end()
        else:
            await exchange.reply(body)

    runtime = await served(answer)
    is_notification = b"notifications" in body
    for stream in (False, True):
        expected = UpstreamInterrupted if is_notification and as_events else kind
        await failure_of(runtime(call_of("odd", stream=stream), ignore_event), expected)
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    assert served.server.sessions == ["session-1"]


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_of_the_server_in_between_are_answered(served: Served, stream: bool) -> None:
    answers: list[dict[str, object]] = []

    async def ask(exchange: Exchange) -> None:
        await exchange.start()
        for number, method in ((7, "ping"), ("x", "no/such")):
            await exchange.event(json.dumps({"jsonrpc": "2.0", "id": number, "method": method}).encode())
            answers.append(await exchange.server.answers.get())
        await exchange.event(exchange.result())
        await exchange.end()

    runtime = await served(ask)
    assert (await runtime(call_of("odd", stream=stream), ignore_event)).data == PONG
    assert answers[0] == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert (answers[1]["id"], answers[1]["error"]["code"]) == ("x", -32601)  # type: ignore[index]  # a JSON object


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_with_ids_is_resumed_after_a_break(served: Served, stream: bool) -> None:
    async def break_off(exchange: Exchange) -> None:
        exchange.server.answers.put_nowait({"reply": exchange.result()})
        await exchange.start()
        await exchange.event(b"", event_id="seven", retry=10)
        await exchange.end()

    runtime = await served(break_off)
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    await served.server.streams.get()  # the one that is open for all
    call = asyncio.ensure_future(runtime(call_of("odd", stream=stream), ignore_event))
    resumed = await served.server.streams.get()
    assert resumed.headers["last-event-id"] == "seven"
    await resumed.event((await served.server.answers.get())["reply"])
    assert (await call).data == PONG
    assert served.server.calls == ["plain", "odd"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_left_is_cancelled_at_the_server(served: Served, stream: bool) -> None:
    ids: list[object] = []

    async def wait(exchange: Exchange) -> None:
        ids.append(exchange.message["id"])
        await exchange.start()
        await exchange.until_client_leaves()

    runtime = await served(wait)
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG
    with pytest.raises(CallTimeout), Deadline(0.3):
        await runtime(call_of("odd", stream=stream), ignore_event)
    await served.server.left.wait()
    assert served.server.cancelled == ids
    assert (await runtime(call_of("plain"), ignore_event)).data == PONG


async def test_progress_and_logs_reach_the_call_to_which_they_belong(served: Served) -> None:
    async def tell(exchange: Exchange) -> None:
        await exchange.start()
        token = exchange.message["params"]["_meta"].get("progressToken")
        for params in ({"progressToken": token, "progress": 1, "total": 2}, {"progressToken": 999, "progress": 2}):
            await exchange.event(notification("progress", **params))
        number = exchange.message["params"]["arguments"]["number"]
        await exchange.event(notification("message", level="info", data=f"call {number}"))
        await exchange.event(exchange.result())
        await exchange.end()

    runtime = await served(tell)
    heard = [Heard() for _ in range(5)]
    await asyncio.gather(*(runtime(call_of("odd", number=n, stream=True), each) for n, each in enumerate(heard)))
    for number, each in enumerate(heard):
        assert each.kinds == ["progress", "status"]
        assert each.events[1].data["message"] == f"call {number}"


async def test_a_redirect_is_followed_within_the_same_origin_only(bench: Bench, served: Served) -> None:
    runtime = await served(plain, path="/moved")
    assert (await runtime(call_of("odd"), ignore_event)).data == PONG
    stranger = bench.runtime(uri=served.server.url + "/elsewhere", era="handshake")
    failed = await failure_of(stranger(call_of("odd"), ignore_event), AgentOffline)
    assert "a redirect to another origin, which is never followed" in failed.full_message


async def test_a_server_that_insists_on_an_unknown_version_is_offline_with_the_reason(served: Served) -> None:
    runtime = await served(plain)
    served.server.version = "1999-01-01"
    failed = await failure_of(runtime(call_of("odd"), ignore_event), AgentOffline)
    assert "Unsupported protocol version from the server: 1999-01-01" in failed.full_message


class TestPrograms:
    @pytest.mark.parametrize("kind", ["twice", "strange", "asking", "broken-text"])
    async def test_odd_lines_harm_no_call(self, bench: Bench, kind: str) -> None:
        runtime = bench.runtime(command=odd(kind), era="handshake")
        for stream in (False, True, False):
            assert (await runtime(call_of("ping", stream=stream), ignore_event)).data == PONG

    async def test_a_question_that_comes_with_the_reply_belongs_to_no_call(self, bench: Bench, tmp_path: Path) -> None:
        notes = tmp_path / "notes"
        runtime = bench.runtime(command=odd("afterwards", str(notes)), era="handshake")
        for stream in (False, True, False):
            assert (await runtime(call_of("ping", stream=stream), ignore_event)).data == PONG
        await until(lambda: notes.read_text().split().count("decline") == 3)

    async def test_half_a_line_is_no_reply(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("half-line"), era="handshake")
        await runtime.describe()
        failed = await failure_of(runtime(call_of("ping"), ignore_event), UpstreamInterrupted)
        assert "exited with code 5" in failed.full_message

    async def test_a_reply_that_is_not_utf_8_fails_the_call_alone(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("latin"), era="handshake")
        await runtime.describe()
        for stream in (False, True):
            await failure_of(runtime(call_of("ping", stream=stream), ignore_event), UpstreamFailed)
        assert await runtime.health() == "online"

    async def test_a_line_of_50_mb_ends_the_program_and_the_next_call_starts_it_again(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("endless-line"), era="handshake", backoff=0.05)
        await runtime.describe()
        failed = await failure_of(runtime(call_of("ping"), ignore_event), UpstreamInterrupted)
        assert "sent a line longer than" in failed.full_message
        assert (await runtime.describe()).find_capability("ping") is not None

    async def test_a_program_that_stops_reading_is_ended_and_told(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("deaf"), era="handshake")
        await runtime.describe()
        calls = [runtime(call_of("ping", text="x" * 300_000), ignore_event) for _ in range(3)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, UpstreamInterrupted)
            assert "did not read its input for 10 s" in outcome.full_message

    async def test_many_calls_are_in_flight_at_a_time(self, bench: Bench) -> None:
        """The program answers only when it has as many as are sent, the last one first."""
        runtime = bench.runtime(command=odd("batch"), era="handshake")
        await runtime.describe()
        calls = [runtime(call_of("ping", text=f"{number}"), ignore_event) for number in range(20)]
        answers = await asyncio.gather(*calls)
        assert [each.data["answer"] for each in answers] == [f"{number}" for number in range(20)]
