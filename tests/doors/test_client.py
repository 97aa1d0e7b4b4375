"""FabricClient and its sync twin against real nodes, and against peers that misbehave on the wire."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from a2a_fabric import Agent, FabricClient, SyncFabricClient
from a2a_fabric.client import NodeUnreachable
from a2a_fabric.core.call import Attachment, Call
from a2a_fabric.core.errors import (
    AgentNotFound,
    AuthInvalid,
    BadInput,
    CallTimeout,
    FabricError,
    RateLimited,
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Part
from tests.doors.test_client_wires import CONFIG, percy
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running, running_in_thread
from tests.fixtures.percy import Percy
from tests.marks import requirement

TRACE = {"trace_id": "6f9619ff-8b86-4011-b42d-00c04fc964ff", "span_id": "6f9619ff-8b86-4011-b42d-00c04fc964fe"}
DONE = {"ok": True, "trace": {**TRACE, "parent_span_id": None}, "result": {"answer": "done"}, "error": None}
BUSY = {
    **DONE,
    "ok": False,
    "result": None,
    "error": "Too many calls",
    "error_code": "RATE_LIMITED",
    "error_details": {"retry_after": 0.01},
}


class Peer:
    """A server that answers each request with the next of its prepared replies; None cuts the connection."""

    def __init__(self, replies: list[bytes | None]) -> None:
        self.replies = replies
        self.requests = 0
        self.url = ""
        self.serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        await reader.readexactly(length)
        reply = self.replies[min(self.requests, len(self.replies) - 1)]
        self.requests += 1
        if reply is not None:
            writer.write(reply)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def peer(*replies: bytes | None, port: int = 0) -> AsyncIterator[Peer]:
    answering = Peer(list(replies))
    async with await asyncio.start_server(answering.accept, "127.0.0.1", port) as server:
        answering.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield answering
        async with asyncio.timeout(WAIT_TIMEOUT):
            await asyncio.gather(*answering.serving)


def http(status: str, body: Any, kind: str = "application/json") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _head(status, kind) + f"content-length: {len(content)}\r\n\r\n".encode() + content


def sse(*events: dict[str, Any]) -> bytes:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return _head("200 OK", "text/event-stream") + b"\r\n" + body


def _head(status: str, kind: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: {kind}\r\n".encode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_every_operation_of_a_node_is_a_method() -> None:
    async with running(Percy(tags=["thinker"]).agent) as node, FabricClient(node.url, PSK) as fabric:
        assert [agent["agent_id"] for agent in await fabric.agents(capability="plan", tag="thinker")] == ["percy"]
        assert await fabric.agents(capability="juggle") == []
        assert (await fabric.describe("percy"))["version"] == "2.1.0"
        assert (await fabric.route("percy", "reason"))["selected_agent"] == "percy"
        assert "math.calculate" in [tool["tool_id"] for tool in await fabric.tools(category="math")]
        assert (await fabric.tool("math.calculate", expression="6*7")).data["result"] == 42
        assert (await fabric.tool("fabric.tool.agent.percy.reason", task="x")).answer == "x"
        assert (await fabric.health())["ok"] is True


async def test_a_call_brings_the_answer_and_its_trace() -> None:
    async with running(Percy().agent) as node, FabricClient(node.url, PSK) as fabric:
        mine = new_trace()
        result = await fabric.call("percy", "reason", "think", {"depth": 3}, trace=mine)
        assert result.data == {"answer": "think", "depth": 3}
        assert (result.trace.trace_id, result.trace.parent_span_id) == (mine.trace_id, mine.span_id)
        assert result.fallback is None


async def test_a_stream_brings_typed_events_and_ends_with_the_result() -> None:
    async with running(Percy().agent) as node, FabricClient(node.url, PSK) as fabric:
        events = [event async for event in fabric.stream("percy", "plan", "one two")]
        assert [event.text for event in events if event.kind == "token"] == ["one", "two"]
        assert {"percent": 50.0, "message": "half way"} in [event.data for event in events if event.kind == "progress"]
        assert events[-1].kind == "final"
        assert events[-1].data["answer"] == "ONE TWO"
        assert {event.trace.trace_id for event in events} == {events[0].trace.trace_id}


def mirror() -> Agent:
    """Shows which conversation it is in, and what came along."""
    mirror = Agent("mirror")

    @mirror.capability
    async def show(task: str, call: Call, things: list[Part]) -> dict[str, Any]:
        own = str(call.conversation_id or "").partition(".")[2]  # after what tells callers apart
        return {"conversation": own or None, "came": [thing.name for thing in things]}

    return mirror


async def test_a_call_belongs_to_a_conversation_and_brings_what_is_attached() -> None:
    note = Part(kind="file", blob="bm90ZQ==", mime_type="text/plain", name="note.txt")
    link = Attachment(type="url", content="https://example.org/a.pdf", name="a.pdf")
    with_both: dict[str, Any] = {"attachments": [note, link], "conversation_id": "tea-time"}
    seen = {"conversation": "tea-time", "came": ["note.txt", "a.pdf"]}
    async with running(mirror()) as node, FabricClient(node.url, PSK) as fabric:
        assert (await fabric.call("mirror", "show", "x", **with_both)).data == seen
        assert [event async for event in fabric.stream("mirror", "show", "x", **with_both)][-1].data == seen
        assert (await (await fabric.submit("mirror", "show", "x", **with_both)).result()).data == seen
        alone = await fabric.call("mirror", "show", "x", attachments=[note])
        assert alone.data == {"conversation": None, "came": ["note.txt"]}
        with pytest.raises(BadInput):
            await fabric.call("mirror", "show", "x", attachments=[note], conversation_id="")


def test_the_sync_twin_knows_conversations_and_attachments_too() -> None:
    note = Part(kind="file", blob="bm90ZQ==", mime_type="text/plain", name="note.txt")
    with running_in_thread(mirror()) as url, SyncFabricClient(url, PSK) as fabric:
        called = fabric.call("mirror", "show", "x", attachments=[note], conversation_id="tea-time")
        assert called.data == {"conversation": "tea-time", "came": ["note.txt"]}
        *_, last = fabric.stream("mirror", "show", "x", attachments=[note], conversation_id="tea-time")
        assert last.data == called.data


async def test_leaving_a_stream_cancels_the_agents_work() -> None:
    percy = Percy()
    async with running(percy.agent) as node, FabricClient(node.url, PSK) as fabric:
        events = fabric.stream("percy", "wait_and_talk", "x")
        async for event in events:
            if event.kind == "token":
                break
        await events.aclose()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await percy.cancelled.wait()


async def test_errors_are_raised_as_what_they_are_with_their_trace() -> None:
    async with running(Percy().agent) as node, FabricClient(node.url, PSK) as fabric:
        with pytest.raises(AgentNotFound, match=r"nearest: percy") as missing:
            await fabric.call("percey", "reason", "x")
        assert missing.value.details["agent_id"] == "percey"
        assert missing.value.trace_id
        with pytest.raises(BadInput):
            await fabric.call("percy", "reason", "x", {"depth": "deep"})
        with pytest.raises(UpstreamFailed):
            await fabric.call("percy", "fail", "x")
        with pytest.raises(UpstreamFailed) as streamed:
            _ = [event async for event in fabric.stream("percy", "fail", "x")]
        assert streamed.value.trace_id
    async with running(Percy().agent) as node, FabricClient(node.url, "another-key") as stranger:
        with pytest.raises(AuthInvalid):
            await stranger.agents()


async def test_a_call_that_takes_too_long_ends_with_the_nodes_own_word() -> None:
    percy = Percy()
    async with running(percy.agent) as node, FabricClient(node.url, PSK) as fabric:
        with pytest.raises(CallTimeout) as late:
            await fabric.call("percy", "wait", "x", timeout=0.2)
        assert late.value.trace_id
        assert percy.cancelled.is_set()


async def test_an_answer_of_a_fallback_says_so() -> None:
    gone = {
        "agent_id": "gone",
        "runtime": "http",
        "endpoint": {"uri": f"http://127.0.0.1:{free_port()}"},
        "capabilities": [{"name": "reason"}],
        "fallbacks": ["percy"],
    }
    async with running(Percy().agent, manifests=[gone]) as node, FabricClient(node.url, PSK) as fabric:
        result = await fabric.call("gone", "reason", "x")
        assert result.answer == "x"
        assert result.fallback is not None
        assert (result.fallback.requested, result.fallback.used) == ("gone", "percy")


async def test_a_busy_node_is_asked_again_after_the_time_it_names() -> None:
    refusal = http("429 Too Many Requests", BUSY)
    async with peer(refusal, http("200 OK", DONE)) as busy, FabricClient(busy.url) as fabric:
        assert (await fabric.call("percy", "reason", "x")).answer == "done"
        assert busy.requests == 2
    async with peer(refusal) as busy, FabricClient(busy.url) as fabric:
        with pytest.raises(RateLimited):
            await fabric.call("percy", "reason", "x")
        assert busy.requests == 3
        with pytest.raises(RateLimited):
            _ = [event async for event in fabric.stream("percy", "reason", "x")]


async def test_a_call_whose_answer_was_lost_is_never_repeated_but_a_look_is() -> None:
    async with peer(None) as broken, FabricClient(broken.url) as fabric:
        with pytest.raises(UpstreamInterrupted):
            await fabric.call("percy", "reason", "x")
        assert broken.requests == 1
        with pytest.raises(UpstreamInterrupted):
            _ = [event async for event in fabric.stream("percy", "reason", "x")]
        assert broken.requests == 2
    listed = {**DONE, "result": {"agents": [], "count": 0}}
    async with peer(None, http("200 OK", listed)) as flaky, FabricClient(flaky.url) as fabric:
        assert await fabric.agents() == []
        assert flaky.requests == 2


async def test_a_node_that_is_just_starting_is_found() -> None:
    port = free_port()
    async with FabricClient(f"http://127.0.0.1:{port}") as fabric:
        calling = asyncio.ensure_future(fabric.call("percy", "reason", "x"))
        await asyncio.sleep(0)
        async with peer(http("200 OK", DONE), port=port):
            assert (await calling).answer == "done"


def test_a_node_elsewhere_is_not_to_be_started_here_and_a_certificate_is_named() -> None:
    away = NodeUnreachable("http://lab.example:8000", "No address for lab.example")
    assert away.message == "No node at http://lab.example:8000: No address for lab.example"
    unknown = NodeUnreachable("https://127.0.0.1:8443", "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    assert unknown.message.startswith("The certificate of https://127.0.0.1:8443 is not trusted here (")


async def test_where_no_node_is_the_error_says_how_to_start_one() -> None:
    async with FabricClient(f"http://127.0.0.1:{free_port()}") as fabric:
        with pytest.raises(NodeUnreachable, match="Start one with: a2a-fabric up"):
            await fabric.agents()


@pytest.mark.parametrize(
    "reply",
    [
        http("200 OK", b"<html>hello</html>", "text/html"),
        http("502 Bad Gateway", b"upstream", "text/plain"),
        http("200 OK", {"ok": "perhaps"}),
        http("200 OK", [1]),
        sse({"event": "final", "data": {"ok": "perhaps"}, "trace": TRACE}),
        sse({"hello": "world"}),
        sse({"event": "token", "data": {"text": "half"}, "trace": TRACE}),
    ],
)
async def test_what_is_no_answer_of_a_node_is_a_typed_error(reply: bytes) -> None:
    async with peer(reply) as odd, FabricClient(odd.url) as fabric:
        with pytest.raises((UpstreamFailed, UpstreamInterrupted)):
            _ = [event async for event in fabric.stream("percy", "reason", "x")]
        assert odd.requests == 1


async def test_events_of_kinds_that_are_not_known_yet_are_passed_over() -> None:
    events = (
        {"event": "fireworks", "data": {}, "trace": TRACE},
        {"event": "final", "data": {"ok": True, "result": {"answer": "done"}}, "trace": TRACE},
    )
    async with peer(sse(*events)) as newer, FabricClient(newer.url) as fabric:
        assert [event.kind async for event in fabric.stream("percy", "reason", "x")] == ["final"]


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="not the URL of a node"):
        FabricClient("percy.example")


def test_the_sync_twin_does_the_same_without_a_loop() -> None:
    agent = Agent("echo")

    @agent.capability
    async def words(task: str) -> AsyncIterator[str]:
        """Word by word."""
        for word in task.split():
            yield word

    with running_in_thread(agent) as url, SyncFabricClient(url, PSK) as fabric:
        assert [found["agent_id"] for found in fabric.agents()] == ["echo"]
        assert fabric.call("echo", "words", "a b").answer == "ab"
        assert "".join(event.text for event in fabric.stream("echo", "words", "a b")) == "ab"
        assert fabric.tool("math.calculate", expression="1+1").data["result"] == 2
        with pytest.raises(AgentNotFound) as missing:
            fabric.describe("nobody")
        assert missing.value.trace_id
        with pytest.raises(FabricError):
            next(fabric.stream("nobody", "words", "x"))
        abandoned = fabric.stream("echo", "words", "a b")
        next(abandoned)
    fabric.close()  # twice does no harm
    abandoned.close()


def test_the_twins_have_the_same_surface() -> None:
    names = {name for name in vars(FabricClient) if not name.startswith("_")} - {"aclose"}
    assert names == {name for name in vars(SyncFabricClient) if not name.startswith("_")} - {"close", "url"}
    for name in names:
        asynchronous = inspect.signature(getattr(FabricClient, name)).parameters
        assert asynchronous == inspect.signature(getattr(SyncFabricClient, name)).parameters, name


@requirement("002-21", "004-32")
def test_the_sync_client_speaks_both_too() -> None:
    with running_in_thread(percy(), config=CONFIG) as url, SyncFabricClient(url, PSK) as fabric:
        assert fabric.directory.task("shout", {"text": "a"})["output"] == {"answer": "A"}
        assert [event["event"] for event in fabric.directory.stream("shout", {"text": "a"})][-1] == "final"
        sent = fabric.messages.send("percy", "hello", capability="shout")
        assert fabric.messages.reply(sent["id"])["metadata"]["in_reply_to"] == sent["id"]
        task = fabric.tasks.create("percy", {"text": "b"}, capability="shout")
        assert fabric.tasks.result(task["id"], WAIT_TIMEOUT)["output"] == {"answer": "B"}
        assert fabric.tasks.list(limit=3)
