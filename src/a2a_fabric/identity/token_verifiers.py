"""Verifies tokens: signed ones (JWT) with the issuer's published keys, opaque ones by OAuth 2.0 introspection.

The claims of a verified token become a principal, with the time for which the verification is valid.

Keys are fetched when first needed, when a key is missing, and periodically; if the issuer is unreachable,
fetched keys stay valid for a day."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt
import msgspec

from a2a_fabric.core.call import AuthMode, Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, RateLimited
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.scopes import is_known_scope, scopes_from_cap
from a2a_fabric.identity.revocations import RevocationList
from a2a_fabric.identity.settings import IssuerSettings, metadata_urls
from a2a_fabric.outbound.port import HTTPClient, OutboundError

METADATA_TIMEOUT = 5.0
RETRY_AFTER = 5.0
_MAX_REPLY_BYTES = 512 * 1024
_FORM_HEADERS = {"content-type": "application/x-www-form-urlencoded"}


class IssuerUnavailable(RateLimited):
    """A token cannot be checked now. This says nothing about the token."""

    def __init__(self, issuer: str, why: str) -> None:
        super().__init__(f"The token cannot be checked now: {issuer} {why}. Try again later", RETRY_AFTER)
        self.why = why


class IssuerMetadata:
    """The metadata of one issuer, fetched when first needed."""

    def __init__(self, issuer: str, http: HTTPClient) -> None:
        self.issuer = issuer
        self._http = http
        self._document: dict[str, Any] | None = None
        self._fetch_lock = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """The whole document. Raises IssuerUnavailable."""
        async with self._fetch_lock:
            if self._document is None:
                self._document = await self._fetch_document()
        return self._document

    async def find_endpoint(self, name: str) -> str:
        """The URL of its `jwks_uri` or `introspection_endpoint`. Raises IssuerUnavailable."""
        url = (await self.read()).get(name)
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


REFRESH_SECONDS = 600.0
MAX_KEY_AGE = 86_400.0
MIN_FETCH_INTERVAL = 10.0  # between two fetches: invented key ids must not cause a fetch each

_MAX_SUBJECT_LENGTH = 256
_SCOPE_CLAIMS = ("scope", "scp", "permissions")
_MEMBERSHIP_CLAIMS = ("roles", "groups")

_log = logging.getLogger(__name__)


class VerifiedToken(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970. After `fresh_until`, the next request checks the token again.

    Requests that arrived earlier may still be reading their body; for them it counts until `valid_until`.
    """

    principal: Principal
    fresh_until: float
    valid_until: float
    ids: tuple[str, ...] = ()  # of a passport, or of a mandate and those that it was derived from
    revocations: RevocationList | None = None

    def check_revoked(self) -> None:
        """Raises AuthInvalid, or RateLimited if that cannot be found out."""
        revoked = None if self.revocations is None else self.revocations.find_revoked(self.ids)
        if revoked is not None:
            raise AuthInvalid(f"'{revoked[:64]}' was revoked by its issuer")


async def make_verified(
    principal: Principal,
    valid_until: float,
    refresh_seconds: float,
    ids: tuple[str, ...] = (),
    revocations: RevocationList | None = None,
) -> VerifiedToken:
    """A token that is checked again after `refresh_seconds`: its issuer may have withdrawn the key that signed it.

    Raises AuthInvalid if one of the ids was revoked.
    """
    if revocations is not None:
        await revocations.refresh()
        refresh_seconds = min(refresh_seconds, revocations.refresh_seconds)
    verified = VerifiedToken(
        principal=principal,
        fresh_until=min(valid_until, time.time() + refresh_seconds),
        valid_until=valid_until,
        ids=ids,
        revocations=revocations,
    )
    verified.check_revoked()
    return verified


class UnknownKey(AuthInvalid):
    """The issuer has no such key; another one may have it."""


