"""The place in a list of jobs, as callers carry it from page to page."""

from __future__ import annotations

import re

from a2a_fabric.core.errors import BadInput

_ID = re.compile(r"[!-~]{1,128}")


def read_cursor(cursor: str | None) -> str | None:
    """The job id after which the page begins. Raises BadInput for what was never handed out."""
    if cursor is None:
        return None
    if not _ID.fullmatch(cursor):
        raise BadInput("The cursor is not one that a list of jobs gave back", field="cursor")
    return cursor
