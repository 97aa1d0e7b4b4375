"""The cost of our HTTP client beside a bare library: one echo server, both clients interleaved in one run.

python bench/clients.py
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import uvloop

from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import HTTPClient

BODY = b'{"text":"' + b"x" * 200 + b'"}'
HEADERS = {"content-type": "application/json", "authorization": "Bearer token", "traceparent": "00-1-1-01"}
LIMIT = 16 * 1024 * 1024
CONCURRENT = (1, 16, 64)
ROUNDS = 5
SECONDS = 0.3  # per client and round
Call = Callable[[], Awaitable[object]]


async def echo(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """The server's side: a bare ASGI application."""
    if scope["type"] != "http":
        return
    body = (await receive())["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(port: int) -> subprocess.Popen[bytes]:
    options = ["--app-dir", "bench", "--port", str(port), "--log-level", "warning", "--lifespan", "off"]
    server = subprocess.Popen([sys.executable, "-m", "uvicorn", "clients:echo", *options])
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return server
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the echo server did not start")


def ours(client: HTTPClient, url: str) -> Call:
    return lambda: client.request("POST", url, headers=HEADERS, body=BODY, timeout=10.0, limit=LIMIT)


def bare_aiohttp(session: aiohttp.ClientSession, url: str) -> Call:
    timeout = aiohttp.ClientTimeout(total=10.0)

    async def call() -> object:
        async with session.post(url, headers=HEADERS, data=BODY, timeout=timeout) as response:
            return await response.read()

    return call


async def measure(call: Call, concurrent: int) -> tuple[float, float]:
    """Requests per second and microseconds of this process's CPU per request."""
    done = 0
    began, cpu = time.perf_counter(), time.process_time()

    async def work() -> None:
        nonlocal done
        while time.perf_counter() - began < SECONDS:
            await call()
            done += 1

    await asyncio.gather(*[work() for _ in range(concurrent)])
    return done / (time.perf_counter() - began), (time.process_time() - cpu) / done * 1e6


async def main(url: str) -> None:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    client = OutboundClient()
    calls = {
        "OutboundClient": ours(client, url),
        "bare aiohttp": bare_aiohttp(session, url),
    }
    print(f"{'client':<16} {'at once':>7} {'calls/s':>9} {'CPU µs':>7}   (medians of {ROUNDS})")
    for concurrent in CONCURRENT:
        figures_by_name: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                figures_by_name[name].append(await measure(call, concurrent))
        for name, figures in figures_by_name.items():
            rate, cost = (statistics.median(column) for column in zip(*figures, strict=True))
            print(f"{name:<16} {concurrent:>7} {rate:>9,.0f} {cost:>7.0f}")
    await session.close()
    await client.aclose()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    server = serve(free)
    try:
        uvloop.run(main(f"http://127.0.0.1:{free}/"))
    finally:
        server.terminate()
        server.wait(10)
