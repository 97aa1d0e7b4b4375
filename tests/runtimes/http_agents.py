"""Agents over HTTP that misbehave on request: bare sockets, one behaviour per path, a record of what they saw.

They never sleep: what hangs waits until the gateway leaves.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

WAIT_TIMEOUT = 30.0


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Exchange:
    """One request and the connection it came on."""

    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    agents: Agents

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, body: Any, status: str = "200 OK", content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(head(status, content_type, f"Content-Length: {len(data)}") + data)

    async def open_stream(self) -> None:
        await self.send(head("200 OK", "text/event-stream"))

    async def event(self, kind: str, **data: Any) -> None:
        await self.send(b"data: " + json.dumps({"event": kind, "data": data}).encode() + b"\n\n")

    async def until_gateway_leaves(self) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT):
            with suppress(ConnectionError):
                await self.reader.read()
        self.agents.left.set()

    def reset(self) -> None:
        """Break the connection so that the other side sees an error, not an end."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


@dataclass
class Agents:
    """Where they listen, what they were sent, and whether the gateway hung up."""

    behaviours: dict[str, Behaviour]
    port: int = 0
    takes_get: bool = True
    calls: list[Received] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def manifest(self, name: str, **more: Any) -> dict[str, Any]:
        """The agent called like its behaviour; what it does is called `act`, in plain and streamed form."""
        act = {"name": "act", "streaming": True, **more.pop("act", {})}
        endpoint = {"transport": "http", "uri": self.url(f"/{name}"), **more.pop("endpoint", {})}
        return {"agent_id": name, "runtime": "http", "endpoint": endpoint, "capabilities": [act], **more}

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await read_request(reader)
            exchange = Exchange(request, reader, writer, self)
            if request.path == "/health":
                await exchange.reply({"status": "ok"})
            elif request.method == "GET" and not self.takes_get:  # a probe: these agents take only POST requests
                await exchange.reply({"detail": "Method Not Allowed"}, status="405 Method Not Allowed")
            else:
                self.calls.append(request)
                self.arrived.set()
                await self.behaviours[request.path.strip("/")](exchange)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(status: str, content_type: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", "Connection: close", *more, "", ""]
    return "\r\n".join(lines).encode()


async def read_request(reader: asyncio.StreamReader) -> Received:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    headers = {name.lower(): value for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body)


@asynccontextmanager
async def agents(behaviours: dict[str, Behaviour], *, takes_get: bool = True) -> AsyncIterator[Agents]:
    """`takes_get`: whether GET requests are theirs to answer; else they are told that POST is wanted."""
    found = Agents(behaviours, takes_get=takes_get)
    server = await asyncio.start_server(found.connected, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await server.wait_closed()
            await asyncio.gather(*found.serving)


def dead_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# well-behaved


async def answer(x: Exchange) -> None:
    arguments = x.request.json["arguments"]
    await x.reply({"ok": True, "result": {"answer": f"heard {arguments.get('task', '')}"}})


async def talk(x: Exchange) -> None:
    """All the kinds of events, each with a trace of the agent's own, then the result."""
    await x.open_stream()
    await x.event("status", status="running", message="thinking", trace={"trace_id": "not ours"})
    await x.event("token", text="one ")
    await x.event("tool_call", tool="math.calculate", arguments={"expression": "1+1"})
    await x.event("progress", percent=50)
    await x.event("token", text="two")
    await x.event("something_new", of="a later version")
    await x.event("final", ok=True, result={"answer": "one two", "citations": [{"title": "a book"}]})


async def mumble(x: Exchange) -> None:
    """Words, and a final event without a result."""
    await x.open_stream()
    await x.send(b": a comment\n\nevent: token\nid: 7\n")
    await x.event("token", text="wo")
    await x.send(b'data: {"event": "token",\ndata: "data": {"text": "rds"}}\n\n')  # one event on two lines
    await x.event("final", ok=True)


async def refuse(x: Exchange) -> None:
    await x.reply({"ok": False, "error": {"code": "BAD_INPUT", "message": "a number, please", "details": {"n": 1}}})


async def refuse_in_words(x: Exchange) -> None:
    await x.reply({"ok": False, "error": "no, thank you"})


async def refuse_credentials(x: Exchange) -> None:
    await x.reply({"ok": False, "error": {"code": "AUTH_DENIED", "message": "who are you?"}}, "401 Unauthorized")


# faulty


async def hang(x: Exchange) -> None:
    await x.until_gateway_leaves()


async def hang_in_stream(x: Exchange) -> None:
    await x.open_stream()
    await x.event("token", text="and then")
    await x.until_gateway_leaves()


async def reset(x: Exchange) -> None:
    x.reset()


async def reset_in_body(x: Exchange) -> None:
    await x.send(head("200 OK", "application/json", "Content-Length: 1000") + b'{"ok": true, "res')
    x.reset()


async def close_in_body(x: Exchange) -> None:
    await x.send(head("200 OK", "application/json", "Content-Length: 1000") + b'{"ok": true, "res')


async def truncated(x: Exchange) -> None:
    await x.reply(b'{"ok": true, "result": {"answer": "ha')


async def web_page(x: Exchange) -> None:
    await x.reply(b"<html>It works!</html>", content_type="text/html")


async def broken_page(x: Exchange) -> None:
    await x.reply(b"<html>500</html>", "500 Internal Server Error", "text/html")


async def unavailable(x: Exchange) -> None:
    await x.reply(b"later", "503 Service Unavailable", "text/plain")


async def bad_gateway(x: Exchange) -> None:
    await x.reply(b"", "502 Bad Gateway", "text/plain")


async def redirect(x: Exchange) -> None:
    location = f"Location: {x.agents.url('/answer')}"
    await x.send(head("307 Temporary Redirect", "application/json", location, "Content-Length: 2") + b"{}")


async def not_http(x: Exchange) -> None:
    await x.send(b"SSH-2.0-OpenSSH_9.2\r\n")


async def garbage_events(x: Exchange) -> None:
    await x.open_stream()
    await x.send(b"data: \x00\xff{{{ not json\n\n")


async def cut_stream(x: Exchange) -> None:
    await x.open_stream()
    await x.event("token", text="half an ans")


async def reset_stream(x: Exchange) -> None:
    await x.open_stream()
    await x.event("token", text="half an ans")
    x.reset()


async def flood(x: Exchange) -> None:
    """Words without end, as fast as they are taken."""
    await x.open_stream()
    line = b"data: " + json.dumps({"event": "token", "data": {"text": "x" * 8000}}).encode() + b"\n\n"
    with suppress(ConnectionError):
        while True:
            await x.send(line)
    x.agents.left.set()


async def huge_event(x: Exchange) -> None:
    """One line that never ends."""
    await x.open_stream()
    with suppress(ConnectionError):
        await x.send(b'data: {"event": "token", "data": {"text": "')
        while True:
            await x.send(b"x" * 65536)
    x.agents.left.set()


async def huge_reply(x: Exchange) -> None:
    with suppress(ConnectionError):
        await x.send(head("200 OK", "application/json", "Transfer-Encoding: chunked"))
        while True:
            await x.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
    x.agents.left.set()


async def nested(x: Exchange) -> None:
    await x.reply(b"[" * 100_000)


SLOW_NUMBERS = b"[" + b"1e300," * 2000 + b"1]"


async def slow_numbers(x: Exchange) -> None:
    """Numbers that take a decoder a hundred times as long as others."""
    await x.reply(SLOW_NUMBERS)


async def slow_numbers_event(x: Exchange) -> None:
    await x.open_stream()
    await x.send(b"data: " + SLOW_NUMBERS + b"\n\n")


# other people's APIs


async def chat(x: Exchange) -> None:
    """An API in the style of chat completions: it checks what it is sent, and streams when asked to."""
    given = x.request.json
    if x.request.headers.get("authorization") != "Bearer sk-test" or given["model"] != "small":
        await x.reply({"error": {"message": "no such model"}}, "404 Not Found")
        return
    words = given["messages"][-1]["content"].upper()
    if not given["stream"]:
        await x.reply({"choices": [{"message": {"role": "assistant", "content": words}}]})
        return
    await x.open_stream()
    for word in words.split(" "):
        await x.send(b"data: " + json.dumps({"choices": [{"delta": {"content": word}}]}).encode() + b"\n\n")
    await x.send(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n')
    await x.send(b"data: [DONE]\n\n")


BEHAVIOURS: dict[str, Behaviour] = {
    name: behaviour
    for name, behaviour in globals().items()
    if asyncio.iscoroutinefunction(behaviour) and name not in ("read_request",)
}
