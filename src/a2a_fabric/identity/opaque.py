"""Tokens that only their issuer can read: it is asked about each (OAuth 2.0 Token Introspection)."""

from __future__ import annotations

import base64
import math
import time
from typing import Any
from urllib.parse import quote_plus, urlencode

import msgspec

from a2a_fabric.core.errors import AuthExpired, AuthInvalid
from a2a_fabric.identity.claims import is_meant_for, principal_of
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.source import IssuerAway, Source
from a2a_fabric.identity.verdict import Verdict

_ON_THE_WAY = 300.0  # seconds that the body of a request may take


class Opaque:
    def __init__(self, settings: IssuerSettings, audience: tuple[str, ...], source: Source) -> None:
        self._settings = settings
        self._audience = audience
        self._source = source
        self._headers = _basic(settings.client_id or "", settings.client_secret or "")

    async def check(self, token: str) -> Verdict:
        """Raises AuthInvalid, AuthExpired or IssuerAway."""
        told = await self._asked(token)
        if told.get("active") is not True:
            raise AuthInvalid("The token is unknown to its issuer, was withdrawn, or has expired")
        if told.get("iss", self._settings.issuer) != self._settings.issuer:
            raise AuthInvalid("The token is somebody else's (`iss`)")
        if "aud" in told and not is_meant_for(told["aud"], self._audience):
            raise AuthInvalid("The token is not meant for this node (`aud`)")
        now = time.time()
        until = _expiry(told.get("exp"), now)
        fresh = min(until, now + self._settings.introspection_seconds)
        principal = principal_of(told, self._settings, "oauth2", None)
        return Verdict(principal=principal, fresh=fresh, until=min(until, fresh + _ON_THE_WAY))

    async def _asked(self, token: str) -> dict[str, Any]:
        url = self._settings.introspection_url or await self._source.place("introspection_endpoint")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            told = msgspec.json.decode(await self._source.post(url, self._headers, form))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise IssuerAway(self._source.issuer, "did not answer in JSON") from exc
        if not isinstance(told, dict):
            raise IssuerAway(self._source.issuer, "did not answer with an object")
        return told


def _expiry(told: Any, now: float) -> float:
    if not isinstance(told, int | float):
        return math.inf
    if told <= now:
        raise AuthExpired("The token has expired")
    return float(told)


def _basic(name: str, password: str) -> dict[str, str]:
    pair = f"{quote_plus(name)}:{quote_plus(password)}".encode()
    return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
