"""Lines of a node's log for its operator: the newest ones that a filter lets through."""

from __future__ import annotations

from typing import Protocol

import msgspec


class RecentLog(Protocol):
    """The newest lines of the log, as JSON. `start_id` is another one after each start."""

    start_id: str

    def read_after(self, position: int) -> tuple[list[bytes], int]:
        """The lines after a position, and the position after them."""
        ...


class LineFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Without `calls`, every line; an agent or `failed` imply it."""

    calls: bool = False
    agent_id: str | None = None
    failed: bool = False

    def matches(self, line: bytes) -> bool:
        if not (self.calls or self.failed or self.agent_id is not None):
            return True
        facts = _decode_facts(line)
        is_refused = facts.event == "request" and facts.status == "failed"  # before it became a call
        if facts.event not in ("call", "job") and not is_refused:
            return False
        if self.agent_id is not None and facts.target != self.agent_id:
            return False
        return not self.failed or facts.status in ("failed", "timeout", "rejected")


class _LineFacts(msgspec.Struct, frozen=True):
    event: str = ""
    target: str | None = None
    status: str | None = None


_decode_facts = msgspec.json.Decoder(_LineFacts).decode


def read_lines(log: RecentLog, position: int, wanted: LineFilter) -> tuple[list[bytes], int]:
    """The lines after a position that match, and the position after all of them."""
    lines, end = log.read_after(position)
    return [line for line in lines if wanted.matches(line)], end
