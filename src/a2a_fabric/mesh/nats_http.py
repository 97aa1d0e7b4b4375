"""HTTP between nodes over NATS: an `HTTPClient` on one side, an ASGI application on the other.

`NodeMailbox` sends and receives the messages of `mesh.messages`: `SentRequest` is a request of this node,
`_ReceivedRequest` one of another.

Invariants:
* A reply has at most `_WINDOW` pieces under way. So a slow reader slows down the agent, and neither NATS nor a node
  buffers more than that for one request.
* A request whose sender left the mesh is cancelled, as if its connection had broken (`drop_sender`); one to a node that
  left fails (`drop_target`). No deadline has to pass for that.
* A message without a valid signature is dropped and counted, if the mesh has a key. A request is accepted once, and
  only from a node that is in the mesh now: its numbers grow with each request and begin anew with each start, so a
  recorded message cannot be sent a second time."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import msgspec

from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.doors.edge import ON_DISCONNECT_KEY
from a2a_fabric.mesh.client import PEER_PREFIX
from a2a_fabric.mesh.messages import (
    SIGNATURE_BYTES,
    AcceptedNumbers,
    BodyMessage,
    CancelMessage,
    ChunkMessage,
    CreditMessage,
    MessageSigner,
    NodeMessage,
    ReplyMessage,
    RequestMessage,
    decode_message,
    encode_message,
)
from a2a_fabric.mesh.services import ServeCall, limit_request
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPReply,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
)

_log = logging.getLogger(__name__)
_WINDOW = 16  # pieces of a reply that may be under way
_CREDIT_STEP = 8  # consumed pieces that are reported together
_PIECE_BYTES = 128 * 1024
_MAX_EXCHANGES = 8192  # requests of other nodes at a time
CALL_TARGET = f"{PEER_PREFIX}/call"
_CALL_HEAD: tuple[int, dict[str, str]] = (200, {})
REFUSED_HEADER = "x-fabric-refused"  # of a reply: the request was not looked at

# Returns None, or what to wait for before more is sent. Raises OutboundError.
Publish = Callable[[str, bytes], Awaitable[None] | None]


class NodeMailbox:
    """What is sent between this node and others. `publish` sends to a subject; it raises OutboundError.

    With a `key`, every message carries a signature for its receiver.
    """

    def __init__(
        self,
        name: str,
        start_id: str,
        prefix: str,
        publish: Publish,
        app: ASGIApp,
        *,
        body_limit: BodyLimit,
        is_member: Callable[[str, str], bool],
        key: bytes | None = None,
        serve_call: ServeCall | None = None,
    ) -> None:
        """`serve_call` is a fast path for calls, around the application. `is_member` tells whether a node of this name
        and start id is in the mesh now.
        """
        self.name = name
        self.start_id = start_id
        self._is_member = is_member
        self._accepted: dict[str, AcceptedNumbers] = {}
        self.subject = f"{prefix}.{name}"
        self._prefix = prefix
        self._publish = publish
        self._app = app
        self._body_limit = body_limit
        self._signer = None if key is None else MessageSigner(key)
        self._serve_call = serve_call
        self._numbers = itertools.count(1)
        self._sent: dict[int, SentRequest] = {}
        self._received: dict[tuple[str, int], _ReceivedRequest] = {}
        self.dropped = 0  # messages that could not be read or had no valid signature
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._has_answered = asyncio.Event()  # a request of another node has ended

    def client_for(self, node: str) -> NatsHTTPClient:
        return NatsHTTPClient(self, node)

    def receive(self, payload: bytes) -> None:
        """Everything that arrives for this node. Never raises, and never waits for a reader."""
        content = self._check(payload)
        if content is None:
            self.dropped += 1
            return
        try:
            message = decode_message(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self.dropped += 1
            _log.warning("a message from another node cannot be read: %s", exc)
            return
        match message:
            case RequestMessage():
                self._begin(message)
            case ReplyMessage() | ChunkMessage():
                if (sent := self._sent.get(message.number)) is not None:
                    sent.add(message)
            case BodyMessage():
                if (received := self._received.get((message.sender, message.number))) is not None:
                    received.add_body(message.body, is_last=message.is_last)
            case CreditMessage():
                if (received := self._received.get((message.sender, message.number))) is not None:
                    received.add_credit(message.pieces)
            case CancelMessage():
                if (received := self._received.get((message.sender, message.number))) is not None:
                    received.disconnect()

    def drop_sender(self, node: str) -> None:
        """The node has left: its requests have no reader any more."""
        self._accepted.pop(node, None)
        for (sender, _), received in list(self._received.items()):
            if sender == node:
                received.disconnect()

    def interrupt(self, node: str | None = None) -> None:
        """Requests between this node and another one, or all others, are broken off: their messages may be lost."""
        for sent in list(self._sent.values()):
            if node in (None, sent.node):
                sent.fail(Interrupted("The connection to NATS was lost before the reply was complete"))
        for (sender, _), received in list(self._received.items()):
            if node in (None, sender):
                received.disconnect()

    def drop_target(self, node: str) -> None:
        """The node has left: it answers no more."""
        for sent in list(self._sent.values()):
            if sent.node == node:
                sent.fail(Interrupted(f"Node '{node}' left the mesh before it answered"))

    async def finish_received(self, timeout: float) -> None:
        """Refuse new requests of other nodes, and wait until those under way are answered. A request that only waits
        for news (GET) ends now: its client resumes it.
        """
        self._is_closing = True
        for received in list(self._received.values()):
            if received.is_waiting:
                self.run_in_background(received.break_off())
                received.disconnect()
        ends_at = asyncio.get_running_loop().time() + timeout
        while self._received and (left := ends_at - asyncio.get_running_loop().time()) > 0:
            self._has_answered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._has_answered.wait()

    async def aclose(self) -> None:
        for sent in list(self._sent.values()):
            sent.fail(Interrupted("This node is stopping"))
        for received in list(self._received.values()):
            received.disconnect()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    async def send(self, node: str, message: NodeMessage) -> None:
        """Raises OutboundError."""
        content, subject = encode_message(message), f"{self._prefix}.{node}"
        if self._signer is not None:
            content = self._signer.sign(subject, content) + content
        waiting = self._publish(subject, content)
        if waiting is not None:
            await waiting

    def open_request(self, node: str) -> SentRequest:
        number = next(self._numbers)
        sent = self._sent[number] = SentRequest(self, node, number)
        return sent

    def close_request(self, number: int) -> None:
        self._sent.pop(number, None)

    def forget(self, received: _ReceivedRequest) -> None:
        self._received.pop((received.sender, received.number), None)
        self._has_answered.set()

    def _check(self, payload: bytes) -> bytes | None:
        if self._signer is None:
            return payload
        signature, content = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
        return content if hmac.compare_digest(signature, self._signer.sign(self.subject, content)) else None

    def _begin(self, request: RequestMessage) -> None:
        is_full = self._is_closing or len(self._received) >= _MAX_EXCHANGES
        if is_full or not self._is_member(request.sender, request.start_id):
            _log.info("a request of node %s was refused: %d are under way", request.sender, len(self._received))
            refusal = ReplyMessage(request.number, 503, {"retry-after": "1", REFUSED_HEADER: "1"}, b"", True)
            self.run_in_background(self.send(request.sender, refusal))
            return
        accepted = self._accepted.get(request.sender)
        if accepted is None or accepted.start_id != request.start_id:
            accepted = self._accepted[request.sender] = AcceptedNumbers(request.start_id)
        if not accepted.add(request.number):
            self.dropped += 1
            _log.warning("a request of node %s arrived a second time and was dropped", request.sender)
            return
        key = (request.sender, request.number)
        received = self._received[key] = _ReceivedRequest(self, request, limit_request(self._body_limit))
        if self._serve_call is not None and request.is_last and request.target == CALL_TARGET:
            task = asyncio.ensure_future(received.run_call(self._serve_call))
            received.on_disconnect(task.cancel)
        else:
            task = asyncio.ensure_future(received.run(self._app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_ignore_failure(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ignore_failure(work: Awaitable[None]) -> None:
    try:
        await work
    except OutboundError as exc:
        _log.debug("a message to another node was not sent: %s", exc)


class SentRequest:
    """A request of this node, and the pieces of its reply that were not read yet."""

    def __init__(self, mailbox: NodeMailbox, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self._mailbox = mailbox
        self._pieces: deque[ReplyMessage | ChunkMessage] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: OutboundError | None = None
        self._consumed = 0
        self.is_over = False  # the last piece was read

    def add(self, piece: ReplyMessage | ChunkMessage) -> None:
        if len(self._pieces) > 2 * _WINDOW:  # the sender does not keep to the window
            self.fail(Interrupted(f"Node '{self.node}' sends more than was asked for"))
            return
        self._pieces.append(piece)
        self._wake()

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
            credit = CreditMessage(self.number, self._mailbox.name, self._consumed)
            self._consumed = 0
            await self._mailbox.send(self.node, credit)
        return piece

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raises ConnectFailed if nothing was sent."""
        first, rest = (body, b"") if len(body) <= _PIECE_BYTES else (body[:_PIECE_BYTES], body[_PIECE_BYTES:])
        name, start_id = self._mailbox.name, self._mailbox.start_id
        request = RequestMessage(self.number, name, start_id, method, target, dict(headers), first, not rest)
        await self._mailbox.send(self.node, request)
        while rest:
            piece, rest = rest[:_PIECE_BYTES], rest[_PIECE_BYTES:]
            await self._mailbox.send(self.node, BodyMessage(self.number, name, piece, not rest))

    def close(self) -> None:
        self._mailbox.close_request(self.number)
        if not self.is_over and self._failure is None:
            self._mailbox.run_in_background(
                self._mailbox.send(self.node, CancelMessage(self.number, self._mailbox.name))
            )


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

    def __init__(self, mailbox: NodeMailbox, node: str) -> None:
        self._mailbox = mailbox
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
        sent = self._mailbox.open_request(self._node)
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


