"""An issuer's own pages: where its keys are, and where it can be asked. Read through one client, with bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.hosts import is_loopback
from a2a_fabric.identity.pages import pages_of
from a2a_fabric.outbound.port import HTTPClient, OutboundError

TIMEOUT = 5.0
RETRY_AFTER = 5.0
_BYTES = 512 * 1024
_FORM = {"content-type": "application/x-www-form-urlencoded"}


class IssuerAway(RateLimited):
    """Nobody can tell now whether a token is good. It says nothing against the caller."""

    def __init__(self, issuer: str, why: str) -> None:
        super().__init__(f"Who is calling cannot be checked now: {issuer} {why}", RETRY_AFTER)


class Source:
    """`issuer` is its address; where it keeps the rest it says itself."""

    def __init__(self, issuer: str, http: HTTPClient) -> None:
        self.issuer = issuer
        self._http = http
        self._about: dict[str, Any] | None = None
        self._asking = asyncio.Lock()

    async def place(self, name: str) -> str:
        """Where it has its `jwks_uri`, its `introspection_endpoint`. Raises IssuerAway."""
        async with self._asking:
            if self._about is None:
                self._about = await self._introduction()
        place = self._about.get(name)
        if not isinstance(place, str) or not is_safe(place):
            raise IssuerAway(self.issuer, f"does not say at which safe address its `{name}` is")
        return place

    async def get(self, url: str) -> bytes:
        return await self._ask("GET", url, {"accept": "application/json"}, None)

    async def post(self, url: str, headers: Mapping[str, str], form: bytes) -> bytes:
        return await self._ask("POST", url, {**_FORM, **headers, "accept": "application/json"}, form)

    async def _introduction(self) -> dict[str, Any]:
        for url in pages_of(self.issuer):
            found = await self._page(url)
            if found is not None and found.get("issuer") == self.issuer:
                return found
        raise IssuerAway(self.issuer, "does not introduce itself as OpenID Connect or OAuth 2.0 have it")

    async def _page(self, url: str) -> dict[str, Any] | None:
        try:
            found = msgspec.json.decode(await self.get(url))
        except (_Refused, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        try:
            reply = await self._http.request(method, url, headers=headers, body=body, timeout=TIMEOUT, limit=_BYTES)
        except OutboundError as exc:
            raise IssuerAway(self.issuer, "cannot be reached") from exc
        if reply.status != 200:
            raise _Refused(self.issuer, f"answered with status {reply.status}")
        return reply.body


class _Refused(IssuerAway):
    """It is there, but has nothing at this address, or not for us."""


def is_safe(url: str) -> bool:
    """Keys and secrets travel encrypted, except to this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
