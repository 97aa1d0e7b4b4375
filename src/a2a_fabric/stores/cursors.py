"""The place in a list of jobs, as callers carry it from page to page: the age of the last job seen."""

from __future__ import annotations

from a2a_fabric.core.errors import BadInput

NEWEST = 2**62


def read_cursor(cursor: str | None) -> int:
    """The page begins with jobs older than this. Raises BadInput for what was never handed out."""
    if cursor is None:
        return NEWEST
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadInput("The cursor is not one that a list of jobs gave back", field="cursor")
    return int(cursor)
