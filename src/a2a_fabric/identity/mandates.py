"""Mandates: signed permissions that a principal gives a delegate, and that each delegate may narrow and pass on.

A mandate is a JWT (EdDSA) with the claims `prn` (the principal), `sub` (the delegate), `mnd` (its id), `scp`, `cap`,
`cog`, `exp`, and `cnf` (RFC 7800) with the delegate's public key. The delegate narrows it by appending a JWT of its
own, signed with that key, after a `~`:

    principal's JWT ~ first delegate's JWT ~ second delegate's JWT

`pth` of each is the hash of the JWT before it, so none can be left out, exchanged or moved. Scopes, capabilities,
expiry and depth only ever shrink. Revoking one mandate revokes all that were derived from it. To verify a mandate,
this module and the public keys of the principals' issuer are enough.

A mandate that was narrowed contains the wider ones, so a holder could cut its own link off. Therefore a mandate that
names its holder's key counts only together with a proof: a short-lived JWT behind the last link, signed with that key,
or with the key that signed the last link, by the delegate who hands it over. Delegates further down the chain get the
links and no proof. A mandate without `cnf` ends the chain; it cannot be narrowed, and counts by itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput
from a2a_fabric.core.scopes import covers_scopes, scopes_from_cap
from a2a_fabric.identity.signing import (
    SignedToken,
    SigningKey,
    encode_base64url,
    make_jwk,
    parse_public_key,
    read_token,
    sign_token,
)

SEPARATOR = "~"
TOKEN_TYPE = "mandate+jwt"  # noqa: S105  # the media type
PROOF_TYPE = "mandate-proof+jwt"
MAX_PROOF_SECONDS = 24 * 3600.0
MAX_LINKS = 8
DEFAULT_DEPTH = 4  # how often a mandate may be passed on
CLOCK_SKEW = 30.0  # seconds by which clocks may differ
_MAX_MANDATE_LENGTH = 16 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Moment = Annotated[float, Meta(ge=0, le=2**40)]  # seconds since 1970; JSON decoders accept NaN and Infinity
FindPublicKey = Callable[[str, str], Ed25519PublicKey]  # by issuer and key id


class MandateClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of one link."""

    iss: Name
    prn: Name
    sub: Name
    mnd: Name
    exp: Moment
    scp: tuple[str, ...] = ()
    cap: tuple[str, ...] | None = None
    cog: Name | None = None
    nbf: Moment | None = None
    iat: Moment | None = None
    aud: str | tuple[str, ...] | None = None
    dep: Annotated[int, Meta(ge=0, le=MAX_LINKS)] = 0  # how often it may still be passed on
    pth: Name | None = None  # hash of the link before; the first link has none
    cnf: dict[str, Any] | None = None

    @property
    def audiences(self) -> list[str] | None:
        """None if the link counts at every node that trusts the issuer."""
        return None if self.aud is None else [self.aud] if isinstance(self.aud, str) else [*self.aud]


class _ProofClaims(msgspec.Struct, frozen=True, kw_only=True):
    pth: Name  # hash of the last link
    iat: Moment
    exp: Moment
    aud: tuple[str, ...] | None = None  # where it counts; None: wherever the mandate does


class Mandate(msgspec.Struct, frozen=True, kw_only=True):
    """A verified mandate: its links, the principal's first. The last link says what its holder may do."""

    links: tuple[MandateClaims, ...]
    key_id: str | None
    proven_until: float | None = None  # until when its proof counts; None without one
    proof_audiences: tuple[str, ...] | None = None  # where its proof counts; None: wherever the links do

    @property
    def last(self) -> MandateClaims:
        return self.links[-1]

    @property
    def principal_id(self) -> str:
        return self.links[0].prn

    @property
    def delegates(self) -> tuple[str, ...]:
        return tuple(link.sub for link in self.links)

    @property
    def mandate_ids(self) -> tuple[str, ...]:
        return tuple(link.mnd for link in self.links)

    @property
    def audiences(self) -> Iterator[Sequence[str]]:
        """Each link and the proof may name those for whom the mandate is; the receiver has to be among all of them."""
        return (each for each in (*(link.audiences for link in self.links), self.proof_audiences) if each is not None)

    @property
    def valid_until(self) -> float:
        until = min(link.exp for link in self.links)
        return until if self.proven_until is None else min(until, self.proven_until)


