"""HTTP between nodes over NATS: an `HTTPClient` on one side, an ASGI application on the other.

`NodeMailbox` receives the messages of `mesh.messages`: a reply goes to the `SentRequest` that waits for it, and a
request of another node becomes a `ReceivedRequest`.

Invariants:
* A reply has at most `WINDOW` pieces under way. So a slow reader slows down the agent, and neither NATS nor a node
  buffers more than that for one request.
* A request whose sender left the mesh is cancelled, as if its connection had broken (`drop_sender`); one to a node that
  left fails (`drop_target`). No deadline has to pass for that.
* A message without a valid signature is dropped and counted, if the mesh has a key. It is signed for this start of this
  node, unless its sender is of an earlier version. A request is accepted once, and only from a node that is in the mesh
  now: its numbers grow with each request and begin anew with each start, and the pieces of a body and of a reply are
  counted. So a recorded message cannot be sent a second time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.doors.edge import REFUSED_HEADER
from a2a_fabric.mesh.client import PEER_PREFIX
from a2a_fabric.mesh.messages import (
    AcceptedRequests,
    BodyMessage,
    CancelMessage,
    ChunkMessage,
    CreditMessage,
    ReplyMessage,
    RequestMessage,
    decode_message,
)
from a2a_fabric.mesh.outbox import MessageSigner, Outbox, Publish, name_receiver
from a2a_fabric.mesh.received_requests import ReceivedRequest
from a2a_fabric.mesh.sent_requests import NatsHTTPClient, SentRequest
from a2a_fabric.mesh.services import ServeCall, limit_request
from a2a_fabric.outbound.port import ConnectFailed, Interrupted

_log = logging.getLogger(__name__)
_MAX_RECEIVED = 8192  # requests of other nodes at a time
_CLOSE_TIMEOUT = 5.0
CALL_TARGET = f"{PEER_PREFIX}/call"


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
        find_start: Callable[[str], str] = lambda node: "",
        key: bytes | None = None,
        serve_call: ServeCall | None = None,
    ) -> None:
        """`serve_call` is a fast path for calls, around the application. `is_member` tells whether a node of this name
        and start id is in the mesh now, `find_start` for which start of a node messages are signed.
        """
        self._signer = None if key is None else MessageSigner(key)
        self._outbox = Outbox(name, start_id, prefix, publish, self._signer)
        self._is_member = is_member
        self._find_start = find_start
        self._accepted = AcceptedRequests()
        self.subject = f"{prefix}.{name}"
        self._receiver = name_receiver(self.subject, start_id)
        self._app = app
        self._body_limit = body_limit
        self._serve_call = serve_call
        self._numbers = itertools.count(1)
        self._sent: dict[int, SentRequest] = {}
        self._received: dict[tuple[str, int], ReceivedRequest] = {}
        self.dropped = 0  # messages that could not be read or had no valid signature
        self._is_closing = False
        self._has_answered = asyncio.Event()  # a request of another node has ended
        self.deadlines = DeadlineSweep(asyncio.get_running_loop())  # of requests of this node

    @property
    def is_idle(self) -> bool:
        """At most one request is under way, so no other message leaves in the same step of the loop."""
        return len(self._sent) + len(self._received) < 2

    def client_for(self, node: str) -> NatsHTTPClient:
        return NatsHTTPClient(self.open_request, node)

    def receive(self, payload: bytes) -> None:
        """Everything that arrives for this node. Never raises, and never waits for a reader."""
        if not payload:
            return  # a node tries whether it may send to this one
        content, is_bound = payload, True
        if self._signer is not None:
            opened = self._signer.open(self._receiver, payload)
            if opened is None:
                opened, is_bound = self._signer.open(self.subject, payload), False
            if opened is None:
                self.dropped += 1
                return
            content = opened
        try:
            message = decode_message(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self.dropped += 1
            _log.warning("a message from another node cannot be read: %s", exc)
            return
        match message:
            case RequestMessage():
                if is_bound or not self._find_start(message.sender):
                    self._begin(message, message.start_id if is_bound else "")
                else:
                    self.dropped += 1
            case ReplyMessage() | ChunkMessage():
                sent = self._sent.get(message.number)
                if sent is not None and (is_bound or not sent.start_id):
                    sent.add(message)
            case BodyMessage() | CreditMessage() | CancelMessage():
                received = self._received.get((message.sender, message.number))
                if received is not None and (is_bound or not received.start_id):
                    _pass_on(message, received)

    def drop_sender(self, node: str) -> None:
        """The node has left: its requests have no reader any more."""
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

    def refuse_target(self, subject: str, reason: str) -> None:
        """NATS takes no messages for this subject, in lower case: they certainly never arrived."""
        for sent in list(self._sent.values()):
            if self._outbox.name_subject(sent.node).lower() == subject:
                sent.fail(ConnectFailed(reason))

    async def finish_received(self, timeout: float) -> None:
        """Refuse new requests of other nodes, and wait until those under way are answered. A request that only waits
        for news (GET) ends now: its client resumes it.
        """
        self._is_closing = True
        for received in list(self._received.values()):
            if received.is_waiting:
                received.break_off()
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
        calls = [received.task for received in self._received.values() if received.task is not None]
        for received in list(self._received.values()):
            received.disconnect()
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_TIMEOUT)
        await self._outbox.aclose(_CLOSE_TIMEOUT)

    def open_request(self, node: str) -> SentRequest:
        number = next(self._numbers)
        sent = self._sent[number] = SentRequest(self._outbox, node, self._find_start(node), number, self._close_request)
        return sent

    def _close_request(self, number: int) -> None:
        self._sent.pop(number, None)

    def _forget(self, received: ReceivedRequest) -> None:
        self._received.pop((received.sender, received.number), None)
        self._has_answered.set()

    def _begin(self, request: RequestMessage, start_id: str) -> None:
        is_full = self._is_closing or len(self._received) >= _MAX_RECEIVED
        if is_full or not self._is_member(request.sender, request.start_id):
            _log.info("a request of node %s was refused: %d are under way", request.sender, len(self._received))
            refusal = ReplyMessage(request.number, 503, {"retry-after": "1", REFUSED_HEADER: "1"}, b"", True)
            self._outbox.send_soon(request.sender, start_id, refusal)
            return
        if not self._accepted.add(request.sender, request.start_id, request.number):
            self.dropped += 1
            _log.warning("a request of node %s arrived a second time and was dropped", request.sender)
            return
        key = (request.sender, request.number)
        limit = limit_request(self._body_limit)
        received = self._received[key] = ReceivedRequest(self._outbox, request, limit, self._forget, start_id)
        if self._serve_call is not None and request.is_last and request.target == CALL_TARGET:
            received.start_call(self._serve_call)
        else:
            self._outbox.run_in_background(received.run(self._app))


def _pass_on(message: BodyMessage | CreditMessage | CancelMessage, received: ReceivedRequest) -> None:
    match message:
        case BodyMessage():
            received.add_body(message.body, message.index, is_last=message.is_last)
        case CreditMessage():
            received.add_credit(message.pieces)
        case CancelMessage():
            received.disconnect()
