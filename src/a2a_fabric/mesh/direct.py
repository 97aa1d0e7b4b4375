"""Calls between nodes directly over HTTP, for nodes that reach each other's port: the way over NATS is left out.

A node with `mesh.direct.url` announces that address, and nodes with `mesh.direct` send their calls there. All else goes
over NATS, and so does a call that did not reach the node over HTTP.

Invariants:
* The body of a request is a `RequestMessage`, signed for the receiver and its start, and each number is accepted once
  for each start of a sender. So a recorded request cannot be sent again, also after a restart of either node.
* A token in the head proves that the sender has the key of the mesh. It is checked before the body is read.
* A reply with `REFUSED_HEADER` says that the request was not looked at: the sender may send it over NATS. After any
  other failure of a request that has left it may have run: a node that is stopped answers 503 to calls at work, and so
  may a proxy between the nodes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from ssl import SSLContext, SSLError
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import ConfigError, PayloadTooLarge, UpstreamInterrupted
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.result import Result
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.edge import (
    REFUSED_HEADER,
    SHORTCUT_KEY,
    ClientDisconnected,
    RequestHead,
    Shortcut,
    head_from_scope,
    read_body,
    run_until_disconnect,
    send_reply,
    take_buffered_body,
)
from a2a_fabric.mesh.app import FRAMES_TYPE, ReplyWriter
from a2a_fabric.mesh.client import FRAMES_HEADERS, PEER_PREFIX, STREAM_BYTES
from a2a_fabric.mesh.frames import encode_call, encode_frame, frame_from_error, read_result
from a2a_fabric.mesh.messages import AcceptedRequests, RequestMessage, decode_message, encode_message
from a2a_fabric.mesh.outbox import MessageSigner
from a2a_fabric.mesh.services import ServeCall, WritePiece, limit_request
from a2a_fabric.mesh.settings import DirectSettings
from a2a_fabric.outbound.client import OutboundClient, make_client_context
from a2a_fabric.outbound.port import ConnectFailed

_log = logging.getLogger(__name__)
DIRECT_PATH = f"{PEER_PREFIX}/call"
_NODE_HEADER = "x-fabric-node"
_NODE_HEADER_BYTES = _NODE_HEADER.encode()
_CONNECT_TIMEOUT = 2.0
_PAUSE = 10.0  # seconds for which a node that was not reached over HTTP is called over NATS
_OVERTAKING = 8192  # calls that may arrive on other connections while the body of one is on its way
_SENDER_KEY = "mesh: sender"
_FRAMES_LINE = b"content-type: %b\r\n" % FRAMES_TYPE


class NodeStart(msgspec.Struct, frozen=True):
    """One run of a node: its name, and what it is called from this start to the next one."""

    name: str
    start_id: str

    def __str__(self) -> str:
        return f"{self.name} {self.start_id}"


class DirectKeys:
    """What proves that a request comes from a node of the mesh, and is for this start of this node."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(b"direct\0" + key).digest()
        self._signer = MessageSigner(self._key)

    def compute_token(self, sender: NodeStart, receiver: NodeStart) -> str:
        content = f"{sender}\0{receiver}".encode()
        return hashlib.blake2b(content, key=self._key, digest_size=16).hexdigest()

    def sign(self, receiver: NodeStart, content: bytes) -> bytes:
        return self._signer.sign(str(receiver), content)

    def open(self, receiver: NodeStart, payload: bytes) -> bytes | None:
        """The content; None if it was not signed for this start of this node."""
        return self._signer.open(str(receiver), payload)


