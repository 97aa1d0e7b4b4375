"""Conversations: derived ids, not-found errors, and the signals that wake followers in this process.

Ids are derived from keys, so that sending the same message twice stores it once.
What other nodes write is polled once a second."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from a2a_fabric.core.errors import CallerError, register_error_code
from a2a_fabric.core.message import new_conversation_id

_MAX_ID_SHOWN = 64


@register_error_code
class MessageNotFound(CallerError):
    code = "MESSAGE_NOT_FOUND"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message '{message_id[:_MAX_ID_SHOWN]}' not found", message_id=message_id[:_MAX_ID_SHOWN])


@register_error_code
class ConversationNotFound(CallerError):
    code = "CONVERSATION_NOT_FOUND"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Conversation '{conversation_id[:_MAX_ID_SHOWN]}' not found",
            conversation_id=conversation_id[:_MAX_ID_SHOWN],
        )


def derive_conversation_id(owner: str, key: str | None) -> str:
    """A new one; the same for a message that is sent twice."""
    return new_conversation_id() if key is None else f"conv_{_digest(owner, key)}"


def derive_delivery_id(message_id: str) -> str:
    """Of the job that brings a message."""
    return f"task_{_digest(message_id)}"


def _digest(*values: str) -> str:
    return hashlib.sha256("\0".join(values).encode("utf-8", "surrogatepass")).hexdigest()[:32]


_POLL_INTERVAL = 1.0


class ConversationSignals:
    def __init__(self) -> None:
        self.is_stopped = False
        self._waiters: dict[str, set[asyncio.Event]] = {}

    @property
    def followers(self) -> int:
        return sum(map(len, self._waiters.values()))

    def notify(self, conversation_id: str) -> None:
        for signal in self._waiters.get(conversation_id, ()):
            signal.set()

    def stop(self) -> None:
        """No new requests will come: whoever only waits goes."""
        self.is_stopped = True
        for conversation_id in self._waiters:
            self.notify(conversation_id)

    @contextmanager
    def subscribe(self, conversation_id: str) -> Iterator[asyncio.Event]:
        signal = asyncio.Event()
        self._waiters.setdefault(conversation_id, set()).add(signal)
        try:
            yield signal
        finally:
            self._waiters[conversation_id].discard(signal)
            if not self._waiters[conversation_id]:
                del self._waiters[conversation_id]


async def wait_for_signal(signal: asyncio.Event) -> None:
    """Until it rings, or it is time to look."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_POLL_INTERVAL):
            await signal.wait()
    signal.clear()
