"""Server-sent events from a stream of chunks: incremental, bounded, strict about nothing but size."""

from __future__ import annotations

from collections.abc import AsyncIterator

from a2a_fabric.outbound.port import ReplyTooLarge


async def data_of(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[bytes]:
    """The `data` of each event in order; comments, ids and names are skipped. One event holds at most `limit` bytes."""
    pending = b""
    data: list[bytes] = []
    size = 0
    async for chunk in chunks:
        pending += chunk
        if b"\n" not in chunk and b"\r" not in chunk:
            if len(pending) > limit:
                raise ReplyTooLarge(f"one event is larger than {limit} bytes")
            continue
        lines = pending.replace(b"\r\n", b"\n").split(b"\n")
        pending = lines.pop()
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                part = line[6:] if line[5:6] == b" " else line[5:]
                size += len(part)
                if size > limit:
                    raise ReplyTooLarge(f"one event is larger than {limit} bytes")
                data.append(part)
            elif not line and data:
                yield data[0] if len(data) == 1 else b"\n".join(data)
                data.clear()
                size = 0
    if data:  # the stream ended without the blank line: the last event still counts
        yield b"\n".join(data)
