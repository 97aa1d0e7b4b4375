"""What goes wrong between a client and its node, as errors of the same tree that the node's own belong to."""

from __future__ import annotations

from urllib.parse import urlsplit

from a2a_fabric.core.errors import CallTimeout, FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.hosts import is_loopback
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, OutboundError, ReplyTooLarge


class NodeUnreachable(FabricError):
    """Nobody listens there, or nobody who could be understood; nothing was sent."""

    code = "NODE_UNREACHABLE"

    def __init__(self, url: str, why: str = "") -> None:
        super().__init__(_sentence(url, why), url=url, reason=why[:300] or None)


def _sentence(url: str, why: str) -> str:
    if "WRONG_VERSION_NUMBER" in why:
        return f"Whoever listens at {url} does not speak TLS. Try http:// instead of https://"
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return f"The certificate of {url} is not trusted here ({why[:200]}). SSL_CERT_FILE may name its authority"
    if is_loopback(urlsplit(url).hostname or ""):
        return f"No node at {url}. Start one with: a2a-fabric up"
    return f"No node at {url}" + (f": {why[:200]}" if why else "")


def ours(error: OutboundError, url: str, timeout: float) -> FabricError:
    """The transport's error in the caller's terms: what may have run is told apart from what surely has not."""
    if isinstance(error, ConnectFailed):
        return NodeUnreachable(url, str(error))
    if isinstance(error, DeadlineExceeded):
        return CallTimeout(timeout, url=url)
    if isinstance(error, ReplyTooLarge):
        return UpstreamRefused(f"The answer of {url} is too large: {error}", url=url)
    return UpstreamInterrupted(f"The connection to {url} broke before the answer was there: {error}"[:500], url=url)
