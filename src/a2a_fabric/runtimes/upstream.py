"""Requests to an agent's server over HTTP: errors and statuses as FabricErrors, bounded bodies, JSON, health probes.

All runtimes over HTTP share these tables, so that they agree on what may have reached the agent. An error
names the server, never a path, which may hold a token.

A health probe never asks the agent to work. A server that answers it is not yet the agent: 404 and 410 mean that
nothing is at the address, 5xx that it is broken. Any other answer comes from the agent, even if it refuses the
method (405, 501) or the credentials (401, 403)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest, Status
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
from a2a_fabric.core.json_text import find_number_problem
from a2a_fabric.core.result import Part
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    HTTPReply,
    OutboundError,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.runtimes.context import complete_manifest

# The first match wins. Only after ConnectFailed is it certain that the agent never received the request.
TRANSPORT_ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    OutboundError: UpstreamInterrupted,
}
# Statuses that say more than "refused" (4xx) or "failed" (5xx). After 502 and 504 the agent may have run: a proxy
# passed the request on and got no answer. 429 and 503 come from a server that did not take the request.
STATUS_ERRORS: Mapping[int, type[FabricError]] = {
    429: AgentBusy,
    502: UpstreamInterrupted,
    503: AgentOffline,
    504: UpstreamInterrupted,
}

_EXCERPT_LENGTH = 300
_REASON_KEYS = ("message", "detail", "error_description", "reason", "title", "error", "errors")
_TAG = re.compile(r"<[^>]*>")
_MIN_PAUSE, _MAX_PAUSE = 0.05, 300.0  # seconds that a server may ask its clients to wait

PROBE_TIMEOUT = 5.0  # for health and description; the caller's own deadline may be shorter
MANIFEST_BYTES = 1024 * 1024
_PUBLISHED_FIELDS = ("capabilities", "display_name", "description", "version", "tags")


def error_from_outbound(exc: OutboundError, timeout: float, upstream: str, subject: str = "") -> FabricError:
    """The failure as a FabricError that names the server; `subject` says in the message who did not answer."""
    if isinstance(exc, DeadlineExceeded):
        return CallTimeout(timeout, upstream=upstream)
    kind = next(kind for outbound_type, kind in TRANSPORT_ERRORS.items() if isinstance(exc, outbound_type))
    return kind(f"{subject}: {exc}"[:500] if subject else str(exc)[:500], upstream=upstream)


def error_from_status(
    status: int, reason: str = "", server: str = "The agent", *, retry_after: float | None = None
) -> FabricError:
    """The error of a reply that is no success. `reason` is what the reply itself says about it.

    A server that says when to come back (503 with Retry-After) is busy and not away.
    """
    kind = STATUS_ERRORS.get(status) or (UpstreamRefused if 400 <= status < 500 else UpstreamFailed)
    hint = " (too many requests)" if status == 429 else ""
    message = f"{server} answered HTTP {status}{hint}{': ' if reason else ''}{reason}"
    if kind is AgentBusy or (status == 503 and retry_after is not None):
        return AgentBusy(message, status=status, retry_after=retry_after)
    return kind(message, status=status)


def error_from_refusal(status: int, headers: Mapping[str, str], body: bytes, server: str = "The agent") -> FabricError:
    """The error of a reply that is no success: a refusal (4xx) in its own words, and when to come back."""
    reason = read_excerpt(body) if 400 <= status < 500 else ""
    return error_from_status(status, reason, server, retry_after=read_retry_after(headers))


def read_excerpt(body: bytes) -> str:
    """What the body of an error says, in one short line; empty if it is a page for browsers."""
    if body.lstrip()[:1] in (b"{", b"[", b'"'):
        return read_json_excerpt(body)
    first, _, _ = body[: 4 * _EXCERPT_LENGTH].decode("utf-8", "replace").strip().partition("\n")
    return "" if first.startswith("<") else to_single_line(first)


def read_json_excerpt(body: bytes) -> str:
    """What an error in JSON says, in one short line; empty if it is no JSON."""
    try:
        return to_single_line(find_reason(msgspec.json.decode(body)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def find_reason(value: Any) -> str:
    """The message in an error object, from the fields that APIs usually use."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in _REASON_KEYS:
            if value.get(name):
                return find_reason(value[name])
    return msgspec.json.encode(value).decode() if value else ""


def to_single_line(text: str) -> str:
    return " ".join(_TAG.sub(" ", text[: 4 * _EXCERPT_LENGTH]).split())[:_EXCERPT_LENGTH]


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks its clients to wait."""
    header = headers.get("retry-after", "").strip()
    if not header:
        return None
    try:
        seconds = float(header) if not header[0].isalpha() else _seconds_until(header, headers.get("date", ""))
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, _MIN_PAUSE), _MAX_PAUSE) if math.isfinite(seconds) else None


def _seconds_until(date: str, now: str) -> float:
    """Seconds until a date, by the server's own clock."""
    return (parsedate_to_datetime(date) - parsedate_to_datetime(now)).total_seconds()


