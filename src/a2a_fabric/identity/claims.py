"""What a trusted server says about a caller, as one of our principals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from a2a_fabric.core.call import AuthMode, Principal
from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.core.policy import is_scope
from a2a_fabric.identity.settings import IssuerSettings

_LONGEST = 256
_SCOPES = ("scope", "scp", "permissions")
_MEMBERSHIPS = ("roles", "groups")


def principal_of(claims: Mapping[str, Any], issuer: IssuerSettings, mode: AuthMode, key_id: str | None) -> Principal:
    """Raises AuthInvalid if it says nobody's name."""
    client = claims.get("client_id", claims.get("azp"))
    subject = claims.get("sub", client)
    if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST or not subject.isprintable():
        raise AuthInvalid("The token does not say whose it is (`sub`)")
    return Principal(
        mode=mode,
        principal_id=f"{issuer.id}:{subject}",
        delegate_id=client if isinstance(client, str) and client != subject else None,
        key_id=key_id,
        scp=_scopes(claims, issuer),
        cap=_narrowing(claims),
        trust=issuer.trust,
    )


def is_meant_for(audience: Any, ours: Iterable[str]) -> bool:
    """Whether one of those it is for is one of us, or lies below one."""
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    return any(isinstance(each, str) and _is_at(each, place) for each in named for place in ours)


def _is_at(name: str, place: str) -> bool:
    bare = place.rstrip("/")
    return name in (place, bare) or (_is_address(place) and name.startswith(f"{bare}/"))


def _is_address(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _scopes(claims: Mapping[str, Any], issuer: IssuerSettings) -> tuple[str, ...]:
    """What is not ours and is worth nothing here is left out: it would only tell callers apart who are alike."""
    scopes = [name for claim in _SCOPES for name in _names(claims.get(claim))]
    memberships = [name for claim in _MEMBERSHIPS for name in _names(claims.get(claim))]
    ours = {name for name in scopes if is_scope(name)}
    granted = {scope for name in (*scopes, *memberships) for scope in issuer.grants.get(name, ())}
    return tuple(sorted({*ours, *granted, *issuer.scopes}))


def _narrowing(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What `cap` leaves of the scopes: scopes, or names of capabilities alone. Anything else leaves nothing."""
    if "cap" not in claims:
        return None
    words = _names(claims["cap"])
    return tuple(sorted({word if is_scope(word) else f"capability:{word}" for word in words if word}))


def _names(value: Any) -> list[str]:
    """OAuth writes one string with blanks, others a list."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
