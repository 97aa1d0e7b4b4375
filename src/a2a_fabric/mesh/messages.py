"""The messages of nodes to each other over NATS, their signatures, and which numbers of requests were accepted.

All that is sent to a node arrives at one subject, so one subscription serves it, and messages of one sender stay in
order. A message is MessagePack:

    request   number, sender, method, target, headers, body; larger bodies follow in `body` messages
    body      a further piece of a request's body
    reply     status, headers and the first piece of the body; `is_last` if there is no more
    chunk     a further piece of a reply's body
    credit    the reader has consumed so many pieces, and so many more may be sent
    cancel    the reader has left: the request's work is cancelled"""

from __future__ import annotations

import hashlib

import msgspec

SIGNATURE_BYTES = 16
_RECENT = 1024  # numbers that are remembered below the highest
_SUBJECTS = 10_000
_RECENT_MASK = (1 << _RECENT) - 1


class RequestMessage(msgspec.Struct, tag="q", array_like=True, frozen=True):
    number: int
    sender: str
    start_id: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    is_last: bool


class BodyMessage(msgspec.Struct, tag="b", array_like=True, frozen=True):
    number: int
    sender: str
    body: bytes
    is_last: bool


class ReplyMessage(msgspec.Struct, tag="r", array_like=True, frozen=True):
    number: int
    status: int
    headers: dict[str, str]
    body: bytes
    is_last: bool


class ChunkMessage(msgspec.Struct, tag="c", array_like=True, frozen=True):
    """`is_broken`: the reply ends here, but is not complete."""

    number: int
    body: bytes
    is_last: bool
    is_broken: bool = False


class CreditMessage(msgspec.Struct, tag="w", array_like=True, frozen=True):
    number: int
    sender: str
    pieces: int


class CancelMessage(msgspec.Struct, tag="x", array_like=True, frozen=True):
    number: int
    sender: str


NodeMessage = RequestMessage | BodyMessage | ReplyMessage | ChunkMessage | CreditMessage | CancelMessage
_decoder: msgspec.msgpack.Decoder[NodeMessage] = msgspec.msgpack.Decoder(NodeMessage)
decode_message = _decoder.decode
encode_message = msgspec.msgpack.Encoder().encode


class MessageSigner:
    """Signs messages for their receivers: one that was recorded is worth nothing at another node."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._begun: dict[str, hashlib.blake2b] = {}  # by subject; there are as many as nodes

    def sign(self, subject: str, content: bytes) -> bytes:
        begun = self._begun.get(subject)
        if begun is None:
            begun = hashlib.blake2b(subject.encode() + b"\0", key=self._key, digest_size=SIGNATURE_BYTES)
            if len(self._begun) < _SUBJECTS:
                self._begun[subject] = begun
        digest = begun.copy()
        digest.update(content)
        return digest.digest()


class AcceptedNumbers:
    """The numbers of requests from one start of a node. They arrive nearly in order."""

    def __init__(self, start_id: str) -> None:
        self.start_id = start_id
        self._highest = 0
        self._recent = 0  # a bit for each number below the highest

    def add(self, number: int) -> bool:
        """False for a number that was there before, or is too old to tell."""
        if number > self._highest:
            self._recent = (self._recent << min(number - self._highest, _RECENT) | 1) & _RECENT_MASK
            self._highest = number
            return True
        bit = 1 << (self._highest - number)
        if bit > _RECENT_MASK or self._recent & bit:
            return False
        self._recent |= bit
        return True
