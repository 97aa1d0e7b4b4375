"""Verifies tokens of the trusted issuers ahead of each request and caches the outcome; built from the settings.

Identifying a caller only looks up the cached outcome, so no request waits twice, and a known token does
not wait at all. Imported only where issuers are configured, since it needs the cryptography library."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, ConfigError, FabricError, RateLimited
from a2a_fabric.identity.delegation_verifiers import IssuerTerms, MandateVerifier, PassportVerifier
from a2a_fabric.identity.mandates import SEPARATOR as MANDATE_SEPARATOR
from a2a_fabric.identity.mandates import is_mandate
from a2a_fabric.identity.passports import is_passport
from a2a_fabric.identity.revocations import FetchedRevocations, FileRevocations, RevocationList
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.token_verifiers import (
    KEY_PAIR_ALGORITHMS,
    SECRET_ALGORITHMS,
    FindKey,
    IntrospectionVerifier,
    IssuerMetadata,
    IssuerUnavailable,
    JWTVerifier,
    KeySet,
    NotAJWT,
    UnknownKey,
    VerificationKey,
    VerifiedToken,
    is_secure_url,
    read_issuer,
)
from a2a_fabric.outbound.port import HTTPClient

_MAX_CACHED = 10_000
_MAX_CONCURRENT = 64
_MAX_TOKEN_LENGTH = 16 * 1024
_VERIFY_TIMEOUT = 15.0  # seconds for checking a token, including the wait for others
_REFUSED_SECONDS = 5.0  # a refused token is not checked again for so long
_FILE_SECONDS = 5.0  # a file of keys is read again after so long, so that it can be changed while the node runs


class TokenVerifier(Protocol):
    async def check(self, token: str) -> VerifiedToken:
        """Raises FabricError."""
        ...


class TrustedIssuer(NamedTuple):
    """One issuer, with a verifier for each kind of its credentials that counts."""

    name: str
    jwt_verifier: TokenVerifier | None = None
    introspection_verifier: TokenVerifier | None = None  # for opaque tokens
    passport_verifier: TokenVerifier | None = None
    mandate_verifier: TokenVerifier | None = None


class TrustedTokens:
    def __init__(self, issuers: Sequence[TrustedIssuer], timeout: float = _VERIFY_TIMEOUT) -> None:
        self._timeout = timeout
        self._issuers = {issuer.name: issuer for issuer in issuers}
        # By digest: strangers choose the tokens, and may make each as long as a header can be.
        self._outcomes: dict[bytes, VerifiedToken | RefusedToken] = {}
        self._pending: dict[str, asyncio.Task[VerifiedToken | RefusedToken]] = {}

    def get_principal(self, token: str) -> Principal:
        """Raises AuthInvalid, AuthExpired, or RateLimited if the token cannot be checked now."""
        outcome = self._outcomes.get(_digest(token))
        if outcome is None:
            raise AuthInvalid
        if isinstance(outcome, RefusedToken):
            raise outcome.error
        if outcome.valid_until <= time.time():
            raise AuthExpired("The token has expired")
        if outcome.revocations is not None:
            outcome.check_revoked()
        return outcome.principal

    def get_passport_principal(self, passport: str) -> Principal:
        """The same for a passport. Raises AuthInvalid, too, if it is a token of another kind."""
        if not is_passport(passport):
            raise AuthInvalid("The passport is not JSON, and not the base64url of JSON")
        return self.get_principal(passport)

    def is_fresh(self, token: str) -> bool:
        outcome = self._outcomes.get(_digest(token))
        return outcome is not None and outcome.fresh_until > time.time()

    async def verify(self, token: str) -> None:
        """Afterwards `get_principal` has the outcome. Requests with the same token wait for one check."""
        task = self._pending.get(token)
        if task is None:
            task = self._pending[token] = asyncio.ensure_future(self._verify_bounded(token))
            task.add_done_callback(lambda _: self._pending.pop(token, None))
        outcome = await asyncio.shield(task)
        key = _digest(token)
        self._outcomes.pop(key, None)
        if len(self._outcomes) >= _MAX_CACHED:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[key] = outcome

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    async def aclose(self) -> None:
        for task in (pending := list(self._pending.values())):
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def _verify_bounded(self, token: str) -> VerifiedToken | RefusedToken:
        try:
            if len(self._pending) > _MAX_CONCURRENT:
                raise RateLimited("Too many new tokens are being checked", 1.0)
            async with asyncio.timeout(self._timeout):
                return await self._verify_by_issuer(token)
        except FabricError as error:
            return RefusedToken(error)
        except NotAJWT:  # its first part is one, the whole is not
            return RefusedToken(AuthInvalid())
        except TimeoutError:
            return RefusedToken(
                RateLimited("The token cannot be checked now: its issuer took too long. Try again later", 5.0)
            )

    async def _verify_by_issuer(self, token: str) -> VerifiedToken:
        if len(token) > _MAX_TOKEN_LENGTH or not token.isascii():
            raise AuthInvalid
        issuers = self._issuers.values()
        if is_passport(token):
            return await self._try_verifiers(token, [each.passport_verifier for each in issuers])
        try:
            name = read_issuer(token.partition(MANDATE_SEPARATOR)[0])
        except NotAJWT:
            return await self._try_verifiers(token, [each.introspection_verifier for each in issuers])
        issuer = self._issuers.get(name or "")
        if issuer is None:
            raise AuthInvalid("The token's issuer (`iss`) is not trusted on this node")
        if is_mandate(token):
            return await self._try_verifiers(token, [issuer.mandate_verifier])
        return await self._try_verifiers(token, [issuer.jwt_verifier or issuer.introspection_verifier])

    async def _try_verifiers(self, token: str, verifiers: Sequence[TokenVerifier | None]) -> VerifiedToken:
        """The first verifier that accepts the token wins. If none does, one that could not check comes first, and one
        that does not know the key comes last.
        """
        refusals: list[FabricError] = []
        for verifier in verifiers:
            try:
                if verifier is not None:
                    return await verifier.check(token)
            except FabricError as error:
                refusals.append(error)
        refusals.sort(key=lambda each: 0 if isinstance(each, RateLimited) else 2 if isinstance(each, UnknownKey) else 1)
        raise refusals[0] if refusals else AuthInvalid()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class RefusedToken:
    """A refusal that is raised for every request with the token, each time as a new error."""

    def __init__(self, error: FabricError) -> None:
        self._message = error.message
        self._error_type = AuthExpired if isinstance(error, AuthExpired) else AuthInvalid
        self._retry_after = error.retry_after if isinstance(error, RateLimited) else None
        self.fresh_until = time.time() + min(_REFUSED_SECONDS, self._retry_after or _REFUSED_SECONDS)

    @property
    def error(self) -> FabricError:
        return (
            self._error_type(self._message)
            if self._retry_after is None
            else RateLimited(self._message, self._retry_after)
        )


def build_trusted_tokens(
    settings: Sequence[IssuerSettings], base: Path, public_url: str | None, http: HTTPClient
) -> TrustedTokens:
    """Raises ConfigError."""
    for claim in ("id", "issuer"):
        values = [getattr(each, claim) for each in settings]
        if duplicate := next((each for each in values if values.count(each) > 1), None):
            raise ConfigError(f"auth.issuers: `{claim}` {duplicate!r} is used twice")
    return TrustedTokens([_build_issuer(each, base, public_url, http) for each in settings])


def _build_issuer(settings: IssuerSettings, base: Path, public_url: str | None, http: HTTPClient) -> TrustedIssuer:
    audience = settings.audience or ((public_url,) if public_url else ())
    _check_settings(settings, audience)
    metadata = IssuerMetadata(settings.issuer, http)
    if settings.secret is not None:
        jwt_verifier = JWTVerifier(settings, audience, _constant_key(settings.secret), SECRET_ALGORITHMS)
        return TrustedIssuer(settings.issuer, jwt_verifier)
    has_keys = settings.jwks_url or settings.jwks_file or settings.introspection_url is None
    key_set = build_key_set(settings, base, metadata) if has_keys else None
    accepts_tokens, is_client = "jwt" in settings.accepts, settings.client_id is not None
    verifiers: dict[str, TokenVerifier] = {}
    if accepts_tokens and is_client:
        verifiers["introspection_verifier"] = IntrospectionVerifier(settings, audience, metadata)
    if key_set is not None:
        revocations = _build_revocations(settings, base, metadata)
        if accepts_tokens:
            verifiers["jwt_verifier"] = JWTVerifier(
                settings, audience, key_set.find_key, KEY_PAIR_ALGORITHMS, key_set.refresh_seconds, revocations
            )
        terms = IssuerTerms(settings, audience, key_set.find_key, revocations, key_set.refresh_seconds)
        if "passport" in settings.accepts:
            verifiers["passport_verifier"] = PassportVerifier(terms)
        if "mandate" in settings.accepts:
            verifiers["mandate_verifier"] = MandateVerifier(terms)
    return TrustedIssuer(settings.issuer, **verifiers)


def _check_settings(settings: IssuerSettings, audience: tuple[str, ...]) -> None:
    where = f"auth.issuers: {settings.id}"
    if not audience and "jwt" in settings.accepts:
        raise ConfigError(f"{where}: set `audience`, or the node's `public_url`: tokens must be issued for this node")
    if sum(each is not None for each in (settings.jwks_url, settings.jwks_file, settings.secret)) > 1:
        raise ConfigError(f"{where}: set only one of `jwks_url`, `jwks_file` and `secret`")
    if settings.introspection_url is not None and settings.client_id is None:
        raise ConfigError(f"{where}: `introspection_url` needs `client_id`, the name of this node at the issuer")
    if settings.revoked_file is not None and settings.revoked_url is not None:
        raise ConfigError(f"{where}: set only one of `revoked_file` and `revoked_url`")
    is_named_only = settings.jwks_file is not None or settings.jwks_url is not None or settings.secret is not None
    for key in ("issuer", "jwks_url", "introspection_url", "revoked_url"):
        url = getattr(settings, key)
        if url is not None and not is_secure_url(url) and not (key == "issuer" and is_named_only):
            raise ConfigError(f"{where}: `{key}` must begin with https://, except on this machine")


def build_key_set(settings: IssuerSettings, base: Path, metadata: IssuerMetadata) -> KeySet:
    if settings.jwks_file is not None:
        path = base / settings.jwks_file
        _read_key_set(path, settings)  # a file that cannot be used stops the start

        async def read() -> bytes:
            try:
                return _read_key_set(path, settings)
            except ConfigError as exc:
                raise IssuerUnavailable(settings.issuer, f"has a key file that cannot be used: {exc.message}") from exc

        return KeySet(settings.issuer, read, _FILE_SECONDS, _FILE_SECONDS)

    async def fetch() -> bytes:
        return await metadata.get(settings.jwks_url or await metadata.find_endpoint("jwks_uri"))

    return KeySet(settings.issuer, fetch)


def _build_revocations(settings: IssuerSettings, base: Path, metadata: IssuerMetadata) -> RevocationList | None:
    if settings.revoked_file is not None:
        return FileRevocations(base / settings.revoked_file)
    if (url := settings.revoked_url) is not None:
        return FetchedRevocations(url, lambda: metadata.get(url))
    return None


def _constant_key(secret: str) -> FindKey:
    async def find(key_id: str | None, algorithm: str) -> VerificationKey:
        return secret

    return find


def _read_key_set(path: Path, settings: IssuerSettings) -> bytes:
    where = f"auth.issuers: {settings.id}: jwks_file: {settings.jwks_file}"
    try:
        document = path.read_bytes()
        keys = msgspec.json.decode(document)["keys"]
    except OSError as exc:
        raise ConfigError(f"{where}: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as exc:
        raise ConfigError(f"{where}: the file is not a JSON Web Key Set") from exc
    if not keys:
        raise ConfigError(f"{where}: the file holds no keys")
    return document