class _ReceivedRequest:
    """A request of another node, as ASGI."""

    def __init__(self, mailbox: NodeMailbox, request: RequestMessage, limit: int) -> None:
        self.sender = request.sender
        self.number = request.number
        self._mailbox = mailbox
        self._request = request
        self.is_waiting = request.method == "GET"
        self._limit = limit
        self._body = bytearray(request.body)
        self._has_body = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._on_disconnect: Callable[[], object] | None = None
        self._credit = _WINDOW
        self._has_credit = asyncio.Event()
        self._head: tuple[int, dict[str, str]] | None = None
        self._has_begun = False
        self._is_complete = False
        self._was_read = False
        if request.is_last:
            self._has_body.set()

    def add_body(self, piece: bytes, *, is_last: bool) -> None:
        if len(self._body) <= self._limit:  # one piece more, and the application refuses the body
            self._body += piece
        if is_last:
            self._has_body.set()

    def add_credit(self, pieces: int) -> None:
        self._credit += pieces
        self._has_credit.set()

    def disconnect(self) -> None:
        self._is_gone.set()
        self._has_credit.set()
        self._has_body.set()
        if self._on_disconnect is not None:
            self._on_disconnect()

    async def run_call(self, serve_call: ServeCall) -> None:
        """A call whose body has arrived: without HTTP, but with the same messages."""
        try:
            await serve_call(self._request.body, self._write_call)
        except OutboundError as exc:
            _log.debug("the reply to node %s was not sent: %s", self.sender, exc)
        except asyncio.CancelledError:
            if not self._is_gone.is_set():
                raise
        finally:
            self._finish()

    async def _write_call(self, data: bytes, is_last: bool) -> None:
        self._head = self._head or _CALL_HEAD
        await self._write(data, is_last=is_last)

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self._on_disconnect = callback

    async def run(self, app: ASGIApp) -> None:
        path, _, query = self._request.target.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in self._request.headers.items()
            ],
            "client": None,
            "state": {},
            ON_DISCONNECT_KEY: self._set_callback,
        }
        try:
            await app(scope, self._receive, self._send)
        except OutboundError as exc:
            _log.debug("the reply to node %s was not sent: %s", self.sender, exc)
        except Exception:
            _log.exception("a request of node %s failed", self.sender)
        finally:
            self._finish()

    def _finish(self) -> None:
        self._mailbox.forget(self)
        if not self._is_complete and not self._is_gone.is_set():
            self._mailbox.run_in_background(self.break_off())

    async def break_off(self) -> None:
        if self._has_begun:
            await self._mailbox.send(self.sender, ChunkMessage(self.number, b"", True, True))
        else:
            await self._mailbox.send(self.sender, ReplyMessage(self.number, 500, {}, b"", True))

    def _set_callback(self, callback: Callable[[], None] | None) -> None:
        self._on_disconnect = callback
        if callback is not None and self._is_gone.is_set():
            asyncio.get_running_loop().call_soon(callback)

    async def _receive(self) -> Any:
        if not self._was_read:
            await self._has_body.wait()
            self._was_read = True
            if not self._is_gone.is_set():
                return {"type": "http.request", "body": bytes(self._body), "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            self._head = message["status"], headers
            return
        await self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        while len(body) > _PIECE_BYTES:
            piece, body = body[:_PIECE_BYTES], body[_PIECE_BYTES:]
            await self._send_piece(bytes(piece), is_last=False)
        await self._send_piece(bytes(body), is_last=is_last)
        self._is_complete = is_last

    async def _send_piece(self, piece: bytes, *, is_last: bool) -> None:
        while self._credit <= 0 and not self._is_gone.is_set():
            self._has_credit.clear()
            await self._has_credit.wait()
        if self._is_gone.is_set():
            return  # as a server does whose client has left; the application is cancelled
        self._credit -= 1
        if self._has_begun:
            await self._mailbox.send(self.sender, ChunkMessage(self.number, piece, is_last))
            return
        assert self._head is not None  # noqa: S101  # ASGI
        self._has_begun = True
        status, headers = self._head
        await self._mailbox.send(self.sender, ReplyMessage(self.number, status, headers, piece, is_last))
