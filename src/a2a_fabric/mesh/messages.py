"""The messages of nodes to each other over NATS, and which numbers of requests were accepted.

All that is sent to a node arrives at one subject, so one subscription serves it, and messages of one sender stay in
order. A message is MessagePack:

    request   number, sender, method, target, headers, body; larger bodies follow in `body` messages
    body      a further piece of a request's body
    reply     status, headers and the first piece of the body; `is_last` if there is no more
    chunk     a further piece of a reply's body
    credit    the reader has consumed so many pieces, and so many more may be sent
    cancel    the reader has left: the request's work is cancelled"""

from __future__ import annotations

import msgspec

_RECENT = 1024  # numbers that are remembered below the highest, where messages stay in order
_STARTS = 10_000  # of nodes, whose accepted numbers are remembered

WINDOW = 16  # pieces of a reply that may be under way
PIECE_BYTES = 128 * 1024


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
    index: int = 0  # as in a chunk


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
    index: int = 0  # counted from 1 in a reply; a node of an earlier version does not count


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


class AcceptedNumbers:
    """The numbers of requests from one start of a node. They arrive nearly in order: at most `recent` overtake one."""

    def __init__(self, recent: int = _RECENT) -> None:
        self._recent_count = recent
        self._mask = (1 << recent) - 1
        self._highest = 0
        self._recent = 0  # a bit for each number below the highest

    def add(self, number: int) -> bool:
        """False for a number that was there before, or is too old to tell."""
        if number > self._highest:
            self._recent = (self._recent << min(number - self._highest, self._recent_count) | 1) & self._mask
            self._highest = number
            return True
        age = self._highest - number
        if age >= self._recent_count or self._recent & (bit := 1 << age):
            return False
        self._recent |= bit
        return True


class AcceptedRequests:
    """Which requests were accepted, by the start of the node that sent them. What is known of a node outlives its
    absence: else requests that were recorded before could be sent again after it.
    """

    def __init__(self, recent: int = _RECENT) -> None:
        self._recent = recent
        self._numbers: dict[tuple[str, str], AcceptedNumbers] = {}

    def add(self, sender: str, start_id: str, number: int) -> bool:
        """False for a request that was there before."""
        numbers = self._numbers.get((sender, start_id))
        if numbers is None:
            if len(self._numbers) >= _STARTS:
                del self._numbers[next(iter(self._numbers))]
            numbers = self._numbers[sender, start_id] = AcceptedNumbers(self._recent)
        return numbers.add(number)
