"""Telling other nodes which topics have changed, by the server's notices.

A notice inside a transaction would make all commits of the database wait for one
another's flush to the disk. So they are sent right after, many changes at a
time, by a transaction of their own that waits for no disk. One that gets lost
is made up for by the look that every node takes each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.trace import new_id
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.transaction import Transaction

CHANNEL = "a2a_fabric"
EVERYTHING = "*"
OURS = new_id()  # the first word of each notice: whose it is. We ring our own bells without it.

_PAYLOAD = 7500  # bytes; the server takes up to 8000
_TOPICS = 5000  # that may wait; beyond it, "everything" is said
_NO_FLUSH = "SET LOCAL synchronous_commit = off"
_SAY = "SELECT count(pg_notify($1, said)) FROM unnest($2::text[]) AS said"


class Crier:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._topics: set[str] = set()
        self._news = asyncio.Event()

    def tell(self, topics: Iterable[str]) -> None:
        self._topics.update(topics)
        if len(self._topics) > _TOPICS:
            self._topics = {EVERYTHING}
        if self._topics:
            self._news.set()

    async def cry(self) -> None:
        """Until cancelled."""
        while True:
            await self._news.wait()
            await self.cry_once()

    async def cry_once(self) -> None:
        self._news.clear()
        said, self._topics = list(notices(self._topics)), set()
        if not said:
            return

        async def work(tx: Transaction) -> None:
            await tx.run(_NO_FLUSH)
            await tx.change(_SAY, CHANNEL, said)

        with suppress(FabricError):  # they will see for themselves
            await self._connections.write(work)


def notices(topics: Iterable[str]) -> Iterator[str]:
    """Topics as few payloads of bounded size."""
    said, size = [OURS], 0
    for topic in topics:
        length = len(msgspec.json.encode(topic)) + 1
        if length > _PAYLOAD:
            topic, length = EVERYTHING, 4
        if size + length > _PAYLOAD:
            yield msgspec.json.encode(said).decode()
            said, size = [OURS], 0
        said.append(topic)
        size += length
    if len(said) > 1:
        yield msgspec.json.encode(said).decode()
