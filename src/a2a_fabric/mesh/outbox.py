"""Sends the messages of this node to others: each is encoded, signed for its receiver, and handed to NATS."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable

from a2a_fabric.mesh.messages import NodeMessage, encode_message
from a2a_fabric.outbound.port import OutboundError

_log = logging.getLogger(__name__)
_SIGNATURE_BYTES = 16
_RECEIVERS = 10_000

# Returns None, or what to wait for before more is sent. Raises OutboundError.
Publish = Callable[[str, bytes], Awaitable[None] | None]


class MessageSigner:
    """Signs messages for their receivers: a recorded one is worth nothing at another node, or after a restart."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._begun: dict[str, hashlib.blake2b] = {}  # by receiver; there are as many as starts of nodes

    def sign(self, receiver: str, content: bytes) -> bytes:
        """The content with its signature before it."""
        return self._compute(receiver, content) + content

    def open(self, receiver: str, payload: bytes) -> bytes | None:
        """The content; None if it was not signed for this receiver."""
        signature, content = payload[:_SIGNATURE_BYTES], payload[_SIGNATURE_BYTES:]
        return content if hmac.compare_digest(signature, self._compute(receiver, content)) else None

    def _compute(self, receiver: str, content: bytes) -> bytes:
        begun = self._begun.get(receiver)
        if begun is None:
            begun = hashlib.blake2b(receiver.encode() + b"\0", key=self._key, digest_size=_SIGNATURE_BYTES)
            if len(self._begun) < _RECEIVERS:
                self._begun[receiver] = begun
        digest = begun.copy()
        digest.update(content)
        return digest.digest()


def name_receiver(subject: str, start_id: str) -> str:
    """For whom a message is signed. Without a `start_id` for every start of it, as an earlier version does."""
    return f"{subject} {start_id}" if start_id else subject


class Outbox:
    """`publish` sends to a subject; it raises OutboundError. With a `signer`, every message is signed for one start of
    the node that gets it (`name_receiver`).
    """

    def __init__(self, name: str, start_id: str, prefix: str, publish: Publish, signer: MessageSigner | None) -> None:
        self.name = name
        self.start_id = start_id
        self._prefix = prefix
        self._publish = publish
        self._signer = signer
        self._tasks: set[asyncio.Task[None]] = set()

    def name_subject(self, node: str) -> str:
        return f"{self._prefix}.{node}"

    def post(self, node: str, start_id: str, message: NodeMessage) -> Awaitable[None] | None:
        """Returns None, or what to wait for before more is sent. Raises OutboundError."""
        content, subject = encode_message(message), self.name_subject(node)
        if self._signer is not None:
            content = self._signer.sign(name_receiver(subject, start_id), content)
        return self._publish(subject, content)

    async def send(self, node: str, start_id: str, message: NodeMessage) -> None:
        """Raises OutboundError."""
        waiting = self.post(node, start_id, message)
        if waiting is not None:
            await waiting

    def send_soon(self, node: str, start_id: str, message: NodeMessage) -> None:
        """Nothing waits for it, and a failure changes nothing."""
        self.run_in_background(_ignore_failure(self.send(node, start_id, message)))

    def run_in_background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self, timeout: float) -> None:
        """Wait for what runs in the background."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)


async def _ignore_failure(work: Awaitable[None]) -> None:
    try:
        await work
    except OutboundError as exc:
        _log.debug("a message to another node was not sent: %s", exc)
