"""Turns the claims of a verified token into a principal, and says how long the verification is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.call import AuthMode, Principal
from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.core.policy import is_known_scope
from a2a_fabric.identity.settings import IssuerSettings


class VerifiedToken(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970. After `fresh` the next request has it checked again.

    Requests that came in before may still be on their way to whoever asks; for them it is good until `until`.
    """

    principal: Principal
    fresh_until: float
    valid_until: float


_MAX_SUBJECT_LENGTH = 256
_SCOPE_CLAIMS = ("scope", "scp", "permissions")
_MEMBERSHIP_CLAIMS = ("roles", "groups")


def principal_from_claims(
    claims: Mapping[str, Any], issuer: IssuerSettings, mode: AuthMode, key_id: str | None
) -> Principal:
    """Raises AuthInvalid if it says nobody's name."""
    client = claims.get("client_id", claims.get("azp"))
    subject = claims.get("sub", client)
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_LENGTH or not subject.isprintable():
        raise AuthInvalid("The token does not say whose it is (`sub`)")
    return Principal(
        mode=mode,
        principal_id=f"{issuer.id}:{subject}",
        delegate_id=client if isinstance(client, str) and client != subject else None,
        key_id=key_id,
        scp=_scopes_from_claims(claims, issuer),
        cap=_cap_from_claims(claims),
        trust=issuer.trust,
    )


def matches_audience(audience: Any, accepted: Iterable[str]) -> bool:
    """Whether one of those it is for is one of us, or lies below one."""
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    return any(isinstance(each, str) and _is_at_or_below(each, own) for each in audiences for own in accepted)


def _is_at_or_below(name: str, own: str) -> bool:
    prefix = own.rstrip("/")
    return name in (own, prefix) or (_is_url(own) and name.startswith(f"{prefix}/"))


def _is_url(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _scopes_from_claims(claims: Mapping[str, Any], issuer: IssuerSettings) -> tuple[str, ...]:
    """What is not ours and is worth nothing here is left out: it would only tell callers apart who are alike."""
    scopes = [name for claim in _SCOPE_CLAIMS for name in _split_names(claims.get(claim))]
    memberships = [name for claim in _MEMBERSHIP_CLAIMS for name in _split_names(claims.get(claim))]
    own_scopes = {name for name in scopes if is_known_scope(name)}
    granted = {scope for name in (*scopes, *memberships) for scope in issuer.grants.get(name, ())}
    return tuple(sorted({*own_scopes, *granted, *issuer.scopes}))


def _cap_from_claims(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What `cap` leaves of the scopes: scopes, or names of capabilities alone. Anything else leaves nothing."""
    if "cap" not in claims:
        return None
    entries = _split_names(claims["cap"])
    return tuple(sorted({entry if is_known_scope(entry) else f"capability:{entry}" for entry in entries if entry}))


def _split_names(value: Any) -> list[str]:
    """OAuth writes one string with blanks, others a list."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