def redact_url(uri: str) -> str:
    """The address as it may be shown in an error: scheme and host."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def read_bounded(reply: StreamedReply, limit: int) -> bytes:
    """The whole body of a reply that was requested as a stream and is none. Raises OutboundError."""
    body = bytearray()
    async for chunk in reply.chunks():
        body += chunk
        if len(body) > limit:
            raise ReplyTooLarge(f"the reply is larger than {limit} bytes")
    whole = bytes(body)
    if problem := find_number_problem(whole):
        raise ReplyTooLarge(problem)
    return whole


def decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


async def get_quickly(http: HTTPClient, uri: str, headers: dict[str, str]) -> HTTPReply:
    """A GET with the short deadline of a probe. Raises FabricError."""
    with translated(TRANSPORT_ERRORS, upstream=redact_url(uri)):
        return await http.request("GET", uri, headers=headers, timeout=PROBE_TIMEOUT, limit=MANIFEST_BYTES)


async def fetch_manifest(http: HTTPClient, uri: str, headers: dict[str, str], manifest: Manifest) -> Manifest:
    """The manifest, completed with the one that the agent's own address serves, if any. Raises FabricError."""
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
    """JSON requests to one server. The connections belong to the node, which closes them."""

    def __init__(self, http: HTTPClient, uri: str, headers: Mapping[str, str], reply_bytes: int) -> None:
        self.http = http
        self.uri = uri.rstrip("/")
        self.upstream = redact_url(uri)
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
        """The error of a reply with this status. `reason` is what the server says about it."""
        error: FabricError
        if status in (401, 403):
            suffix = f". It says: {reason[:300]}" if reason else ""
            message = f"The agent's server answered {status}: it does not accept our credentials{suffix}"
            error = UpstreamRefused(message, status=status)
        else:
            error = error_from_status(status, reason[:300])
        error.details["upstream"] = self.upstream
        return error


def is_success(status: int) -> bool:
    return 200 <= status < 300  # redirects are never followed


def decode_reply(body: bytes, kind: type[T]) -> T:
    """Raises UpstreamFailed for a body that is not JSON, or has another shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's answer does not follow its protocol: {exc}"[:300]) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def convert_parts(value: Any) -> tuple[Part, ...]:
    """Content parts in the node's own form. Raises UpstreamFailed."""
    try:
        return msgspec.convert(value or (), tuple[Part, ...])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's content parts cannot be read: {exc}"[:300]) from exc


def decode_object_or_empty(body: bytes) -> dict[str, Any]:
    """For error pages: empty unless the body is a JSON object."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def check_uri(manifest: Manifest, uri: str) -> str:
    """Raises BadInput if the address holds credentials."""
    if "@" in urlsplit(uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put credentials into `token`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    return uri


_ABSENT_STATUSES = (404, 410)
_NOT_IMPLEMENTED = 501
_HINT = "if it takes only POST requests there, name a health check in its endpoint as `health`"


def check_probe_status(status: int, address: str) -> Status:
    """Raises AgentOffline if nothing is at this address, UpstreamFailed if what is there is broken."""
    if status in _ABSENT_STATUSES:
        raise AgentOffline(
            f"Nothing is at {redact_url(address)}: it answered a probe with HTTP {status}", status=status
        )
    if status >= 500 and status != _NOT_IMPLEMENTED:
        raise UpstreamFailed(f"{redact_url(address)} answered a probe with HTTP {status}", status=status)
    return "online"


async def probe_page(http: HTTPClient, address: str, headers: dict[str, str]) -> Status:
    """Of a page that is there to be read: a health check, a card, a document. Raises FabricError."""
    return check_probe_status((await get_quickly(http, address, headers)).status, address)


async def probe_agent(http: HTTPClient, uri: str, health: str | None, headers: dict[str, str]) -> Status:
    """Of an agent that takes POST requests. `health` is the path or the address of its health check, if declared.

    Some servers answer 404 to a GET where they take a POST. Then the methods that they allow there,
    or a health page below the agent's own address, show that it is there. Raises FabricError.
    """
    if health is not None:
        return await probe_page(http, build_health_url(uri, health), headers)
    reply = await get_quickly(http, uri, headers)
    if reply.status not in _ABSENT_STATUSES:
        return check_probe_status(reply.status, uri)
    if "POST" in (await _send_options(http, uri, headers)).headers.get("allow", "").upper():
        return "online"
    if (await get_quickly(http, _append_path(uri, "health"), headers)).status == 200:
        return "online"
    reason = f"Nothing is at {redact_url(uri)}: it answered a probe with HTTP {reply.status}; {_HINT}"
    raise AgentOffline(reason, status=reply.status)


async def probe_resource(http: HTTPClient, uri: str, headers: dict[str, str]) -> Status:
    """Of an address whose GET may be work, or that is but the fixed part of many. 404 leaves it open who is there."""
    reply = await _send_options(http, uri, headers)
    return "unknown" if reply.status in _ABSENT_STATUSES else check_probe_status(reply.status, uri)


def build_health_url(uri: str, health: str) -> str:
    if health.startswith(("http://", "https://")):
        return health
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}/{health.lstrip('/')}"


def _append_path(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{name}"


async def _send_options(http: HTTPClient, uri: str, headers: dict[str, str]) -> HTTPReply:
    with translated(TRANSPORT_ERRORS, upstream=redact_url(uri)):
        return await http.request("OPTIONS", uri, headers=headers, timeout=PROBE_TIMEOUT, limit=MANIFEST_BYTES)
