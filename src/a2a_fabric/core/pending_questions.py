"""Work that waits for answers to its questions, found again by the continuation that the caller was given.

The MCP door, the MCP runtime and the agent-client runtime all keep such work. The work belongs to one caller
and one subject (a tool, a prompt); an answer from anybody else, or about anything else, does not find it.

Other agents keep the work themselves, and their continuation names it: the id of a task or of a conversation there.
`ContinuationSeal` signs every continuation before a caller gets it, so that no caller can answer the questions of
another, or write a continuation that names another caller's work."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from a2a_fabric.core.call import Call, bind_to_caller
from a2a_fabric.core.errors import BadInput

T = TypeVar("T")

_log = logging.getLogger(__name__)

MAX_PENDING = 1000


def unknown_continuation() -> BadInput:
    """For a continuation that is unknown, was used already, has expired, or belongs to another caller."""
    reason = "This continuation is unknown, was used already, or has expired. Start the call again without it."
    return BadInput(reason, field="continuation")


class ContinuationSeal:
    """Nodes with the same key accept each other's continuations; without a key, each run of a node has its own."""

    def __init__(self, key: str | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else hashlib.sha256(f"continuation\0{key}".encode()).digest()

    def seal(self, agent_id: str, continuation: str, call: Call) -> str:
        """The continuation for the caller: which agent asked, and the signature for this caller."""
        return f"{agent_id}:{self._sign(agent_id, continuation, call)}:{continuation}"

    def open(self, sealed: str, call: Call, *, is_trusted: bool = False) -> tuple[str, str]:
        """The agent that asked, and its own continuation. `is_trusted`: the node kept it. Raises BadInput."""
        agent_id, _, signed = sealed.partition(":")
        signature, _, continuation = signed.partition(":")
        if not is_trusted and not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._sign(agent_id, continuation, call).encode()
        ):
            raise unknown_continuation()
        return agent_id, continuation

    def _sign(self, agent_id: str, continuation: str, call: Call) -> str:
        subject = bind_to_caller(call, f"{agent_id}\0{continuation}").encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(hmac.digest(self._key, subject, "sha256")[:16]).decode().rstrip("=")


class PendingQuestions(Generic[T]):
    """At most `limit` pieces of work, each for `timeout` seconds; then `give_up` is called with it.

    `name` says in the log whose questions they are.
    """

    def __init__(
        self,
        name: str,
        timeout: float,
        give_up: Callable[[T], None],
        *,
        limit: int = MAX_PENDING,
        prefix: str = "",
        owner_tag: str = "",
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._give_up = give_up
        self._limit = limit
        self._prefix = prefix  # of continuations, where a caller may hold other ones too
        self._owner_tag = owner_tag  # the end of continuations, by which other processes know whose they are
        self._pending: dict[str, tuple[Hashable, T, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= self._limit

    def add(self, work: T, key: Hashable) -> str:
        """Keep `work` for the caller and subject in `key`; return its continuation. The caller checks `is_full`."""
        continuation = self._prefix + secrets.token_urlsafe(24) + self._owner_tag
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, continuation)
        self._pending[continuation] = key, work, timer
        return continuation

    def find(self, continuation: str, key: Hashable) -> T | None:
        """The work that waits under `continuation`; None also if its key is another one."""
        entry = self._pending.get(continuation)
        return entry[1] if entry is not None and entry[0] == key else None

    def remove(self, continuation: str) -> None:
        """The work goes on: its questions are answered."""
        self._pending.pop(continuation)[2].cancel()

    def close(self) -> list[T]:
        """Give up everything that waits, and return it."""
        pending, self._pending = list(self._pending.values()), {}
        for _, work, timer in pending:
            timer.cancel()
            self._give_up(work)
        return [work for _, work, _ in pending]

    def _expire(self, continuation: str) -> None:
        _log.warning("%s: a question was not answered within %g s", self._name, self._timeout)
        self._give_up(self._pending.pop(continuation)[1])