def issue_mandate(
    key: SigningKey,
    *,
    issuer: str,
    principal: str,
    delegate: str,
    scopes: Sequence[str],
    now: float,
    seconds: float,
    capabilities: Sequence[str] | None = None,
    delegate_key: Ed25519PublicKey | None = None,
    depth: int = DEFAULT_DEPTH,
    audience: Sequence[str] = (),
    cog: str | None = None,
) -> str:
    """A new mandate. Without the delegate's public key it cannot be narrowed and passed on; with it, see above."""
    claims = _drop_unset(
        iss=issuer,
        prn=principal,
        sub=delegate,
        mnd=_new_id(),
        scp=list(scopes),
        cap=None if capabilities is None else list(capabilities),
        cog=cog,
        iat=int(now),
        exp=int(now + seconds),
        aud=list(audience) or None,
        dep=0 if delegate_key is None else depth,
        cnf=None if delegate_key is None else {"jwk": make_jwk(delegate_key)},
    )
    return _sign(claims, key)


def narrow_mandate(
    token: str,
    key: SigningKey,
    *,
    delegate: str,
    now: float,
    scopes: Sequence[str] | None = None,
    capabilities: Sequence[str] | None = None,
    seconds: float | None = None,
    delegate_key: Ed25519PublicKey | None = None,
    depth: int | None = None,
    audience: Sequence[str] | None = None,
) -> str:
    """The mandate with a further link, for the next delegate. Raises BadInput where it would grant more than before.

    What is not given stays as it is. `key` is the key of the holder, to whom the mandate was given.
    """
    parts = split_mandate(token)
    parent = decode_link(parts[-1])
    if parent.dep < 1 or parent.cnf is None:
        raise BadInput("This mandate may not be passed on")
    if parent.cnf.get("jwk") != make_jwk(key.public_key):
        raise BadInput("This mandate was given to the holder of another key, so this key cannot pass it on")
    claims = _drop_unset(
        iss=parent.iss,
        prn=parent.prn,
        sub=delegate,
        mnd=_new_id(),
        scp=list(parent.scp if scopes is None else scopes),
        cap=_to_list(parent.cap if capabilities is None else capabilities),
        cog=parent.cog,
        iat=int(now),
        exp=int(parent.exp if seconds is None else min(parent.exp, now + seconds)),
        aud=parent.audiences if audience is None else list(audience),
        dep=0 if delegate_key is None else parent.dep - 1 if depth is None else depth,
        cnf=None if delegate_key is None else {"jwk": make_jwk(delegate_key)},
        pth=_hash_link(parts[-1]),
    )
    narrowed = SEPARATOR.join((*parts, _sign(claims, key)))
    if widening := _find_widening(parent, msgspec.convert(claims, MandateClaims)):
        raise BadInput(f"A mandate can only be narrowed: {widening}")
    return narrowed


def prove_mandate(token: str, key: SigningKey, *, now: float, seconds: float, audience: Sequence[str] = ()) -> str:
    """The mandate as it can be used: with a proof by its holder, or by the delegate who hands it over.

    With an `audience` the proof counts there only: a node that gets it cannot use it at another one. Raises BadInput
    for a key that is neither's.
    """
    parts = split_mandate(token)
    last = decode_link(parts[-1])
    keys = [parent.cnf.get("jwk") for parent in map(decode_link, parts[-2:]) if parent.cnf is not None]
    if last.cnf is None:
        raise BadInput("This mandate names no key of its holder, so it needs no proof")
    if len(parts) > 1 and make_jwk(key.public_key) not in keys:  # the key of the issuer is not in the mandate
        raise BadInput("This mandate was given to the holder of another key, so this key cannot prove it")
    claims = _drop_unset(
        pth=_hash_link(parts[-1]),
        iat=int(now),
        exp=int(now + min(seconds, MAX_PROOF_SECONDS)),
        aud=list(audience) or None,
    )
    return SEPARATOR.join((*parts, sign_token(msgspec.json.encode(claims), key, PROOF_TYPE)))


