"""Requests to an agent's HTTP server: errors and statuses as FabricErrors, bounded bodies, JSON, a small API client.

Shared by all runtimes over HTTP. Errors name the server, never a path, which may hold a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
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
    HTTPReply,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.runtimes.context import complete_manifest

# First match wins. Only the first is sure never to have reached the agent.
TRANSPORT_ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    Interrupted: UpstreamInterrupted,
    OutboundError: UpstreamInterrupted,
}

PROBE_TIMEOUT = 5.0  # for health and description; the caller's own deadline may be shorter
MANIFEST_BYTES = 1024 * 1024
_PUBLISHED_FIELDS = ("capabilities", "display_name", "description", "version", "tags")


class BadGateway(AgentOffline):
    """A proxy before the agent got no answer from it: the agent may have run."""

    never_ran = False


def error_from_outbound(exc: OutboundError, timeout: float, upstream: str) -> FabricError:
    """What went wrong, in our words and with the place where."""
    if isinstance(exc, DeadlineExceeded):
        return CallTimeout(timeout, upstream=upstream)
    kind = next(kind for outbound_type, kind in TRANSPORT_ERRORS.items() if isinstance(exc, outbound_type))
    return kind(str(exc)[:500], upstream=upstream)


def error_from_status(status: int, reason: str = "") -> FabricError:
    """`why` is the agent's own word for it."""
    suffix = f": {reason}" if reason else ""
    if status in (502, 503, 504):
        kind = AgentOffline if status == 503 else BadGateway
        return kind(f"The agent's server answered {status}{suffix}", status=status)
    if status == 429:
        return AgentBusy(f"The agent is busy: its server answered 429, too many requests{suffix}", status=status)
    failure = UpstreamRefused if 400 <= status < 500 else UpstreamFailed
    return failure(f"The agent answered HTTP {status}{suffix}", status=status)


def redact_url(uri: str) -> str:
    """The address as it may be shown in an error: scheme and host."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def read_bounded(reply: StreamedReply, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in reply.chunks():
        size += len(chunk)
        if size > limit:
            raise ReplyTooLarge(f"the reply is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


async def get_quickly(http: HTTPClient, uri: str, headers: dict[str, str]) -> HTTPReply:
    """A GET, quickly. Raises FabricError."""
    with translated(TRANSPORT_ERRORS, upstream=redact_url(uri)):
        return await http.request("GET", uri, headers=headers, timeout=PROBE_TIMEOUT, limit=MANIFEST_BYTES)


async def fetch_manifest(http: HTTPClient, uri: str, headers: dict[str, str], manifest: Manifest) -> Manifest:
    """Completed with what a GET at the agent's own address answers, if that is a manifest. Raises FabricError."""
    reply = await get_quickly(http, uri, headers)
    published_json = decode_json(reply.body) if reply.status == 200 and reply.body else None
    if not isinstance(published_json, dict):
        return manifest
    known_fields = {name: published_json[name] for name in _PUBLISHED_FIELDS if name in published_json}
    try:
        published_manifest = msgspec.convert({**known_fields, "agent_id": manifest.agent_id, "endpoint": {}}, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Agent '{manifest.agent_id}' publishes a bad manifest: {exc}") from exc
    return complete_manifest(manifest, published_manifest)


T = TypeVar("T")


class JSONAPIClient:
    """Its errors name the server, never a path: that may hold a token."""

    def __init__(self, http: HTTPClient, uri: str, headers: Mapping[str, str], reply_bytes: int) -> None:
        parts = urlsplit(uri)
        self.http = http  # belongs to whoever built us; we never close it
        self.uri = uri.rstrip("/")
        self.upstream = f"{parts.scheme}://{parts.netloc}"
        self.headers = {"content-type": "application/json", "accept": "application/json", **headers}
        self.reply_bytes = reply_bytes

    async def get(self, path: str, *, timeout: float, headers: Mapping[str, str] = {}) -> HTTPReply:
        return await self._send("GET", path, None, timeout, headers)

    async def post(self, path: str, body: Any, *, timeout: float, headers: Mapping[str, str] = {}) -> HTTPReply:
        return await self._send("POST", path, msgspec.json.encode(body), timeout, headers)

    async def _send(
        self, method: str, path: str, body: bytes | None, timeout: float, extra_headers: Mapping[str, str]
    ) -> HTTPReply:
        headers = {**self.headers, **extra_headers}
        try:
            return await self.http.request(
                method, self.uri + path, headers=headers, body=body, timeout=timeout, limit=self.reply_bytes
            )
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, self.upstream) from exc

    def build_error(self, status: int, reason: str = "") -> FabricError:
        """Of a reply with this status; `why` are the server's own words."""
        if status in (401, 403):
            suffix = f". It says: {reason[:300]}" if reason else ""
            error: FabricError = UpstreamRefused(
                f"The agent's server answered {status}: it does not accept our credentials{suffix}", status=status
            )
        else:
            error = error_from_status(status, reason[:300])
        error.details["upstream"] = self.upstream
        return error


def is_success(status: int) -> bool:
    return 200 <= status < 300  # redirects are never followed


def decode_reply(body: bytes, kind: type[T]) -> T:
    """Raises UpstreamFailed for what is not JSON, or not of this shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's answer does not follow its protocol: {exc}"[:300]) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def decode_object_or_empty(body: bytes) -> dict[str, Any]:
    """For error pages, which may be anything."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def check_uri(manifest: Manifest, uri: str) -> str:
    """Raises BadInput if there are credentials in it."""
    if "@" in urlsplit(uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put credentials into `token`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    return uri
