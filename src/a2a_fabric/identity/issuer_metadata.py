"""The metadata of a token issuer: where its documents are, and the bounded client that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.outbound.port import HTTPClient, OutboundError

_OPENID_PATH = "/.well-known/openid-configuration"
_OAUTH_PATH = "/.well-known/oauth-authorization-server"


def openid_metadata_url(issuer: str) -> str:
    """The URL of the metadata by OpenID Connect: below the issuer."""
    origin, path = _split_issuer(issuer)
    return f"{origin}{path}{_OPENID_PATH}"


def metadata_urls(issuer: str) -> list[str]:
    """The URLs to try, in order. OAuth 2.0 puts its well-known path between host and path."""
    origin, path = _split_issuer(issuer)
    return list(
        dict.fromkeys([openid_metadata_url(issuer), f"{origin}{_OAUTH_PATH}{path}", f"{origin}{_OPENID_PATH}{path}"])
    )


def _split_issuer(issuer: str) -> tuple[str, str]:
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


METADATA_TIMEOUT = 5.0
RETRY_AFTER = 5.0
_MAX_REPLY_BYTES = 512 * 1024
_FORM_HEADERS = {"content-type": "application/x-www-form-urlencoded"}


class IssuerUnavailable(RateLimited):
    """A token cannot be checked now. This says nothing about the token."""

    def __init__(self, issuer: str, why: str) -> None:
        super().__init__(f"The token cannot be checked now: {issuer} {why}. Try again later", RETRY_AFTER)


class IssuerMetadata:
    """The metadata of one issuer, fetched when first needed."""

    def __init__(self, issuer: str, http: HTTPClient) -> None:
        self.issuer = issuer
        self._http = http
        self._document: dict[str, Any] | None = None
        self._fetch_lock = asyncio.Lock()

    async def find_endpoint(self, name: str) -> str:
        """The URL of its `jwks_uri` or `introspection_endpoint`. Raises IssuerUnavailable."""
        async with self._fetch_lock:
            if self._document is None:
                self._document = await self._fetch_document()
        url = self._document.get(name)
        if not isinstance(url, str) or not is_secure_url(url):
            raise IssuerUnavailable(self.issuer, f"publishes no https address for its `{name}`")
        return url

    async def get(self, url: str) -> bytes:
        return await self._request("GET", url, {"accept": "application/json"}, None)

    async def post(self, url: str, headers: Mapping[str, str], form: bytes) -> bytes:
        return await self._request("POST", url, {**_FORM_HEADERS, **headers, "accept": "application/json"}, form)

    async def _fetch_document(self) -> dict[str, Any]:
        for url in metadata_urls(self.issuer):
            document = await self._fetch_page(url)
            if document is not None and document.get("issuer") == self.issuer:
                return document
        raise IssuerUnavailable(self.issuer, "publishes no metadata of OpenID Connect or OAuth 2.0")

    async def _fetch_page(self, url: str) -> dict[str, Any] | None:
        try:
            document = msgspec.json.decode(await self.get(url))
        except (_IssuerRefused, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    async def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        try:
            reply = await self._http.request(
                method, url, headers=headers, body=body, timeout=METADATA_TIMEOUT, limit=_MAX_REPLY_BYTES
            )
        except OutboundError as exc:
            raise IssuerUnavailable(self.issuer, "cannot be reached") from exc
        if reply.status != 200:
            raise _IssuerRefused(self.issuer, f"answered with status {reply.status}")
        return reply.body


class _IssuerRefused(IssuerUnavailable):
    """The issuer answered with another status than 200."""


def is_secure_url(url: str) -> bool:
    """Keys and secrets are sent encrypted, except to this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
