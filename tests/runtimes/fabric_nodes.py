"""Two nodes and what lies between them: the entry that joins one to the other, and a line that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually

QUIET: dict[str, Any] = {"health": {"interval": 0}}  # only the nodes' own lists look after the agents


def entry(url: str, agent_id: str = "lab", **more: Any) -> dict[str, Any]:
    endpoint = {"uri": url, "psk": PSK, **more.pop("endpoint", {})}
    return {"agent_id": agent_id, "runtime": "fabric", "endpoint": endpoint, **more}


async def listed(node: Node, agent_id: str, status: str | None = "online") -> dict[str, Any]:
    """The agent, as soon as the node lists it in this state, or in any."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        envelope = await node.operation("fabric.agent.list", {"details": True})
        agents = {agent["agent_id"]: agent for agent in envelope["result"]["agents"]}
        found.update(agents.get(agent_id, {}))
        return bool(found) and status in (None, found["status"])

    await eventually(is_there)
    return found


class Line:
    """A TCP relay to a node. Cut, it refuses connections and drops those that it has.

    A line to port 0 accepts connections and keeps them waiting until it leads to a node.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._leads = asyncio.Event()
        if port:
            self._leads.set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.asked = bytearray()  # all that went to the node
        self.port = 0

    def lead_to(self, port: int) -> None:
        self._to = port
        self._leads.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await asyncio.gather(*self._open, return_exceptions=True)

    def drop(self) -> None:
        """Break all connections; new ones are welcome."""
        for task in self._open:
            task.cancel()

    def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._leads.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except (OSError, asyncio.CancelledError):  # the node is gone, or the line is cut
            writer.transport.abort()
            return
        try:
            ways = {
                asyncio.ensure_future(_pump(reader, far_writer, self.asked)),
                asyncio.ensure_future(_pump(far_reader, writer, bytearray())),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for each in (writer, far_writer):
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, carried: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            carried += data
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def line_to(node: Node) -> AsyncIterator[Line]:
    line = Line(node.port)
    await line.mend()
    try:
        yield line
    finally:
        await line.cut()
