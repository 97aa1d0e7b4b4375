"""An issuer's public keys: fetched when first needed, again when one is missing, and now and then.

Keys that are there stay good while the issuer is away, for a day.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import msgspec

from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.identity.source import IssuerAway

FRESH = 600.0
LONGEST = 86_400.0
PAUSE = 10.0  # between two fetches: who invents key names makes no storm

_log = logging.getLogger(__name__)


class KeySet:
    """`fetch` brings a JSON Web Key Set. It raises IssuerAway."""

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[bytes]], pause: float = PAUSE) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._pause = pause
        self._keys: list[dict[str, Any]] = []
        self._ready: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching = asyncio.Lock()

    async def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Raises AuthInvalid if there is no such key, IssuerAway if there are none at all."""
        if _age(self._fetched_at) > FRESH:
            await self._refresh()
        found = self._find(key_id, algorithm)
        if found is None:
            await self._refresh()
            found = self._find(key_id, algorithm)
        if found is None:
            raise AuthInvalid(f"The token is signed with a key that {self._issuer} does not publish")
        return found

    async def _refresh(self) -> None:
        async with self._fetching:
            if _age(self._tried_at) < self._pause and self._fetched_at is not None:
                return
            self._tried_at = time.monotonic()
            try:
                self._take(await self._fetch())
            except IssuerAway as away:
                if _age(self._fetched_at) > LONGEST:
                    raise
                _log.warning("%s; its keys of before are still used", away.message)

    def _take(self, document: bytes) -> None:
        try:
            self._keys = msgspec.json.decode(document, type=_Document).keys
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise IssuerAway(self._issuer, "does not publish a JSON Web Key Set") from exc
        self._ready = {}
        self._fetched_at = time.monotonic()

    def _find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        ready = self._ready.get((key_id, algorithm))
        if ready is not None:
            return ready
        fitting = [made for each in self._keys if (made := _made(each, key_id, algorithm)) is not None]
        if not fitting or (key_id is None and len(fitting) > 1):
            return None
        self._ready[key_id, algorithm] = fitting[0]
        return fitting[0]


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


def _made(key: dict[str, Any], key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
    if key_id is not None and key.get("kid") != key_id:
        return None
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return None
    try:
        return jwt.PyJWK(key, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None  # of another kind than this algorithm needs


def _age(at: float | None) -> float:
    return float("inf") if at is None else time.monotonic() - at
