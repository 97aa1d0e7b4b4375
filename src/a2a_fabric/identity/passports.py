"""Passports: a JSON object that says which agent acts for which principal, with which scopes and until when.

An issuer signs it with Ed25519 over the canonical JSON of all its fields but the signature. It is sent as the header
`X-Agent-Passport`, as JSON or as the base64url of it. Every holder may use it, so it should expire soon; with
`audience` it counts only at the nodes that it names. To verify one, this module and the issuer's keys are enough.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta

from a2a_fabric.core.errors import AuthExpired, AuthInvalid
from a2a_fabric.identity.signing import SigningKey, decode_base64url, encode_canonical, is_signed

PASSPORT_HEADER = "X-Agent-Passport"
MAX_PASSPORT_LENGTH = 8192
CLOCK_SKEW = 30.0  # seconds by which clocks may differ
_MAX_SCOPES = 256

Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Passport(msgspec.Struct, frozen=True, kw_only=True):
    """Times are ISO 8601 with a time zone. Fields that are not listed here are signed, too, and kept."""

    principal_id: Name  # who answers for what the agent does
    agent_passport_id: Name  # the agent's own id; a renewed passport keeps it
    delegation_scopes: Annotated[tuple[Name, ...], Meta(max_length=_MAX_SCOPES)]
    expires_at: Name
    key_id: Name
    signature: Name
    issuer: Name | None = None
    issued_at: Name | None = None
    not_before: Name | None = None
    audience: str | tuple[str, ...] | None = None
    cap: tuple[str, ...] | None = None  # narrows the scopes further

    @property
    def audiences(self) -> list[str] | None:
        """None if it counts at every node that trusts the issuer."""
        if self.audience is None:
            return None
        return [self.audience] if isinstance(self.audience, str) else [*self.audience]

    @property
    def valid_until(self) -> float:
        return parse_time(self.expires_at, "expires_at")


def issue_passport(
    key: SigningKey,
    *,
    principal_id: str,
    scopes: Sequence[str],
    expires_at: datetime,
    agent_passport_id: str | None = None,
    issuer: str | None = None,
    audience: Sequence[str] = (),
) -> dict[str, Any]:
    """A new signed passport, ready to be encoded as JSON."""
    fields: dict[str, Any] = {
        "principal_id": principal_id,
        "agent_passport_id": agent_passport_id or f"pp-{secrets.token_hex(12)}",
        "delegation_scopes": list(scopes),
        "issued_at": format_time(datetime.now(UTC)),
        "expires_at": format_time(expires_at),
        "key_id": key.key_id,
    }
    if issuer is not None:
        fields["issuer"] = issuer
    if audience:
        fields["audience"] = list(audience)
    return {**fields, "signature": key.sign(encode_canonical(fields))}


def is_passport(text: str) -> bool:
    """Whether the text is JSON, or base64url of JSON, and so no token of another kind."""
    start = text.lstrip()[:3]
    return start.startswith("{") or (start == "eyJ" and "." not in text)


def decode_passport(text: str) -> tuple[Passport, dict[str, Any]]:
    """The passport, not verified yet, and all of its fields. Raises AuthInvalid."""
    if len(text) > MAX_PASSPORT_LENGTH:
        raise AuthInvalid(f"The passport is longer than {MAX_PASSPORT_LENGTH} characters")
    try:
        content = text.encode() if text.lstrip().startswith("{") else decode_base64url(text.strip())
        fields = msgspec.json.decode(content)
        return msgspec.convert(fields, Passport), fields
    except msgspec.ValidationError as exc:
        raise AuthInvalid(f"The passport is not valid: {exc}"[:300]) from exc
    except (ValueError, RecursionError) as exc:
        raise AuthInvalid("The passport is not JSON, and not the base64url of JSON") from exc


def check_passport(
    passport: Passport,
    fields: Mapping[str, Any],
    public_key: Ed25519PublicKey,
    now: float,
) -> None:
    """Check signature and times. Raises AuthInvalid or AuthExpired."""
    try:
        signed = encode_canonical({name: value for name, value in fields.items() if name != "signature"})
    except (ValueError, TypeError, RecursionError) as exc:
        raise AuthInvalid("The passport has no canonical form (RFC 8785), so its signature cannot be checked") from exc
    if not is_signed(signed, passport.signature, public_key):
        raise AuthInvalid("The signature of the passport is not valid")
    if passport.valid_until + CLOCK_SKEW <= now:
        raise AuthExpired(f"The passport expired at {passport.expires_at}")
    for name in ("issued_at", "not_before"):
        begins_at = getattr(passport, name)
        if begins_at is not None and parse_time(begins_at, name) - CLOCK_SKEW > now:
            raise AuthInvalid(f"The passport is not valid yet: its `{name}` is {begins_at}. Compare the clocks")


def parse_time(text: str, field: str) -> float:
    """Raises AuthInvalid."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        seconds = moment.timestamp()
    except (ValueError, OverflowError) as exc:
        raise AuthInvalid(f"The `{field}` of the passport is not an ISO 8601 time with a time zone") from exc
    return seconds if math.isfinite(seconds) else 0.0


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
