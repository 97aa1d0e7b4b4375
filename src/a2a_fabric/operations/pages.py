"""Pages of long lists of agents and tools: bounded in number and in bytes, each with a cursor for the next one.

A list that fits into one page is in the order in which its agents were declared. A longer one is in the order of ids,
and a cursor is a position in that order and nothing more. So agents that come and go between two pages neither hide nor
repeat others, and each page shows what the caller that asks for it may see."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import BadInput

MAX_ITEMS = 1000
MAX_BYTES = 2 << 20

Position = tuple[str, int]  # the id of an agent, and which of its capabilities
_decode_position = msgspec.json.Decoder(Position).decode
PageLimit = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_ITEMS)] | None,
    Meta(description=f"How many at a time; at most and if unset {MAX_ITEMS}."),
]
PageCursor = Annotated[
    Annotated[str, Meta(max_length=1000)] | None,
    Meta(description="`next_cursor` of the page before: what comes after it."),
]


class Page:
    """Collects the items of one page. `total` counts those of all pages."""

    def __init__(self, limit: int | None, cursor: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.items: list[dict[str, Any]] = []
        self.total = 0
        self.after: Position | None = None if cursor is None else decode_cursor(cursor)
        self.is_full = False
        self._limit = min(limit or MAX_ITEMS, MAX_ITEMS)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._last: Position | None = None

    def wants(self, position: Position) -> bool:
        """Whether the next item belongs on this page; False for those on the pages before and after."""
        if self.after is not None and position <= self.after:
            return False
        self.is_full = self.is_full or len(self.items) >= self._limit
        return not self.is_full

    def add(self, position: Position, item: dict[str, Any]) -> None:
        """Add an item that the page wants. One that does not fit any more is left to the next page."""
        size = len(msgspec.json.encode(item))
        if self.items and self._bytes + size > self._max_bytes:
            self.is_full = True
            return
        self._bytes += size
        self._last = position
        self.items.append(item)

    def render(self, name: str) -> dict[str, Any]:
        """The fields of a reply: the items, how many they are, how many there are in all, and how to get the next."""
        fields: dict[str, Any] = {name: self.items, "count": len(self.items), "total": self.total}
        if self.is_full and self._last is not None:
            fields["next_cursor"] = encode_cursor(self._last)
        return fields


def encode_cursor(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(cursor: str) -> Position:
    """Raises BadInput."""
    try:
        position: Position = _decode_position(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return position
    except (msgspec.DecodeError, binascii.Error, ValueError) as exc:
        raise BadInput("Invalid cursor. Start again without one.", field="cursor") from exc
