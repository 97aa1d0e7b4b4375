"""Addresses in headers: where the next page is, and where something that was made can be had."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from a2a_fabric.core.errors import BadInput
from a2a_fabric.doors.replying import Headers
from a2a_fabric.doors.rest.visit import Visit


def place_of(kind: str, shown: str, own: str) -> bytes:
    """The address of a task or a message under the id that its caller sees.

    Under our own id where the caller's cannot stand in a path: with a slash, or as a dot that clients leave out.
    """
    name = shown if "/" not in shown and shown not in (".", "..") else own
    return f"/v1/{kind}/{quote(name, safe='')}".encode("ascii")


def next_page(visit: Visit, path: str, cursor: str | None, limit: int) -> Headers:
    if cursor is None:
        return []
    query = urlencode({"cursor": cursor, "limit": limit})
    return [(b"link", f'<{visit.base}/v1{path}?{query}>; rel="next"'.encode("ascii", "replace"))]


def number_in(cursor: str | None) -> int:
    """A cursor that counts. Raises BadInput."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise BadInput("cursor: none of ours", field="cursor", issue="none of ours")
    return int(cursor)
