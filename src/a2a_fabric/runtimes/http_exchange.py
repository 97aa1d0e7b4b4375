"""What asking over HTTP has in common, whatever is said: errors in our words, addresses fit to be shown, bounds."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    CallTimeout,
    ErrorTable,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    translated,
)
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    Interrupted,
    OutboundError,
    Reply,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.runtimes.published import complete

# First match wins. Only the first is sure never to have reached the agent.
ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    Interrupted: UpstreamInterrupted,
    OutboundError: UpstreamInterrupted,
}

ASK_SECONDS = 5.0  # for health and description; the caller's own deadline may be shorter
MANIFEST_BYTES = 1024 * 1024
_PUBLISHED = ("capabilities", "display_name", "description", "version", "tags")


class Unreachable(AgentOffline):
    """A proxy before the agent got no answer from it: the agent may have run."""

    never_ran = False


def ours(exc: OutboundError, timeout: float, upstream: str) -> FabricError:
    """What went wrong, in our words and with the place where."""
    if isinstance(exc, DeadlineExceeded):
        return CallTimeout(timeout, upstream=upstream)
    kind = next(kind for theirs, kind in ERRORS.items() if isinstance(exc, theirs))
    return kind(str(exc)[:500], upstream=upstream)


def bad_status(status: int, why: str = "") -> FabricError:
    """`why` is the agent's own word for it."""
    told = f": {why}" if why else ""
    if status in (502, 503, 504):
        kind = AgentOffline if status == 503 else Unreachable
        return kind(f"The agent's server answered {status}{told}", status=status)
    if status == 429:
        return AgentBusy(f"The agent is busy: its server answered 429, too many requests{told}", status=status)
    failure = UpstreamRefused if 400 <= status < 500 else UpstreamFailed
    return failure(f"The agent answered HTTP {status}{told}", status=status)


def public(uri: str) -> str:
    """The address as it may be shown in an error: scheme and host."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def bounded(reply: StreamedReply, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in reply.chunks():
        size += len(chunk)
        if size > limit:
            raise ReplyTooLarge(f"the reply is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def json_of(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


async def looked_at(http: HTTPClient, uri: str, headers: dict[str, str]) -> Reply:
    """A GET, quickly. Raises FabricError."""
    with translated(ERRORS, upstream=public(uri)):
        return await http.request("GET", uri, headers=headers, timeout=ASK_SECONDS, limit=MANIFEST_BYTES)


async def described_at(http: HTTPClient, uri: str, headers: dict[str, str], manifest: Manifest) -> Manifest:
    """Completed with what a GET at the agent's own address answers, if that is a manifest. Raises FabricError."""
    reply = await looked_at(http, uri, headers)
    published = json_of(reply.body) if reply.status == 200 and reply.body else None
    if not isinstance(published, dict):
        return manifest
    known = {name: published[name] for name in _PUBLISHED if name in published}
    try:
        theirs = msgspec.convert({**known, "agent_id": manifest.agent_id, "endpoint": {}}, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Agent '{manifest.agent_id}' publishes a bad manifest: {exc}") from exc
    return complete(manifest, theirs)
