"""Verifies passports and mandates with the keys of their issuer, and makes principals of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.core.call import AuthMode, Principal
from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.identity.mandates import decode_link, read_key_id, remove_proof, split_mandate, verify_mandate
from a2a_fabric.identity.passports import CLOCK_SKEW, check_passport, decode_passport
from a2a_fabric.identity.revocations import RevocationList
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.signing import ALGORITHM
from a2a_fabric.identity.token_verifiers import (
    REFRESH_SECONDS,
    VerifiedToken,
    make_verified,
    matches_audience,
    principal_from_claims,
)

FindJWK = Callable[[str | None, str], Awaitable[jwt.PyJWK]]


class IssuerTerms(NamedTuple):
    """How one issuer is trusted: its settings, this node's audiences, its keys, and what it has revoked."""

    settings: IssuerSettings
    audience: tuple[str, ...]
    find_key: FindJWK
    revocations: RevocationList | None
    refresh_seconds: float = REFRESH_SECONDS

    async def find_public_key(self, key_id: str) -> Ed25519PublicKey:
        """Raises AuthInvalid or IssuerUnavailable. Ids are only compared, never opened as a file or an address."""
        key = (await self.find_key(key_id, ALGORITHM)).key
        if not isinstance(key, Ed25519PublicKey):
            raise AuthInvalid(f"The key '{key_id[:64]}' is not an Ed25519 key")
        return key

    def make_principal(
        self, mode: AuthMode, key_id: str | None, subject: str, scopes: Sequence[str], cap: Sequence[str] | None
    ) -> Principal:
        """Raises AuthInvalid. What every token of the issuer may do is not added: the signer said what this one may."""
        claims: dict[str, Any] = {"sub": subject, "scp": [*scopes]}
        if cap is not None:
            claims["cap"] = [*cap]
        return principal_from_claims(claims, msgspec.structs.replace(self.settings, scopes=()), mode, key_id)

    async def make_verified(self, principal: Principal, expires_at: float, ids: tuple[str, ...]) -> VerifiedToken:
        """Raises AuthInvalid if one of the ids was revoked."""
        return await make_verified(principal, expires_at + CLOCK_SKEW, self.refresh_seconds, ids, self.revocations)


class PassportVerifier:
    def __init__(self, terms: IssuerTerms) -> None:
        self._terms = terms

    async def check(self, token: str) -> VerifiedToken:
        """Raises AuthInvalid, AuthExpired or IssuerUnavailable."""
        passport, fields = decode_passport(token)
        if passport.issuer not in (None, self._terms.settings.issuer, self._terms.settings.id):
            raise AuthInvalid("The passport names another issuer")
        public_key = await self._terms.find_public_key(passport.key_id)
        check_passport(passport, fields, public_key, time.time())
        _check_audience(passport.audiences, self._terms.audience, "passport")
        principal = self._terms.make_principal(
            "passport", passport.key_id, passport.principal_id, passport.delegation_scopes, passport.cap
        )
        own_id = passport.agent_passport_id
        return await self._terms.make_verified(
            msgspec.structs.replace(
                principal, agent_passport_id=own_id, delegate_id=own_id, signature=passport.signature
            ),
            passport.valid_until,
            (own_id,),
        )


class MandateVerifier:
    def __init__(self, terms: IssuerTerms) -> None:
        self._terms = terms

    async def check(self, token: str) -> VerifiedToken:
        """Raises AuthInvalid, AuthExpired or IssuerUnavailable."""
        first = split_mandate(token)[0]
        if decode_link(first).iss != self._terms.settings.issuer:
            raise AuthInvalid("The mandate's issuer (`iss`) is another one")
        key_id = read_key_id(first)
        if key_id is None:
            raise AuthInvalid("The mandate names no key (`kid`)")
        public_key = await self._terms.find_public_key(key_id)
        mandate = verify_mandate(token, lambda issuer, key_id: public_key, time.time())
        for audiences in mandate.audiences:
            _check_audience(audiences, self._terms.audience, "mandate")
        last = mandate.last
        principal = self._terms.make_principal("mandate", key_id, mandate.principal_id, last.scp, last.cap)
        return await self._terms.make_verified(
            msgspec.structs.replace(
                principal,
                delegate_id=last.sub,
                mandate_id=last.mnd,
                cog_id=last.cog,
                delegated_by=mandate.delegates[:-1] or msgspec.UNSET,
                mandate=remove_proof(token),
            ),
            mandate.valid_until,
            mandate.mandate_ids,
        )


def _check_audience(audiences: Sequence[str] | None, accepted: tuple[str, ...], what: str) -> None:
    """Raises AuthInvalid."""
    if audiences is not None and not matches_audience([*audiences], accepted):
        raise AuthInvalid(f"The {what} is not meant for this node: its audience is {', '.join(audiences)[:200]}")
