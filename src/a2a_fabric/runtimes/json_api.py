"""Somebody else's JSON API, as protocols of a few small requests need it: below one address, under one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.outbound.port import HTTPClient, OutboundError, Reply
from a2a_fabric.runtimes.http_exchange import bad_status, ours

T = TypeVar("T")


class JSONAPI:
    """Its errors name the server, never a path: that may hold a token."""

    def __init__(self, http: HTTPClient, uri: str, headers: Mapping[str, str], reply_bytes: int) -> None:
        parts = urlsplit(uri)
        self.http = http  # belongs to whoever built us; we never close it
        self.uri = uri.rstrip("/")
        self.upstream = f"{parts.scheme}://{parts.netloc}"
        self.headers = {"content-type": "application/json", "accept": "application/json", **headers}
        self.reply_bytes = reply_bytes

    async def get(self, path: str, *, timeout: float, headers: Mapping[str, str] = {}) -> Reply:
        return await self._send("GET", path, None, timeout, headers)

    async def post(self, path: str, body: Any, *, timeout: float, headers: Mapping[str, str] = {}) -> Reply:
        return await self._send("POST", path, msgspec.json.encode(body), timeout, headers)

    async def _send(self, method: str, path: str, body: bytes | None, timeout: float, more: Mapping[str, str]) -> Reply:
        headers = {**self.headers, **more}
        try:
            return await self.http.request(
                method, self.uri + path, headers=headers, body=body, timeout=timeout, limit=self.reply_bytes
            )
        except OutboundError as exc:
            raise ours(exc, timeout, self.upstream) from exc

    def refusal(self, status: int, why: str = "") -> FabricError:
        """Of a reply with this status; `why` are the server's own words."""
        if status in (401, 403):
            said = f". It says: {why[:300]}" if why else ""
            error: FabricError = UpstreamRefused(
                f"The agent's server answered {status}: it does not accept our credentials{said}", status=status
            )
        else:
            error = bad_status(status, why[:300])
        error.details["upstream"] = self.upstream
        return error


def is_good(status: int) -> bool:
    return 200 <= status < 300  # redirects are never followed


def decoded(body: bytes, kind: type[T]) -> T:
    """Raises UpstreamFailed for what is not JSON, or not of this shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's answer does not follow its protocol: {exc}"[:300]) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def object_or_empty(body: bytes) -> dict[str, Any]:
    """For error pages, which may be anything."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def checked_uri(manifest: Manifest, uri: str) -> str:
    """Raises BadInput if there are credentials in it."""
    if "@" in urlsplit(uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put credentials into `token`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    return uri
