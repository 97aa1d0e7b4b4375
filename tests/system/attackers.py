"""Callers who try to hurt others, each in its own process: `python -m tests.system.attackers NAME URL KEY SECONDS`.

Each attack holds what it got for as long as it runs and lets go of it at the end. All loops
are bounded in time and number, and only the node's own loopback address is asked. What the
node answers is counted and printed, so that the test can tell an attack from a request that was wrong.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

Attack = Callable[["Attacker"], Awaitable[None]]
_PAUSE = 0.02  # between two requests of one loop: it is the node that is tried, not the machine


class Attacker:
    def __init__(self, url: str, key: str, seconds: float) -> None:
        self.url = url
        self.key = key
        self.ends_at = time.monotonic() + seconds
        self.outcomes: Counter[str] = Counter()  # of what was read: error codes, or "ok"
        self._hold: list[Any] = []

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends_at

    @property
    def left(self) -> float:
        return max(0.1, self.ends_at - time.monotonic())

    def head(self, verb: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        told = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Content-Type": "application/json", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return f"{verb} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def call(self, name: str, arguments: dict[str, Any]) -> bytes:
        body = json.dumps({"name": name, "arguments": arguments}).encode()
        return self.head("POST", "/mcp/call", body, **self.authorized)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
        self._hold.append((reader, writer))
        return reader, writer

    async def flood(self, request: bytes, connections: int = 5) -> None:
        """Pipelined requests whose replies are not read."""

        async def one() -> None:
            with suppress(OSError):
                _, writer = await self.connect()
                while self.goes_on:
                    writer.write(request * 50)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(writer.drain(), self.left)
                    await asyncio.sleep(_PAUSE)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def hold(self, request: bytes, times: int) -> None:
        """As many connections with a request under way as the node lets in."""
        for _ in range(times):
            if not self.goes_on:
                break
            with suppress(OSError):
                _, writer = await self.connect()
                writer.write(request)
            await asyncio.sleep(_PAUSE / 10)
        await asyncio.sleep(self.left)

    async def post(self, path: str, bodies: Callable[[int], tuple[Any, dict[str, str]]], most: int = 2000) -> None:
        """One request after the other, each read to its end."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(headers=self.authorized, timeout=timeout) as session:
            for number in range(most):
                if not self.goes_on:
                    return
                body, headers = bodies(number)
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(self.url + path, json=body, headers=headers) as reply:
                        self.outcomes[_name_outcome(await reply.read())] += 1
                await asyncio.sleep(_PAUSE)


def _name_outcome(reply: bytes) -> str:
    try:
        envelope = json.loads(reply)
    except ValueError:
        return "ok"  # an event stream
    return str(envelope.get("error_code", "error")) if envelope.get("error") else "ok"


ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


@attack
async def pipelined_flood_without_a_key(attacker: Attacker) -> None:
    await attacker.flood(attacker.head("GET", "/.well-known/agent-card.json"))


@attack
async def pipelined_calls_that_are_not_read(attacker: Attacker) -> None:
    await attacker.flood(attacker.call("fabric.agent.list", {"details": True}))


@attack
async def large_replies_that_are_not_read(attacker: Attacker) -> None:
    big = attacker.call("fabric.call", {"agent_id": "worker", "capability": "big", "task": "x"})
    await attacker.hold(big, 40)


@attack
async def slow_heads(attacker: Attacker) -> None:
    await attacker.hold(b"POST /mcp/call HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", 400)


@attack
async def held_calls(attacker: Attacker) -> None:
    call = {"agent_id": "worker", "capability": "hold", "task": "x", "timeout_ms": 60_000}
    await attacker.hold(attacker.call("fabric.call", call), 300)


@attack
async def held_streams(attacker: Attacker) -> None:
    call = {"agent_id": "worker", "capability": "hold", "task": "x", "timeout_ms": 60_000, "stream": True}
    await attacker.hold(attacker.call("fabric.call", call), 300)


@attack
async def impatient_calls(attacker: Attacker) -> None:
    def body(number: int) -> tuple[Any, dict[str, str]]:
        call = {"agent_id": "worker", "capability": "hold", "task": "x", "timeout_ms": 1}
        return {"name": "fabric.call", "arguments": call}, {}

    await attacker.post("/mcp/call", body)


@attack
async def many_sessions(attacker: Attacker) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "m", "version": "1"}}

    def body(number: int) -> tuple[Any, dict[str, str]]:
        request = {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}
        return request, {"Accept": "application/json, text/event-stream"}

    await attacker.post("/mcp", body)


@attack
async def many_jobs(attacker: Attacker) -> None:
    def body(number: int) -> tuple[Any, dict[str, str]]:
        call = {"agent_id": "worker", "capability": "hold", "task": str(number), "async": True}
        return {"name": "fabric.call", "arguments": call}, {}

    await attacker.post("/mcp/call", body)


@attack
async def slow_tools(attacker: Attacker) -> None:
    lines = [str(number * 7919 % 20) for number in range(3_000)]  # many equal lines: a second of difflib's time
    texts = {"original": "\n".join(lines), "modified": "\n".join(reversed(lines))}

    def body(number: int) -> tuple[Any, dict[str, str]]:
        return {"name": "fabric.tool.text.diff", "arguments": texts}, {}

    await asyncio.gather(*(attacker.post("/mcp/call", body) for _ in range(8)))


@attack
async def schema_bombs(attacker: Attacker) -> None:
    definitions = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)}
    bomb = {"$defs": {**definitions, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}
    nest: dict[str, Any] = {"type": "object"}
    for _ in range(400):
        nest = {"allOf": [nest]}
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$(?=b)"}}}

    def body(number: int) -> tuple[Any, dict[str, str]]:
        schema = (bomb, nest, pattern)[number % 3]
        manifest = {
            "agent_id": f"bomb-{number // 2 % 10}",
            "endpoint": {"uri": "http://127.0.0.1:9/"},
            "runtime": "http",
            "capabilities": [{"name": "go", "input_schema": schema}],
        }
        if number % 2:
            call = {"agent_id": f"bomb-{number // 2 % 10}", "capability": "go", "task": "", "context": {"a": "a" * 40}}
            return {"name": "fabric.call", "arguments": {**call, "timeout_ms": 500}}, {}
        return {"name": "fabric.agent.register", "arguments": manifest}, {}

    await attacker.post("/mcp/call", body)


@attack
async def loops_through_the_node(attacker: Attacker) -> None:
    """An agent whose address is the node's own, and calls of it that call it again."""
    endpoint = {"uri": f"{attacker.url}/mcp", "headers": attacker.authorized}
    call: dict[str, Any] = {"agent_id": "mirror", "capability": "fabric_call", "task": "", "timeout_ms": 2000}
    for _ in range(8):
        call = {**call, "context": call}

    def body(number: int) -> tuple[Any, dict[str, str]]:
        if number == 0:
            manifest = {"agent_id": "mirror", "endpoint": endpoint, "runtime": "mcp"}
            return {"name": "fabric.agent.register", "arguments": manifest}, {}
        return {"name": "fabric.call", "arguments": call}, {}

    await attacker.post("/mcp/call", body)


async def main() -> None:
    name, url, key, seconds = sys.argv[1:5]
    attacker = Attacker(url, key, float(seconds))
    async with asyncio.timeout(float(seconds) + 60):
        await ATTACKS[name](attacker)
    print(json.dumps(attacker.outcomes))


if __name__ == "__main__":
    asyncio.run(main())
