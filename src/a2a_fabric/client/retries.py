"""When a request may be sent again: only if it surely did not run, or if running it twice changes nothing."""

from __future__ import annotations

from a2a_fabric.client.errors import NodeUnreachable
from a2a_fabric.core.errors import FabricError, RateLimited, UpstreamInterrupted

ATTEMPTS = 3
_PAUSE = 0.1  # seconds, doubled each time: a node that restarts is back soon
_LONGEST_WAIT = 30.0


def pause_before_retry(error: FabricError, attempt: int, *, read_only: bool) -> float | None:
    """Seconds to wait before attempt number `attempt` + 1; None if there should be none."""
    if attempt >= ATTEMPTS:
        return None
    if isinstance(error, RateLimited):  # refused at the gate
        return error.retry_after if 0 <= error.retry_after <= _LONGEST_WAIT else None
    if isinstance(error, NodeUnreachable) or (read_only and isinstance(error, UpstreamInterrupted)):
        return float(_PAUSE * 2 ** (attempt - 1))
    return None
