"""Requests for a session whose process is being restarted wait for it, and only so many: they were not identified."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.mesh.relay import RequestRelay
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import ConnectFailed


class Restart:
    """A process that is away until the test says that it will not come back."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.waiting = 0
        self.served: list[str] = []
        app = RequestRelay(
            {}, lambda agent_id: None, lambda agent_id: True, self.wait_for_return, BodyLimit(1000)
        ).wrap(self.serve)
        self.app = app

    async def wait_for_return(self, name: str) -> PeerClient | None:
        self.waiting += 1
        try:
            await self.is_over.wait()
        finally:
            self.waiting -= 1
        return None

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.served.append(scope["client"][0])

    async def request(self, address: str, session: str = "anything~two") -> tuple[int, dict[bytes, bytes]] | None:
        """The refusal; None for a request that was served here."""
        messages: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/mcp",
            "headers": [(b"mcp-session-id", session.encode())],
            "client": (address, 1),
        }
        await self.app(scope, asyncio.Queue[Any]().get, send)
        return (messages[0]["status"], dict(messages[0]["headers"])) if messages else None


async def settle(restart: Restart, tasks: list[asyncio.Task[Any]]) -> None:
    async with asyncio.timeout(10):
        while restart.waiting + sum(task.done() for task in tasks) < len(tasks):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_stranger_cannot_take_all_waits_and_what_is_too_much_gets_503_at_once() -> None:
    restart = Restart()
    stranger = [asyncio.create_task(restart.request("192.0.2.1")) for _ in range(2000)]
    await settle(restart, stranger)
    held = restart.waiting
    assert held == 750
    refused = [refusal for task in stranger if task.done() and (refusal := task.result()) is not None]
    assert len(refused) == 2000 - held
    assert {status for status, _ in refused} == {503}
    assert refused[0][1][b"retry-after"] == b"1"

    client = [asyncio.create_task(restart.request("192.0.2.2"))]
    network = [asyncio.create_task(restart.request(f"2001:db8::{number:x}")) for number in range(1, 500)]
    await settle(restart, [*stranger, *client, *network])
    assert not client[0].done()
    assert held < restart.waiting < 1000  # one customer has many addresses of IPv6
    assert await restart.request("192.0.2.1", session="its-own") is None

    restart.is_over.set()
    await asyncio.gather(*stranger, *client, *network)
    assert restart.waiting == 0
    assert await restart.request("192.0.2.1") is None


async def test_only_so_many_connections_wait_for_a_worker_that_starts(tmp_path: Path) -> None:
    client = OutboundClient(unix_socket=tmp_path / "w1.sock", connect_timeout=30.0)

    async def ask() -> None:
        async with client.stream("GET", "http://worker/", headers={}, body=None, timeout=30.0, limit=1000):
            pass

    tasks = [asyncio.create_task(ask()) for _ in range(505)]
    try:
        done, pending = await asyncio.wait(tasks, timeout=3.0)
        assert (len(done), len(pending)) == (5, 500)
        assert all(isinstance(task.exception(), ConnectFailed) for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.aclose()
