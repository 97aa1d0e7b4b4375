"""A head that a connection has sent before, known again by its bytes, so that it need not be parsed again.

Clients say the same with every request of a connection; only the length of the body
differs. What is not exactly such a head with its whole body is for the parser.
"""

from __future__ import annotations

import re

from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.doors.http import Head

_END = b"\r\n\r\n"
_LONGEST = 8 * 1024  # bytes of a head that are worth keeping for a connection
_DIGITS = 15
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})\r\n", re.IGNORECASE)
# Headers that say how a request or its connection goes on, and so must be the parser's to judge each time.
_PARSERS = frozenset({b"transfer-encoding", b"trailer", b"expect", b"upgrade", b"connection", b"proxy-connection"})
_USUAL = (b"connection", b"keep-alive")


class Repeated:
    """A head of a hot path; `headers` and `head` are as the last request had them."""

    __slots__ = ("_end", "_size", "_start", "_whole", "door", "head", "headers", "is_learned", "path")

    def __init__(self, path: str, door: ASGIApp, headers: list[tuple[bytes, bytes]], head: Head) -> None:
        self.path = path
        self.door = door
        self.headers = headers
        self.head = head
        self.is_learned = False

    def learn(self, data: bytes) -> None:
        """Its bytes, from those of a whole request; unless there is more to it than a length."""
        size = data.find(_END, 0, _LONGEST) + len(_END)
        found = _LENGTH.search(data, 0, size)
        names = [name for name, value in self.headers if (name, value.lower()) != _USUAL]
        if found is None or names.count(b"content-length") != 1 or not _PARSERS.isdisjoint(names):
            return
        self._start, self._end = data[: found.start(1)], data[found.end(1) : size]
        self._whole, self._size = data[:size], size + int(found[1])
        self.is_learned = self._size == len(data)

    def body_of(self, data: bytes) -> bytes | None:
        """The body of a request with this head; None if it is another, or more or less than one whole request."""
        if data.startswith(self._whole):
            return data[len(self._whole) :] if len(data) == self._size else None
        start = self._start
        at = data.find(b"\r", len(start), len(start) + _DIGITS + 1)
        if at < 0 or not data.startswith(start) or not data.startswith(self._end, at):
            return None
        length, size = data[len(start) : at], at + len(self._end)
        if not length.isdigit() or len(data) != size + int(length):
            return None
        self._whole, self._size = data[:size], len(data)
        self.headers = [(name, length if name == b"content-length" else value) for name, value in self.headers]
        self.head = self.head.again(self.headers)
        return data[size:]