def verify_mandate(token: str, find_key: FindPublicKey, now: float, *, needs_proof: bool = True) -> Mandate:
    """Raises AuthInvalid or AuthExpired. `find_key` returns a key of the issuer, or raises AuthInvalid itself.

    Whether it was revoked, and whether its audience is the right one, is for the caller to check. `needs_proof`
    is False only to look at a mandate that is not being used.
    """
    parts, proof = _split_proof(token)
    tokens = [_read_link(part) for part in parts]
    key_id = tokens[0].key_id
    links: list[MandateClaims] = []
    for number, signed in enumerate(tokens):
        link = _decode_claims(signed)
        public_key = find_key(link.iss, key_id or "") if not links else _read_holder_key(links[-1])
        if not signed.is_signed_with(public_key):
            raise AuthInvalid("The signature of the mandate is not valid")
        _check_times(link, now)
        if links and (why := _find_break(links[-1], link, parts[number - 1])):
            raise AuthInvalid(f"Link {number + 1} of the mandate is not valid: {why}")
        if not links and link.pth is not None:
            raise AuthInvalid("The mandate does not begin with the mandate of its principal")
        links.append(link)
        signer = public_key
    last = links[-1]
    if proof is not None:
        keys = [signer] if last.cnf is None else [signer, _read_holder_key(last)]
        proven = _check_proof(proof, keys, parts[-1], now)
        return Mandate(links=tuple(links), key_id=key_id, proven_until=proven.exp, proof_audiences=proven.aud)
    if last.cnf is not None and needs_proof:
        raise AuthInvalid(
            f"The mandate belongs to the holder of the key of '{last.sub}', and comes without a proof. Its holder "
            "makes one with: a2a-fabric mandate prove"
        )
    return Mandate(links=tuple(links), key_id=key_id)


def _check_proof(proof: SignedToken, keys: Sequence[Ed25519PublicKey], last_part: str, now: float) -> _ProofClaims:
    """Raises AuthInvalid or AuthExpired."""
    try:
        claims = msgspec.json.decode(proof.claims, type=_ProofClaims)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise AuthInvalid(f"The proof of the mandate is not valid: {exc}"[:300]) from exc
    if claims.pth != _hash_link(last_part) or not any(map(proof.is_signed_with, keys)):
        raise AuthInvalid("The proof is not one of this mandate's holder")
    if not claims.iat - CLOCK_SKEW <= now or claims.exp - claims.iat > MAX_PROOF_SECONDS:
        raise AuthInvalid("The proof of the mandate is not valid yet, or valid for too long")
    if not claims.exp + CLOCK_SKEW > now:
        raise AuthExpired("The proof of the mandate has expired. Its holder makes a new one")
    return claims


def is_mandate(token: str) -> bool:
    """Whether the token claims to be a mandate."""
    try:
        return read_token(token.partition(SEPARATOR)[0]).is_of_type(TOKEN_TYPE)
    except (ValueError, RecursionError):
        return False


def split_mandate(token: str) -> list[str]:
    """Its links, without a proof. Raises AuthInvalid for a mandate that is too long."""
    return _split_proof(token)[0]


def remove_proof(token: str) -> str:
    """The mandate as it may be passed on."""
    return SEPARATOR.join(split_mandate(token))


