"""Where the next page is, as a header: for clients that know nothing of our bodies."""

from __future__ import annotations

from urllib.parse import urlencode

from a2a_fabric.core.errors import BadInput
from a2a_fabric.doors.replying import Headers
from a2a_fabric.doors.rest.visit import Visit


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
