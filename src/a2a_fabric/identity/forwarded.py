"""Identities that nodes sign for what they forward: who calls, on whose behalf, what, and for which receiver.

An identity is a short-lived JWT (EdDSA) of the type `fabric-identity+jwt`. It is bound to its receiver (`aud`), to the
call (`agent_id`, `capability`, `trace_id`) and to the content (`dig`), and counts once (`jti`). `sub` is the principal
on whose behalf the call is made, `act` the chain of those who act for it, the newest outermost (RFC 8693). If the
principal gave a mandate, `mandate` has it, so that the receiver need not take the node's word for it.

To check one, this module and the public keys of the node are enough: `NodeIdentityVerifier` does it for an agent."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.core.call import AuthMode
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, ConfigError, RateLimited
from a2a_fabric.core.scopes import ScopeSet, parse_scopes, scopes_from_cap
from a2a_fabric.identity.mandates import CLOCK_SKEW, Mandate, Moment, verify_mandate
from a2a_fabric.identity.signing import (
    SignedToken,
    SigningKey,
    encode_base64url,
    encode_canonical,
    parse_public_keys,
    read_token,
    sign_token,
)

IDENTITY_TYPE = "fabric-identity+jwt"
MAX_LIFETIME = 600.0  # seconds; an identity that claims to be valid for longer is refused
MAX_ACTORS = 32
_MAX_LENGTH = 32 * 1024
_MAX_SEEN = 200_000

_Name = Annotated[str, Meta(min_length=1, max_length=2048)]
KeySource = bytes | str | Path | Mapping[str, Ed25519PublicKey]


class ForwardedIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The claims of an identity."""

    iss: _Name  # the node that signed
    aud: _Name
    sub: _Name
    jti: _Name
    iat: Moment
    nbf: Moment
    exp: Moment
    dig: _Name
    act: dict[str, Any] | None = None
    mode: AuthMode | None = None  # how the principal was identified
    agent_id: str | None = None  # the agent as the node calls it
    capability: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    scp: tuple[str, ...] | None = None
    cap: tuple[str, ...] | None = None
    mandate: str | None = None

    @property
    def actors(self) -> tuple[str, ...]:
        """Those who act for the principal, the oldest first; the last one is the node. Raises AuthInvalid."""
        actors: list[str] = []
        actor = self.act
        while actor is not None:
            name, actor = actor.get("sub"), actor.get("act")
            if not isinstance(name, str) or not isinstance(actor, dict | None) or len(actors) >= MAX_ACTORS:
                raise AuthInvalid("The chain of actors (`act`) of the identity is not valid")
            actors.append(name)
        return tuple(reversed(actors))


def nest_actors(actors: Iterable[str]) -> dict[str, Any] | None:
    """The `act` claim for these actors, of whom the oldest comes first."""
    act: dict[str, Any] | None = None
    for name in actors:
        act = {"sub": name} if act is None else {"sub": name, "act": act}
    return act


def sign_identity(identity: ForwardedIdentity, key: SigningKey) -> str:
    return sign_token(msgspec.json.encode(identity), key, IDENTITY_TYPE)


def digest_content(content: Any) -> str:
    """Of bytes as they are; of any other value in its canonical JSON form. Raises ValueError if it has none."""
    return encode_base64url(
        hashlib.sha256(content if isinstance(content, bytes) else encode_canonical(content)).digest()
    )


def read_identity(text: str) -> tuple[ForwardedIdentity, SignedToken]:
    """The claims, not verified yet, and the token. Raises AuthInvalid."""
    if len(text) > _MAX_LENGTH:
        raise AuthInvalid(f"The identity is longer than {_MAX_LENGTH} characters")
    try:
        token = read_token(text)
        claims = msgspec.json.decode(token.claims, type=ForwardedIdentity)
    except msgspec.ValidationError as exc:
        raise AuthInvalid(f"The identity is not valid: {exc}"[:300]) from exc
    except (ValueError, RecursionError) as exc:
        raise AuthInvalid("The identity is not a JSON Web Token") from exc
    if not token.is_of_type(IDENTITY_TYPE) or token.key_id is None:
        raise AuthInvalid(f"The token is not an identity: its type (`typ`) must be {IDENTITY_TYPE}, with a `kid`")
    return claims, token


def check_identity(
    identity: ForwardedIdentity,
    token: SignedToken,
    public_key: Ed25519PublicKey,
    *,
    audience: Sequence[str],
    now: float,
) -> None:
    """Check signature, times and receiver. Raises AuthInvalid or AuthExpired."""
    if not token.is_signed_with(public_key):
        raise AuthInvalid("The signature of the identity is not valid")
    if not identity.exp + CLOCK_SKEW > now:
        raise AuthExpired("The identity has expired. Compare the clocks of the nodes")
    if not max(identity.nbf, identity.iat) - CLOCK_SKEW <= now:
        raise AuthInvalid("The identity is not valid yet. Compare the clocks of the nodes")
    if not identity.exp - identity.iat <= MAX_LIFETIME:
        raise AuthInvalid(f"The identity is valid for longer than {MAX_LIFETIME:.0f} seconds")
    if identity.aud.rstrip("/") not in {each.rstrip("/") for each in audience}:
        raise AuthInvalid(f"The identity is meant for '{identity.aud[:200]}', not for this receiver")
    identity.actors  # noqa: B018  # a chain that cannot be read is refused


def check_content(identity: ForwardedIdentity, content: Any) -> None:
    """Raises AuthInvalid."""
    try:
        digest = digest_content(content)
    except (ValueError, TypeError, RecursionError) as exc:
        raise AuthInvalid("The content has no canonical form, so it is not what was signed") from exc
    if digest != identity.dig:
        raise AuthInvalid("The content is not what was signed: it was changed on the way")


