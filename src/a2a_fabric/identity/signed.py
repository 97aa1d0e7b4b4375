"""Signed tokens (JWT): whose signature, for whom, and from when to when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import jwt

from a2a_fabric.core.errors import AuthExpired, AuthInvalid
from a2a_fabric.identity.claims import is_meant_for, principal_of
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.verdict import Verdict

SKEW = 30.0  # seconds by which clocks may differ
KEY_PAIRS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SECRETS = ("HS256", "HS384", "HS512")

Key = jwt.PyJWK | str
FindKey = Callable[[str | None, str], Awaitable[Key]]


class Unsigned(Exception):
    """It is no JWT at all."""


class Signed:
    """`find` gives the key of a name for one of `algorithms`: those of key pairs, or of secrets, never of both."""

    def __init__(
        self, settings: IssuerSettings, audience: tuple[str, ...], find: FindKey, algorithms: tuple[str, ...]
    ) -> None:
        self._settings = settings
        self._audience = audience
        self._find = find
        self._algorithms = algorithms

    async def check(self, token: str) -> Verdict:
        """Raises AuthInvalid, AuthExpired or IssuerAway."""
        header = header_of(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise AuthInvalid(f"The token is signed in a way ({str(algorithm)[:20]}) that is not accepted")
        if key_id is not None and not isinstance(key_id, str):
            raise AuthInvalid("The token names its key by something that is no name")
        key = await self._find(key_id, algorithm)
        claims = self._verified(token, key)
        if not is_meant_for(claims.get("aud"), self._audience):
            raise AuthInvalid("The token is not meant for this node (`aud`)")
        principal = principal_of(claims, self._settings, "jwt", key_id)
        until = float(claims["exp"]) + SKEW
        return Verdict(principal=principal, fresh=until, until=until)

    def _verified(self, token: str, key: Key) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(self._algorithms),
                issuer=self._settings.issuer,
                leeway=SKEW,
                options={"require": ["exp", "iss"], "verify_aud": False, "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError as exc:
            raise AuthExpired("The token has expired") from exc
        except jwt.ImmatureSignatureError as exc:
            raise AuthInvalid("The token is not good yet (`nbf`, `iat`)") from exc
        except jwt.MissingRequiredClaimError as exc:
            raise AuthInvalid(f"The token lacks `{exc.claim}`") from exc
        except (jwt.PyJWTError, ValueError, OverflowError) as exc:
            raise AuthInvalid("The token's signature or form is wrong") from exc


def header_of(token: str) -> dict[str, Any]:
    """Raises Unsigned."""
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as exc:
        raise Unsigned from exc


def issuer_of(token: str) -> str | None:
    """Who it says has signed it; believed by nobody yet. Raises Unsigned."""
    header_of(token)
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as exc:
        raise Unsigned from exc
    found = claims.get("iss")
    return found if isinstance(found, str) else None