def _split_proof(token: str) -> tuple[list[str], SignedToken | None]:
    parts = token.split(SEPARATOR, MAX_LINKS + 1)
    proof = None
    is_bounded = len(parts) <= MAX_LINKS + 1 and len(token) <= _MAX_MANDATE_LENGTH
    if is_bounded and len(parts) > 1:
        try:
            last = read_token(parts[-1])
        except (ValueError, RecursionError) as exc:
            raise AuthInvalid("The mandate is not a JSON Web Token") from exc
        if last.is_of_type(PROOF_TYPE):
            proof = last
            parts.pop()
    if not is_bounded or len(parts) > MAX_LINKS:
        raise AuthInvalid(f"The mandate was passed on more than {MAX_LINKS - 1} times, or it is too long")
    return parts, proof


def decode_link(part: str) -> MandateClaims:
    """The claims, not verified yet. Raises AuthInvalid."""
    return _decode_claims(_read_link(part))


def read_key_id(part: str) -> str | None:
    """Raises AuthInvalid."""
    return _read_link(part).key_id


def _read_link(part: str) -> SignedToken:
    try:
        token = read_token(part)
    except (ValueError, RecursionError) as exc:
        raise AuthInvalid("The mandate is not a JSON Web Token") from exc
    if not token.is_of_type(TOKEN_TYPE):
        raise AuthInvalid(f"The token is not a mandate: its type (`typ`) must be {TOKEN_TYPE}")
    return token


def _decode_claims(token: SignedToken) -> MandateClaims:
    try:
        return msgspec.json.decode(token.claims, type=MandateClaims)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise AuthInvalid(f"The mandate is not valid: {exc}"[:300]) from exc


def _check_times(link: MandateClaims, now: float) -> None:
    if not link.exp + CLOCK_SKEW > now:
        raise AuthExpired("The mandate has expired")
    if any(moment is not None and not moment - CLOCK_SKEW <= now for moment in (link.nbf, link.iat)):
        raise AuthInvalid("The mandate is not valid yet (`nbf`, `iat`). Compare the clocks")


def _read_holder_key(link: MandateClaims) -> Ed25519PublicKey:
    try:
        return parse_public_key((link.cnf or {}).get("jwk"))
    except ValueError as exc:
        raise AuthInvalid("The mandate names no key of its holder (`cnf`), so the holder cannot pass it on") from exc


def _find_break(parent: MandateClaims, link: MandateClaims, parent_part: str) -> str | None:
    if link.pth != _hash_link(parent_part):
        return "it does not belong to the link before it"
    if (link.iss, link.prn) != (parent.iss, parent.prn):
        return "it names another principal"
    return _find_widening(parent, link)


def _find_widening(parent: MandateClaims, link: MandateClaims) -> str | None:
    # Words that are not scopes of Fabric count by the `grants` of a node, so they can only be kept or left out.
    if not covers_scopes(parent.scp, tuple(scope for scope in link.scp if scope not in parent.scp)):
        return "its scopes are wider than before"
    if parent.cap is not None and (
        link.cap is None or not covers_scopes(scopes_from_cap(parent.cap), scopes_from_cap(link.cap))
    ):
        return "its capabilities are wider than before"
    if not link.exp <= parent.exp:
        return "it expires later than before"
    if not link.dep < parent.dep:
        return "it may be passed on more often than before"
    if parent.audiences is not None and not set(link.audiences or ("",)) <= set(parent.audiences):
        return "it has a wider audience than before"
    return "it belongs to another cog" if parent.cog is not None and link.cog != parent.cog else None


def _hash_link(part: str) -> str:
    return encode_base64url(hashlib.sha256(part.encode()).digest())


def _sign(claims: dict[str, Any], key: SigningKey) -> str:
    return sign_token(msgspec.json.encode(claims), key, TOKEN_TYPE)


def _new_id() -> str:
    return f"mnd-{secrets.token_hex(12)}"


def _to_list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _drop_unset(**claims: Any) -> dict[str, Any]:
    return {name: value for name, value in claims.items() if value is not None}