class SeenIdentities:
    """Remembers identities until they expire, so that each counts once."""

    def __init__(self, most: int = _MAX_SEEN) -> None:
        self._most = most
        self._expires_at: dict[tuple[str, str], float] = {}

    def add(self, identity: ForwardedIdentity, now: float) -> None:
        """Raises AuthInvalid for one that was here before, RateLimited if no more can be remembered."""
        key = (identity.iss, identity.jti)
        if key in self._expires_at:
            raise AuthInvalid("The identity was used before")
        if len(self._expires_at) >= self._most:
            self._expires_at = {each: at for each, at in self._expires_at.items() if at > now}
            if len(self._expires_at) >= self._most:
                raise RateLimited("Too many identities were used within a minute", 5.0)
        self._expires_at[key] = identity.exp + CLOCK_SKEW


class VerifiedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """An identity that was checked, and its mandate, if there is one that could be checked."""

    identity: ForwardedIdentity
    mandate: Mandate | None = None

    @property
    def principal_id(self) -> str:
        return self.identity.sub

    @property
    def actors(self) -> tuple[str, ...]:
        return self.identity.actors


class NodeIdentityVerifier:
    """Checks identities of trusted nodes offline, for an agent: `Agent("percy", verify=NodeIdentityVerifier(…))`.

    `nodes` has the public keys of each node by its name (`iss`), `issuers` those of the issuers of mandates: the
    content or the path of a JSON Web Key Set. `audience` is the agent's own address, as the nodes know it; an agent
    without an address has its id there. With `requires_mandate`, a call without a mandate is refused.
    """

    def __init__(
        self,
        nodes: Mapping[str, KeySource],
        *,
        audience: str | Sequence[str],
        issuers: Mapping[str, KeySource] | None = None,
        revoked: Iterable[str] = (),
        requires_mandate: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for keys that cannot be read."""
        self._nodes = {name: _load_keys(source) for name, source in nodes.items()}
        self._issuers = {name: _load_keys(source) for name, source in (issuers or {}).items()}
        self._audience = (audience,) if isinstance(audience, str) else tuple(audience)
        self._revoked = frozenset(revoked)
        self._requires_mandate = requires_mandate
        self._clock = clock
        self._seen = SeenIdentities()

    def verify(self, token: str, content: Any, *, capability: str | None = None) -> VerifiedIdentity:
        """Check an identity, and the mandate in it. Raises AuthInvalid or AuthExpired.

        `content` is the body of the request as bytes, or the signed part of a message: the arguments of an MCP tool or
        of a program. Of a message, name the `capability` as well: the tool that was called.
        """
        identity, signed = read_identity(token)
        public_key = _find_key(self._nodes, identity.iss, signed.key_id or "", "node")
        now = self._clock()
        check_identity(identity, signed, public_key, audience=self._audience, now=now)
        check_content(identity, content)
        if capability is not None and normalize_name(identity.capability or "") != normalize_name(capability):
            raise AuthInvalid("The identity was signed for another capability")
        mandate = self._verify_mandate(identity, now)
        self._seen.add(identity, now)
        return VerifiedIdentity(identity=identity, mandate=mandate)

    def _verify_mandate(self, identity: ForwardedIdentity, now: float) -> Mandate | None:
        if identity.mandate is None:
            if self._requires_mandate:
                raise AuthInvalid("The call has no mandate")
            return None
        mandate = verify_mandate(identity.mandate, self._find_issuer_key, now)
        check_mandate_use(mandate, self._audience, identity.capability)
        if revoked := next((each for each in mandate.mandate_ids if each in self._revoked), None):
            raise AuthInvalid(f"'{revoked[:64]}' was revoked by its issuer")
        return mandate

    def _find_issuer_key(self, issuer: str, key_id: str) -> Ed25519PublicKey:
        return _find_key(self._issuers, issuer, key_id, "issuer of mandates")


def check_mandate_use(mandate: Mandate, audience: Sequence[str], capability: str | None) -> None:
    """Check that the mandate is for this receiver and allows this capability. Raises AuthInvalid."""
    for audiences in mandate.audiences:
        if not set(audiences) & set(audience):
            raise AuthInvalid(f"The mandate is not meant for this receiver: its audience is {list(audiences)}"[:300])
    last = mandate.last
    # Agents have other ids at each node, and `grants` other words, so such scopes say nothing here; each node that
    # forwarded the call has checked them.
    scopes = last.scp if all(each.startswith("capability:") for each in last.scp) else None
    for allowed in (scopes, None if last.cap is None else scopes_from_cap(last.cap)):
        if allowed is not None and not _allows(parse_scopes(allowed), capability or ""):
            raise AuthInvalid(f"The mandate does not allow '{(capability or 'this')[:64]}'")


def _allows(scopes: ScopeSet, capability: str) -> bool:
    return scopes.has_kind("agent") or scopes.allows_capability(normalize_name(capability))


def _load_keys(source: KeySource) -> dict[str, Ed25519PublicKey]:
    try:
        if isinstance(source, Mapping):
            return dict(source)
        return parse_public_keys(source if isinstance(source, bytes) else Path(source).read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"The public keys cannot be read: {exc}") from exc


def _find_key(
    trusted: Mapping[str, Mapping[str, Ed25519PublicKey]], name: str, key_id: str, kind: str
) -> Ed25519PublicKey:
    if name not in trusted:
        raise AuthInvalid(f"'{name[:200]}' is not a trusted {kind}")
    if key_id not in trusted[name]:
        raise AuthInvalid(f"The {kind} '{name[:200]}' has no key '{key_id[:64]}'")
    return trusted[name][key_id]
