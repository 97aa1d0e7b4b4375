"""The same agents called without a gateway: with the protocol's own client, or with the HTTP client that the node uses.

Each function connects once and yields two calls: `plain`, and `streamed`, which returns the
number of events. `streamed` is None if the protocol has no streams.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import httpx
import httpx2
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_data_part
from a2a.types import Message, Role, SendMessageRequest
from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from google.protobuf.json_format import ParseDict
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from a2a_fabric.client import FabricClient
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.proto.messages import CallRequest
from a2a_fabric.runtimes.proto.service import AgentStub

LIMIT = 64 * 1024 * 1024
TIMEOUT = 60.0
JSON = {"content-type": "application/json", "accept": "application/json"}
EVENTS = {"content-type": "application/json", "accept": "text/event-stream"}

Plain = Callable[[dict[str, Any]], Awaitable[object]]
Streamed = Callable[[dict[str, Any]], Awaitable[int]]


@dataclass(frozen=True)
class DirectCalls:
    plain: Plain
    streamed: Streamed | None = None
    port: int | None = None  # that calls go to, if it is not that of the endpoint


Endpoint = dict[str, Any]
Direct = Callable[[Endpoint], AbstractAsyncContextManager[DirectCalls]]


def port_of(url: str) -> int:
    """The port of an address with or without a scheme."""
    return int(url.partition("//")[2].partition("/")[0].rpartition(":")[2] if "//" in url else url.rpartition(":")[2])


async def _post(http: OutboundClient, url: str, body: Any, headers: dict[str, str] = JSON) -> Any:
    reply = await http.request(
        "POST", url, headers=headers, body=json.dumps(body).encode(), timeout=TIMEOUT, limit=LIMIT
    )
    if reply.status >= 300:
        raise SystemExit(f"{url}: HTTP {reply.status} {reply.body[:200]!r}")
    return json.loads(reply.body)


async def _count_events(http: OutboundClient, url: str, body: Any, mark: bytes) -> int:
    """The number of events that contain this mark."""
    async with http.stream(
        "POST", url, headers=EVENTS, body=json.dumps(body).encode(), timeout=TIMEOUT, limit=LIMIT
    ) as reply:
        return sum([mark in data async for data in sse.iter_event_data(reply.chunks(), limit=LIMIT)])


def _over_http(plain: Callable[..., Awaitable[object]], streamed: Callable[..., Awaitable[int]] | None) -> Direct:
    @asynccontextmanager
    async def connect(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
        http = OutboundClient()
        try:
            yield DirectCalls(
                lambda given: plain(http, endpoint, given),
                (lambda given: streamed(http, endpoint, given)) if streamed else None,
            )
        finally:
            await http.aclose()

    return connect


http_plain = _over_http(
    lambda http, there, given: _post(http, there["uri"], {"name": "echo", "arguments": given}),
    lambda http, there, given: _count_events(http, there["uri"], {"name": "count", "arguments": given}, b'"token"'),
)


def _rpc(method: str, action: str, given: dict[str, Any]) -> dict[str, Any]:
    task = uuid.uuid4().hex
    params = {"taskId": task, "action": action, "sender": "bench", "input": given}
    return {"jsonrpc": "2.0", "id": task, "method": method, "params": params}


rpc = _over_http(
    lambda http, there, given: _post(http, there["uri"], _rpc("a2a/task", "echo", given)),
    lambda http, there, given: _count_events(http, there["uri"], _rpc("a2a/stream", "count", given), b'"token"'),
)


def _run(agent: str, mode: str, given: dict[str, Any]) -> dict[str, Any]:
    part = {"content_type": "application/json", "content": json.dumps(given)}
    return {"agent_name": agent, "mode": mode, "input": [{"role": "user", "parts": [part]}]}


acp = _over_http(
    lambda http, there, given: _post(http, f"{there['uri']}/runs", _run("echo", "sync", given)),
    lambda http, there, given: _count_events(
        http, f"{there['uri']}/runs", _run("count", "stream", given), b'"type":"message.part"'
    ),
)


async def _zero(http: OutboundClient, there: Endpoint, given: dict[str, Any]) -> object:
    """Send, then poll until the task is done, at the interval of the runtime."""
    headers = {**JSON, "authorization": f"Bearer {there['token']}"}
    words = f"Asked for: echo\n\n```json\n{json.dumps(given)}\n```"
    message = {
        "role": "user",
        "kind": "message",
        "messageId": uuid.uuid4().hex,
        "parts": [{"kind": "text", "text": words}],
    }
    params: dict[str, Any] = {"message": message, "configuration": {"acceptedOutputModes": ["text/plain"]}}
    url = f"{there['uri']}/a2a/"
    request = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    task = (await _post(http, url, request, headers))["result"]
    pause = 0.02
    while task["status"]["state"] in ("submitted", "working"):
        look = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": task["id"]}}
        task = (await _post(http, url, look, headers))["result"]
        if task["status"]["state"] in ("submitted", "working"):
            await asyncio.sleep(pause)
            pause *= 1.5
    return task


agentzero = _over_http(_zero, None)


async def _task(http: OutboundClient, there: Endpoint, given: dict[str, Any]) -> object:
    body = {"id": f"task_{uuid.uuid4().hex}", "agentId": there["agent"], "capability": "echo", "input": given}
    base = there["uri"]
    task = await _post(http, f"{base}/tasks", body)
    pause = 0.02
    while task["status"] in ("submitted", "pending", "queued", "running", "working", "in_progress"):
        reply = await http.request("GET", f"{base}/tasks/{task['id']}", headers=JSON, timeout=TIMEOUT, limit=LIMIT)
        task = json.loads(reply.body)
        if task["status"] in ("submitted", "pending", "queued", "running", "working", "in_progress"):
            await asyncio.sleep(pause)
            pause *= 1.5
    return task


rest = _over_http(_task, None)


@asynccontextmanager
async def fabric(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
    async with FabricClient(endpoint["uri"], endpoint["psk"]) as node:
        agent = endpoint["agent"]

        async def streamed(given: dict[str, Any]) -> int:
            return sum([event.kind == "token" async for event in node.stream(agent, "count", context=given)])

        yield DirectCalls(lambda given: node.call(agent, "echo", context=given), streamed)


def _mcp(mode: str) -> Direct:
    @asynccontextmanager
    async def connect(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
        async with AsyncExitStack() as stack:
            if "command" in endpoint:
                program, *arguments = endpoint["command"]
                transport: Any = stdio_client(StdioServerParameters(command=program, args=arguments))
            else:
                http = await stack.enter_async_context(httpx2.AsyncClient(timeout=TIMEOUT))
                transport = streamable_http_client(endpoint["uri"], http_client=http)
            client = await stack.enter_async_context(Client(transport, mode=mode))

            async def streamed(given: dict[str, Any]) -> int:
                count = 0

                async def progress(progress: float, total: float | None, message: str | None) -> None:
                    nonlocal count
                    count += 1

                await client.call_tool("count", given, progress_callback=progress)
                return count

            yield DirectCalls(lambda given: client.call_tool("echo", given), streamed)

    return connect


mcp_handshake = _mcp("legacy")
mcp_stateless = _mcp("2026-07-28")


@asynccontextmanager
async def jsonl(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
    child = await asyncio.create_subprocess_exec(
        *endpoint["command"], stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LIMIT
    )
    stdin, stdout = child.stdin, child.stdout
    assert stdin is not None
    assert stdout is not None

    async def call(name: str, given: dict[str, Any], *, stream: bool = False) -> int:
        request = {"id": uuid.uuid4().hex, "name": name, "arguments": given, "stream": stream}
        stdin.write(json.dumps(request).encode() + b"\n")
        count = 0
        while "ok" not in (line := json.loads(await stdout.readline())):
            count += line.get("event") == "token"
        if not line["ok"]:
            raise SystemExit(f"{name}: {line}")
        return count

    try:
        yield DirectCalls(lambda given: call("echo", given), lambda given: call("count", given, stream=True))
    finally:
        stdin.close()
        await child.wait()


def _a2a(binding: str) -> Direct:
    @asynccontextmanager
    async def connect(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
        async with httpx.AsyncClient(timeout=TIMEOUT) as http:

            def config(streaming: bool) -> ClientConfig:
                return ClientConfig(
                    streaming=streaming,
                    httpx_client=http,
                    grpc_channel_factory=grpc.aio.insecure_channel,
                    supported_protocol_bindings=[binding],
                )

            card = (await http.get(f"{endpoint['uri']}/.well-known/agent-card.json")).json()
            port = port_of(card["supportedInterfaces"][0]["url"])
            waiting = await create_client(endpoint["uri"], config(streaming=False))
            streaming = await create_client(endpoint["uri"], config(streaming=True))

            async def plain(given: dict[str, Any]) -> object:
                return [reply async for reply in waiting.send_message(_message("echo", given))]

            async def streamed(given: dict[str, Any]) -> int:
                replies = streaming.send_message(_message("count", given))
                return sum([_is_word(reply) async for reply in replies])

            try:
                yield DirectCalls(plain, streamed, port)
            finally:
                await waiting.close()
                await streaming.close()

    return connect


def _message(skill: str, given: dict[str, Any]) -> SendMessageRequest:
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[new_data_part(given)])
    ParseDict({"skill": skill}, message.metadata)
    return SendMessageRequest(message=message)


def _is_word(reply: Any) -> bool:
    return bool(reply.HasField("artifact_update") and reply.artifact_update.artifact.parts[0].HasField("text"))


a2a_jsonrpc, a2a_http, a2a_grpc = _a2a("JSONRPC"), _a2a("HTTP+JSON"), _a2a("GRPC")


class _Listener:
    """A minimal client of the Agent Client Protocol."""

    def __init__(self) -> None:
        self.heard = 0

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        self.heard += 1

    def on_connect(self, conn: Any) -> None:
        pass


@asynccontextmanager
async def agent_client(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
    """A session for each call, like calls without a conversation."""
    listener: Any = _Listener()
    program, *arguments = endpoint["command"]
    async with spawn_agent_process(listener, program, *arguments) as (agent, _):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)

        async def call(which: str, given: dict[str, Any]) -> int:
            before = listener.heard
            session = await agent.new_session(cwd="/", mcp_servers=[])
            words = f"Asked for: {which}\n\n```json\n{json.dumps(given)}\n```"
            await agent.prompt(session_id=session.session_id, prompt=[text_block(words)])
            return int(listener.heard - before)

        yield DirectCalls(lambda given: call("echo", given), lambda given: call("count", given))


@asynccontextmanager
async def over_grpc(endpoint: Endpoint) -> AsyncIterator[DirectCalls]:
    async with grpc.aio.insecure_channel(endpoint["uri"].removeprefix("grpc://")) as channel:
        stub = AgentStub(channel)

        def request(capability: str, given: dict[str, Any]) -> CallRequest:
            message = CallRequest()
            message.target.capability = capability
            message.input.arguments_json = json.dumps(given)
            return message

        async def plain(given: dict[str, Any]) -> object:
            return await stub.call(request("echo", given), timeout=TIMEOUT)

        async def streamed(given: dict[str, Any]) -> int:
            items = stub.stream(request("count", given), timeout=TIMEOUT)
            return sum([item.HasField("event") async for item in items])

        yield DirectCalls(plain, streamed)


# By the name that the agent has in the matrix.
DIRECT: dict[str, Direct] = {
    "http_sse": http_plain,
    "mcp_stateless": mcp_stateless,
    "mcp_http": mcp_handshake,
    "mcp_stdio": mcp_handshake,
    "process_jsonl": jsonl,
    "a2a_jsonrpc": a2a_jsonrpc,
    "a2a_http": a2a_http,
    "a2a_grpc": a2a_grpc,
    "acp": acp,
    "agentzero": agentzero,
    "agent_client": agent_client,
    "grpc": over_grpc,
    "fabric": fabric,
    "rpc": rpc,
    "rest": rest,
}