class KeySet:
    """`fetch` returns a JSON Web Key Set, or raises IssuerUnavailable."""

    def __init__(
        self,
        issuer: str,
        fetch: Callable[[], Awaitable[bytes]],
        min_interval: float = MIN_FETCH_INTERVAL,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refresh_seconds = refresh_seconds
        self._issuer = issuer
        self._fetch = fetch
        self._min_interval = min_interval
        self._clock = clock
        self._keys: list[dict[str, Any]] = []
        self._parsed_keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetch_lock = asyncio.Lock()

    async def find_key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Raises AuthInvalid if there is no such key, IssuerUnavailable if no keys could be fetched."""
        if self._age(self._fetched_at) > self.refresh_seconds:
            await self._refresh()
        match = self._find(key_id, algorithm)
        if match is None:
            await self._refresh()
            match = self._find(key_id, algorithm)
        if match is None:
            raise UnknownKey(f"The credentials are signed with a key that {self._issuer} does not publish")
        return match

    async def _refresh(self) -> None:
        async with self._fetch_lock:
            is_too_old = self._age(self._fetched_at) > MAX_KEY_AGE
            if self._age(self._tried_at) < self._min_interval and not is_too_old:
                return
            self._tried_at = self._clock()
            try:
                self._load(await self._fetch())
            except IssuerUnavailable as error:
                if is_too_old:
                    raise
                _log.warning("%s; the keys fetched before stay in use", error.message)

    def _load(self, document: bytes) -> None:
        try:
            self._keys = msgspec.json.decode(document, type=_KeySetDocument).keys
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise IssuerUnavailable(self._issuer, "does not publish a JSON Web Key Set") from exc
        self._parsed_keys = {}
        self._fetched_at = self._clock()

    def _find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        cached = self._parsed_keys.get((key_id, algorithm))
        if cached is not None:
            return cached
        matches = [parsed for each in self._keys if (parsed := _parse_key(each, key_id, algorithm)) is not None]
        if not matches or (key_id is None and len(matches) > 1):
            return None
        self._parsed_keys[key_id, algorithm] = matches[0]
        return matches[0]

    def _age(self, at: float | None) -> float:
        return float("inf") if at is None else self._clock() - at


class _KeySetDocument(msgspec.Struct):
    keys: list[dict[str, Any]]


def _parse_key(key: dict[str, Any], key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
    if key_id is not None and key.get("kid") != key_id:
        return None
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return None
    try:
        return jwt.PyJWK(key, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None  # not a key for this algorithm


CLOCK_SKEW = 30.0  # seconds by which clocks may differ
KEY_PAIR_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")

VerificationKey = jwt.PyJWK | str
FindKey = Callable[[str | None, str], Awaitable[VerificationKey]]


class NotAJWT(Exception):
    """The token is not a JWT."""


class JWTVerifier:
    """`algorithms` are those of key pairs or those of secrets, never both: a public key must not pass as a secret."""

    def __init__(
        self,
        settings: IssuerSettings,
        audience: tuple[str, ...],
        find_key: FindKey,
        algorithms: tuple[str, ...],
        refresh_seconds: float = REFRESH_SECONDS,
        revocations: RevocationList | None = None,
    ) -> None:
        self._settings = settings
        self._audience = audience
        self._find_key = find_key
        self._algorithms = algorithms
        self._refresh_seconds = refresh_seconds
        self._revocations = revocations

    async def check(self, token: str) -> VerifiedToken:
        """Raises AuthInvalid, AuthExpired or IssuerUnavailable."""
        claims, key_id = await self.read_claims(token)
        if not matches_audience(claims.get("aud"), self._audience):
            raise AuthInvalid("The token is not meant for this node (`aud`)")
        principal = principal_from_claims(claims, self._settings, "jwt", key_id)
        valid_until = float(claims["exp"]) + CLOCK_SKEW
        if principal.mandate_id is not None:  # a mandate that its issuer wrote as a plain JWT can be revoked as well
            return await make_verified(
                principal, valid_until, self._refresh_seconds, (principal.mandate_id,), self._revocations
            )
        return await make_verified(principal, valid_until, self._refresh_seconds)

    async def read_claims(self, token: str) -> tuple[dict[str, Any], str | None]:
        """The claims of a token that the issuer has signed and that has not expired, and the id of the key. For whom
        it was issued (`aud`) is not checked here. Raises NotAJWT, AuthInvalid, AuthExpired or IssuerUnavailable.
        """
        header = read_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise AuthInvalid(f"The token is signed with {str(algorithm)[:20]}, which this node does not accept")
        if key_id is not None and not isinstance(key_id, str):
            raise AuthInvalid("The key id (`kid`) of the token is not a text")
        return self._decode(token, await self._find_key(key_id, algorithm)), key_id

    def _decode(self, token: str, key: VerificationKey) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(self._algorithms),
                issuer=self._settings.issuer,
                leeway=CLOCK_SKEW,
                options={"require": ["exp", "iss"], "verify_aud": False, "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError as exc:
            raise AuthExpired("The token has expired") from exc
        except jwt.ImmatureSignatureError as exc:
            raise AuthInvalid("The token is not valid yet (`nbf`, `iat`). Compare the clocks") from exc
        except jwt.MissingRequiredClaimError as exc:
            raise AuthInvalid(f"The token lacks `{exc.claim}`") from exc
        except (jwt.PyJWTError, ValueError, OverflowError) as exc:
            raise AuthInvalid("The signature or form of the token is invalid") from exc


def read_header(token: str) -> dict[str, Any]:
    """Raises NotAJWT."""
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as exc:
        raise NotAJWT from exc


def read_issuer(token: str) -> str | None:
    """The issuer that the token names, not verified yet. Raises NotAJWT."""
    read_header(token)
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as exc:
        raise NotAJWT from exc
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


_MAX_REQUEST_SECONDS = 300.0  # in which the body of a request may still arrive


class IntrospectionVerifier:
    def __init__(self, settings: IssuerSettings, audience: tuple[str, ...], metadata: IssuerMetadata) -> None:
        self._settings = settings
        self._audience = audience
        self._metadata = metadata
        self._headers = basic_auth_header(settings.client_id or "", settings.client_secret or "")

    async def check(self, token: str) -> VerifiedToken:
        """Raises AuthInvalid, AuthExpired or IssuerUnavailable."""
        claims = await self._introspect(token)
        if claims.get("active") is not True:
            raise AuthInvalid("The token is unknown to its issuer, was revoked, or has expired")
        if claims.get("iss", self._settings.issuer) != self._settings.issuer:
            raise AuthInvalid("The token was issued by another issuer (`iss`)")
        if "aud" in claims and not matches_audience(claims["aud"], self._audience):
            raise AuthInvalid("The token is not meant for this node (`aud`)")
        now = time.time()
        expires_at = _parse_expiry(claims.get("exp"), now)
        fresh_until = min(expires_at, now + self._settings.introspection_seconds)
        principal = principal_from_claims(claims, self._settings, "oauth2", None)
        return VerifiedToken(
            principal=principal,
            fresh_until=fresh_until,
            valid_until=min(expires_at, fresh_until + _MAX_REQUEST_SECONDS),
        )

    async def _introspect(self, token: str) -> dict[str, Any]:
        url = self._settings.introspection_url or await self._metadata.find_endpoint("introspection_endpoint")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            claims = msgspec.json.decode(await self._metadata.post(url, self._headers, form))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise IssuerUnavailable(self._metadata.issuer, "did not answer in JSON") from exc
        if not isinstance(claims, dict):
            raise IssuerUnavailable(self._metadata.issuer, "did not answer with an object")
        return claims


def _parse_expiry(value: Any, now: float) -> float:
    if not isinstance(value, int | float):
        return math.inf
    if value <= now:
        raise AuthExpired("The token has expired")
    return float(value)


def basic_auth_header(name: str, password: str) -> dict[str, str]:
    pair = f"{quote_plus(name)}:{quote_plus(password)}".encode()
    return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}


def principal_from_claims(
    claims: Mapping[str, Any], issuer: IssuerSettings, mode: AuthMode, key_id: str | None
) -> Principal:
    """Raises AuthInvalid if the token names no subject."""
    client = claims.get("client_id", claims.get("azp"))
    subject = claims.get("sub", client)
    principal, mandate_id = claims.get("prn"), claims.get("mnd")
    if isinstance(principal, str) and isinstance(mandate_id, str):  # a mandate: its subject acts for the principal
        client, subject, mode = subject, principal, "mandate"
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_LENGTH or not subject.isprintable():
        raise AuthInvalid("The token names no subject (`sub`)")
    return Principal(
        mode=mode,
        principal_id=f"{issuer.id}:{subject}",
        delegate_id=client if isinstance(client, str) and client != subject else None,
        mandate_id=mandate_id if isinstance(mandate_id, str) else None,
        cog_id=cog if isinstance(cog := claims.get("cog"), str) else None,
        key_id=key_id,
        scp=_scopes_from_claims(claims, issuer),
        cap=_cap_from_claims(claims),
        trust=issuer.trust,
    )


def matches_audience(audience: Any, accepted: Iterable[str]) -> bool:
    """Whether the token is for one of the accepted audiences, or for a URL below one."""
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    return any(isinstance(each, str) and _is_at_or_below(each, own) for each in audiences for own in accepted)


def _is_at_or_below(name: str, own: str) -> bool:
    prefix = own.rstrip("/")
    return name in (own, prefix) or (own.startswith(("https://", "http://")) and name.startswith(f"{prefix}/"))


def _scopes_from_claims(claims: Mapping[str, Any], issuer: IssuerSettings) -> tuple[str, ...]:
    """Our own scopes and the granted ones. Others are left out: callers with the same rights should look alike."""
    scopes = [name for claim in _SCOPE_CLAIMS for name in _split_names(claims.get(claim))]
    memberships = [name for claim in _MEMBERSHIP_CLAIMS for name in _split_names(claims.get(claim))]
    own_scopes = {name for name in scopes if is_known_scope(name)}
    granted = {scope for name in (*scopes, *memberships) for scope in issuer.grants.get(name, ())}
    return tuple(sorted({*own_scopes, *granted, *issuer.scopes}))


def _cap_from_claims(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The restriction by `cap`: scopes, or plain names of capabilities. A malformed `cap` permits nothing."""
    if "cap" not in claims:
        return None
    return tuple(sorted({*scopes_from_cap(_split_names(claims["cap"]))}))


def _split_names(value: Any) -> list[str]:
    """OAuth separates names by spaces, other issuers send a list."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
