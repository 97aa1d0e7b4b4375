"""Requests of this node to others over NATS, also as an `HTTPClient`, and the pieces of their replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf

from a2a_fabric.doors.edge import REFUSED_HEADER
from a2a_fabric.mesh.messages import (
    PIECE_BYTES,
    WINDOW,
    BodyMessage,
    CancelMessage,
    ChunkMessage,
    CreditMessage,
    ReplyMessage,
    RequestMessage,
)
from a2a_fabric.mesh.outbox import Outbox
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPReply,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
)

_CREDIT_STEP = 8  # consumed pieces that are reported together


class SentRequest:
    """A request of this node, and the pieces of its reply that were not read yet."""

    def __init__(
        self, outbox: Outbox, node: str, start_id: str, number: int, on_close: Callable[[int], object]
    ) -> None:
        """`start_id` is the start of the node for which messages are signed."""
        self.node = node
        self.start_id = start_id
        self.number = number
        self._outbox = outbox
        self._on_close = on_close
        self._pieces: deque[ReplyMessage | ChunkMessage] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: OutboundError | None = None
        self._consumed = 0
        self._heard = -1  # the index of the last piece
        self.is_over = False  # the last piece was read
        self.timer: asyncio.TimerHandle | None = None  # of the sweep that expires requests

    def add(self, piece: ReplyMessage | ChunkMessage) -> None:
        if len(self._pieces) > 2 * WINDOW:  # the sender does not keep to the window
            self.fail(Interrupted(f"Node '{self.node}' sends more than was asked for"))
            return
        index = piece.index if isinstance(piece, ChunkMessage) else 0
        if index <= self._heard and (index or isinstance(piece, ReplyMessage)):
            return  # it was recorded, and sent a second time
        self._heard = index
        self._pieces.append(piece)
        self._wake()

    def expire(self) -> None:
        self.fail(DeadlineExceeded(f"Node '{self.node}' did not answer in time"))

    def fail(self, error: OutboundError) -> None:
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_piece(self) -> ReplyMessage | ChunkMessage:
        """Raises OutboundError."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        piece = self._pieces.popleft()
        self.is_over = piece.is_last
        if isinstance(piece, ChunkMessage) and piece.is_broken:
            raise Interrupted(f"The reply of node '{self.node}' ended before it was complete")
        self._consumed += 1
        if self._consumed >= _CREDIT_STEP and not piece.is_last:
            credit = CreditMessage(self.number, self._outbox.name, self._consumed)
            self._consumed = 0
            await self._outbox.send(self.node, self.start_id, credit)
        return piece

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raises ConnectFailed if nothing was sent."""
        first, rest = (body, b"") if len(body) <= PIECE_BYTES else (body[:PIECE_BYTES], body[PIECE_BYTES:])
        name, start_id = self._outbox.name, self._outbox.start_id
        request = RequestMessage(self.number, name, start_id, method, target, dict(headers), first, not rest)
        if (waiting := self._outbox.post(self.node, self.start_id, request)) is not None:
            await waiting
        index = 0
        while rest:
            index += 1
            piece, rest = rest[:PIECE_BYTES], rest[PIECE_BYTES:]
            await self._outbox.send(self.node, self.start_id, BodyMessage(self.number, name, piece, not rest, index))

    def close(self) -> None:
        self._on_close(self.number)
        if not self.is_over and self._failure is None:
            self._outbox.send_soon(self.node, self.start_id, CancelMessage(self.number, self._outbox.name))


class _NatsReply:
    """A streamed reply; see `outbound.port.StreamedReply`."""

    def __init__(self, sent: SentRequest, head: ReplyMessage, limit: int) -> None:
        self.status = head.status
        self.headers: Mapping[str, str] = head.headers
        self._sent = sent
        self._first: bytes | None = head.body
        self._limit = limit
        self._size = 0

    async def next_chunk(self) -> bytes:
        while True:
            if self._first is not None:
                chunk, self._first = self._first, None
            elif self._sent.is_over:
                return b""
            else:
                chunk = (await self._sent.next_piece()).body
            if not chunk:
                continue
            self._size += len(chunk)
            if self._size > self._limit:
                raise ReplyTooLarge(f"The reply is larger than {self._limit} bytes")
            return chunk

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        while chunk := await self.next_chunk():
            if not take(chunk):
                return True
        return False

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


class NatsHTTPClient:
    """Requests to one node; see `outbound.port.HTTPClient`. URLs are paths at that node."""

    def __init__(self, open_request: Callable[[str], SentRequest], node: str) -> None:
        self._open_request = open_request
        self._node = node

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> HTTPReply:
        async with self.stream(method, url, headers=headers, body=body, timeout=timeout, limit=limit) as reply:
            return HTTPReply(reply.status, reply.headers, await reply.read())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> AsyncIterator[_NatsReply]:
        sent = self._open_request(self._node)
        try:
            async with asyncio.timeout(None if timeout == inf else timeout):
                await sent.send(method, url, headers, body or b"")
                head = await sent.next_piece()
                if not isinstance(head, ReplyMessage):
                    raise Interrupted(f"Node '{self._node}' answered without a head")
                if REFUSED_HEADER in head.headers:
                    raise ConnectFailed(f"Node '{self._node}' takes no requests now")
                yield _NatsReply(sent, head, limit)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"Node '{self._node}' did not answer within {timeout:g} s") from exc
        finally:
            sent.close()

    async def aclose(self) -> None:
        """The mailbox belongs to the mesh."""