class DirectEndpoint:
    """Where other nodes send calls to this one, on the port for its clients. `is_member` tells whether a node of this
    name and start id is in the mesh now.
    """

    def __init__(self, own: NodeStart, keys: DirectKeys, is_member: Callable[[str, str], bool]) -> None:
        self._own = own
        self._keys = keys
        self._is_member = is_member
        self._accepted = AcceptedRequests(_OVERTAKING)
        self._serve_call: ServeCall | None = None
        self._body_limit = BodyLimit(0)

    def open(self, serve_call: ServeCall, body_limit: BodyLimit) -> None:
        """From now on calls are taken."""
        self._serve_call, self._body_limit = serve_call, body_limit

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        try:
            await self._serve(scope, receive, send, shortcut)
        except ClientDisconnected:
            pass  # the caller at the other node has left, and the work was cancelled
        except PayloadTooLarge as error:
            await ReplyWriter(send)(encode_frame(frame_from_error(error)), True)  # as over NATS
        except TimeoutError:
            await _refuse(send, 408, "The request body did not arrive in time")
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise

    async def _serve(self, scope: Any, receive: Receive, send: Send, shortcut: Shortcut | None) -> None:
        head = head_from_scope(scope)
        sender = self._find_sender(head)
        if sender is None or scope["method"] != "POST":
            await _refuse(send, 403, "Only nodes of the mesh are served here")
            return
        limit = limit_request(self._body_limit)
        payload = take_buffered_body(shortcut, limit)
        if payload is None:
            payload = await read_body(receive, head, limit)
        request = self._accept(sender, payload)
        serve_call = self._serve_call
        if request is None or serve_call is None:
            await _refuse(send, 503, "The request was refused. It may be sent over NATS")
        elif shortcut is None:
            await run_until_disconnect(scope, receive, lambda: serve_call(request.body, ReplyWriter(send)))
        else:
            await serve_call(request.body, _write_to(shortcut, send))

    def _find_sender(self, head: RequestHead) -> NodeStart | None:
        """From the head alone, which is the same in each request of a connection."""
        sender: NodeStart | None = head.derived.get(_SENDER_KEY)
        if sender is None and (value := head.get(_NODE_HEADER_BYTES)) is not None:
            name, _, rest = value.partition(" ")
            start_id, _, token = rest.partition(" ")
            claimed = NodeStart(name, start_id)
            expected = self._keys.compute_token(claimed, self._own)
            if hmac.compare_digest(token.encode("latin-1"), expected.encode()):
                sender = head.derived[_SENDER_KEY] = claimed
        return sender

    def _accept(self, sender: NodeStart, payload: bytes) -> RequestMessage | None:
        """The request, if it was signed for this start of this node, and was not there before."""
        content = self._keys.open(self._own, payload)
        if content is None or not self._is_member(sender.name, sender.start_id):
            return None
        try:
            request = decode_message(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            _log.warning("a request of node %s cannot be read: %s", sender.name, exc)
            return None
        if not isinstance(request, RequestMessage) or (request.sender, request.start_id) != (
            sender.name,
            sender.start_id,
        ):
            return None
        return request if self._accepted.add(sender.name, sender.start_id, request.number) else None


class DirectLink:
    """Calls to one start of another node over HTTP."""

    def __init__(
        self, own: NodeStart, node: NodeStart, url: str, keys: DirectKeys, http: OutboundClient, reply_bytes: int
    ) -> None:
        """The link owns `http`."""
        self._own = own
        self._node = node
        self._url = f"{url.rstrip('/')}{DIRECT_PATH}"
        self._keys = keys
        self._http = http
        self._reply_bytes = reply_bytes
        self._numbers = itertools.count(1)
        self._headers = {**FRAMES_HEADERS, _NODE_HEADER: f"{own} {keys.compute_token(own, node)}"}
        self._retry_at = 0.0

    @property
    def is_usable(self) -> bool:
        """Not for a while after the node was not reached."""
        return asyncio.get_running_loop().time() >= self._retry_at

    async def call(self, call: Call, emit: Emit, timeout: float) -> Result:
        """Raises ConnectFailed if the call certainly did not reach the node, other kinds of OutboundError, and the
        node's own FabricError.
        """
        request = RequestMessage(
            next(self._numbers), self._own.name, self._own.start_id, "POST", DIRECT_PATH, {},
            encode_call(call, "node"), True,
        )  # fmt: skip
        body = self._keys.sign(self._node, encode_message(request))
        try:
            async with self._http.stream(
                "POST", self._url, headers=self._headers, body=body, timeout=timeout, limit=STREAM_BYTES
            ) as reply:
                if REFUSED_HEADER in reply.headers:
                    raise ConnectFailed(f"it refused a call with HTTP {reply.status}")
                if reply.status != 200:
                    self._pause(f"it answered with HTTP {reply.status}")
                    raise UpstreamInterrupted(f"node '{self._node.name}' answered with HTTP {reply.status}")
                result = await read_result(await reply.next_chunk(), reply.next_chunk, self._reply_bytes, emit)
        except ConnectFailed as error:
            self._pause(error)
            raise
        if result is None:
            raise UpstreamInterrupted(f"node '{self._node.name}' ended its reply without an answer")
        return result

    def _pause(self, reason: object) -> None:
        self._retry_at = asyncio.get_running_loop().time() + _PAUSE
        _log.warning(
            "node %s was not reached at %s, so calls go over NATS for %.0f s: %s",
            self._node.name, self._url, _PAUSE, reason,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Calls that are under way fail as interrupted."""
        await self._http.aclose()


class DirectCalls:
    """What a node needs to call others over HTTP, and to be called so."""

    def __init__(
        self, settings: DirectSettings, own: NodeStart, key: bytes | None, is_member: Callable[[str, str], bool]
    ) -> None:
        """Raises ConfigError."""
        if key is None:
            raise ConfigError("mesh.direct: calls over HTTP need a `key` of the mesh. Set `key: env:MESH_KEY`")
        if settings.url is not None:
            _check_url(settings.url)
        self.url = settings.url or ""
        self._own = own
        self._keys = DirectKeys(key)
        self._make_context = _prepare_tls(settings.ca)
        self.endpoint = DirectEndpoint(own, self._keys, is_member)

    def link_to(self, node: NodeStart, url: str, reply_bytes: int) -> DirectLink | None:
        """None if calls may not be sent there: what a node announces is held to the same rules as its settings."""
        if not _is_allowed(url):
            _log.warning("node %s announces %.200r, which is not https://, so calls go over NATS", node.name, url)
            return None
        http = OutboundClient(connect_timeout=_CONNECT_TIMEOUT, tls=self._make_context, when_full="open")
        return DirectLink(self._own, node, url, self._keys, http, reply_bytes)


def _is_allowed(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname) and parts.port != 0  # a port that is no number is an error
    except ValueError:
        return False
    is_plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
    has_more = bool(parts.query or parts.fragment or parts.username or parts.password) or not url.isprintable()
    return has_address and not has_more and (is_plain or parts.scheme == "https")


def _check_url(url: str) -> None:
    if not _is_allowed(url):
        raise ConfigError(
            "mesh.direct.url: nodes call each other over https://, or http:// on loopback. Give the address of this "
            "node's own port, such as https://berlin-1.example:8000"
        )


def _prepare_tls(ca: str | None) -> Callable[[], SSLContext]:
    """Raises ConfigError."""
    try:
        certificates = None if ca is None else Path(ca).read_bytes()

        @cache
        def make_context() -> SSLContext:
            return make_client_context(None, certificates, True)

        if certificates is not None:
            make_context()
    except (OSError, SSLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"mesh.direct.ca: {exc}") from exc
    return make_context


def _write_to(shortcut: Shortcut, send: Send) -> WritePiece:
    """Pieces of a reply: a whole one without a stream."""
    stream: ReplyWriter | None = None

    async def write(piece: bytes, is_last: bool) -> None:
        nonlocal stream
        if stream is None and is_last:
            shortcut.reply(200, _FRAMES_LINE, piece)
            return
        stream = stream or ReplyWriter(send)
        await stream(piece, is_last)

    return write


async def _refuse(send: Send, status: int, message: str) -> None:
    headers = [(REFUSED_HEADER.encode(), b"1")]
    await send_reply(send, status, msgspec.json.encode({"error": message}), headers)
