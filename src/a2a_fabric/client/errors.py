"""Errors between a client and its node, and the rule for when a request may be sent again.

A request is repeated only if it certainly did not run, or if running it twice changes nothing."""

from __future__ import annotations

from urllib.parse import urlsplit

from a2a_fabric.core.errors import CallTimeout, FabricError, RateLimited, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, OutboundError, ReplyTooLarge


class NodeUnreachable(FabricError):
    """Nobody listens there, or nobody who could be understood; nothing was sent."""

    code = "NODE_UNREACHABLE"

    def __init__(self, url: str, reason: str = "") -> None:
        super().__init__(_unreachable_message(url, reason), url=url, reason=reason[:300] or None)


def _unreachable_message(url: str, reason: str) -> str:
    if "WRONG_VERSION_NUMBER" in reason:
        return f"Whoever listens at {url} does not speak TLS. Try http:// instead of https://"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"The certificate of {url} is not trusted here ({reason[:200]}). SSL_CERT_FILE may name its authority"
    if is_loopback(urlsplit(url).hostname or ""):
        return f"No node at {url}. Start one with: a2a-fabric up"
    return f"No node at {url}" + (f": {reason[:200]}" if reason else "")


def error_from_transport(error: OutboundError, url: str, timeout: float) -> FabricError:
    """The transport's error in the caller's terms: what may have run is told apart from what surely has not."""
    if isinstance(error, ConnectFailed):
        return NodeUnreachable(url, str(error))
    if isinstance(error, DeadlineExceeded):
        return CallTimeout(timeout, url=url)
    if isinstance(error, ReplyTooLarge):
        return UpstreamRefused(f"The answer of {url} is too large: {error}", url=url)
    return UpstreamInterrupted(f"The connection to {url} broke before the answer was there: {error}"[:500], url=url)


MAX_ATTEMPTS = 3
_FIRST_PAUSE = 0.1  # seconds, doubled each time: a node that restarts is back soon
_MAX_WAIT = 30.0


def pause_before_retry(error: FabricError, attempt: int, *, read_only: bool) -> float | None:
    """Seconds to wait before attempt number `attempt` + 1; None if there should be none."""
    if attempt >= MAX_ATTEMPTS:
        return None
    if isinstance(error, RateLimited):  # refused at the gate
        return error.retry_after if 0 <= error.retry_after <= _MAX_WAIT else None
    if isinstance(error, NodeUnreachable) or (read_only and isinstance(error, UpstreamInterrupted)):
        return float(_FIRST_PAUSE * 2 ** (attempt - 1))
    return None
