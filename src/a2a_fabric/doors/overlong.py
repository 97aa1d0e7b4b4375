"""Reading a body that may be too long: then the rest of it is read and thrown away, within bounds.

Many clients write all of a request before they look for an answer. If the connection were
closed on them meanwhile, they would see it reset, and never be told why.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from a2a_fabric.core.errors import PayloadTooLarge
from a2a_fabric.doors.context import Receive
from a2a_fabric.doors.http import Head, read_body

_MOST = 64 * 1024 * 1024
_SECONDS = 5.0


async def read_or_refuse(receive: Receive, head: Head, limit: int) -> bytes:
    """The whole body. Raises as `read_body` does."""
    try:
        return await read_body(receive, head, limit)
    except PayloadTooLarge:
        if head.get(b"expect") is None:  # who asks before sending is told before sending
            await _thrown_away(receive)
        raise


async def _thrown_away(receive: Receive) -> None:
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            while size <= _MOST:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
