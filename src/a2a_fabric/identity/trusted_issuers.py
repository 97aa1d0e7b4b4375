"""Verifies tokens of the trusted issuers ahead of each request and caches the outcome; built from the settings.

Identifying a caller only looks up the cached outcome, so no request waits twice, and a known token does
not wait at all. Imported only where issuers are configured, since it needs the cryptography library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, ConfigError, FabricError, RateLimited
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.token_verifiers import (
    KEY_PAIR_ALGORITHMS,
    SECRET_ALGORITHMS,
    FindKey,
    IntrospectionVerifier,
    IssuerMetadata,
    JWTVerifier,
    KeySet,
    NotAJWT,
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


class TokenVerifier(Protocol):
    async def check(self, token: str) -> VerifiedToken:
        """Raises FabricError."""
        ...


class TrustedIssuer:
    """One issuer: a verifier for its signed tokens, one for its opaque tokens, or both."""

    def __init__(
        self, name: str, jwt_verifier: TokenVerifier | None, introspection_verifier: TokenVerifier | None
    ) -> None:
        self.name = name
        self.jwt_verifier = jwt_verifier
        self.introspection_verifier = introspection_verifier


class TrustedTokens:
    def __init__(self, issuers: Sequence[TrustedIssuer], timeout: float = _VERIFY_TIMEOUT) -> None:
        self._timeout = timeout
        self._issuers = {issuer.name: issuer for issuer in issuers}
        self._outcomes: dict[str, VerifiedToken | _RefusedToken] = {}
        self._pending: dict[str, asyncio.Task[VerifiedToken | _RefusedToken]] = {}

    def get_principal(self, token: str) -> Principal:
        """Raises AuthInvalid, AuthExpired, or RateLimited if the token cannot be checked now."""
        outcome = self._outcomes.get(token)
        if outcome is None:
            raise AuthInvalid
        if isinstance(outcome, _RefusedToken):
            raise outcome.error
        if outcome.valid_until <= time.time():
            raise AuthExpired("The token has expired")
        return outcome.principal

    def is_fresh(self, token: str) -> bool:
        outcome = self._outcomes.get(token)
        return outcome is not None and outcome.fresh_until > time.time()

    async def verify(self, token: str) -> None:
        """Afterwards `get_principal` has the outcome. Requests with the same token wait for one check."""
        task = self._pending.get(token)
        if task is None:
            task = self._pending[token] = asyncio.ensure_future(self._verify_bounded(token))
            task.add_done_callback(lambda _: self._pending.pop(token, None))
        outcome = await asyncio.shield(task)
        self._outcomes.pop(token, None)
        if len(self._outcomes) >= _MAX_CACHED:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[token] = outcome

    async def aclose(self) -> None:
        for task in (pending := list(self._pending.values())):
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def _verify_bounded(self, token: str) -> VerifiedToken | _RefusedToken:
        try:
            if len(self._pending) > _MAX_CONCURRENT:
                raise RateLimited("Too many new tokens are being checked", 1.0)
            async with asyncio.timeout(self._timeout):
                return await self._verify_by_issuer(token)
        except FabricError as error:
            return _RefusedToken(error)
        except TimeoutError:
            return _RefusedToken(
                RateLimited("The token cannot be checked now: its issuer took too long. Try again later", 5.0)
            )

    async def _verify_by_issuer(self, token: str) -> VerifiedToken:
        if len(token) > _MAX_TOKEN_LENGTH or not token.isascii():
            raise AuthInvalid
        try:
            name = read_issuer(token)
        except NotAJWT:
            return await self._try_verifiers(
                token,
                [
                    each.introspection_verifier
                    for each in self._issuers.values()
                    if each.introspection_verifier is not None
                ],
            )
        issuer = self._issuers.get(name or "")
        if issuer is None:
            raise AuthInvalid("The token's issuer (`iss`) is not trusted on this node")
        return await self._try_verifiers(
            token, [each for each in (issuer.jwt_verifier or issuer.introspection_verifier,) if each is not None]
        )

    async def _try_verifiers(self, token: str, verifiers: Sequence[TokenVerifier]) -> VerifiedToken:
        """The first verifier that accepts the token wins. If none does, one that could not check comes first."""
        refusals: list[FabricError] = []
        for verifier in verifiers:
            try:
                return await verifier.check(token)
            except FabricError as error:
                refusals.append(error)
        raise next((each for each in refusals if isinstance(each, RateLimited)), (refusals or [AuthInvalid()])[0])


class _RefusedToken:
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
    has_keys = settings.jwks_url or settings.jwks_file or settings.secret
    jwt_verifier = (
        _build_jwt_verifier(settings, audience, base, metadata)
        if has_keys or settings.introspection_url is None
        else None
    )
    introspection_verifier = (
        IntrospectionVerifier(settings, audience, metadata) if settings.client_id is not None else None
    )
    return TrustedIssuer(settings.issuer, jwt_verifier, introspection_verifier)


def _check_settings(settings: IssuerSettings, audience: tuple[str, ...]) -> None:
    where = f"auth.issuers: {settings.id}"
    if not audience:
        raise ConfigError(f"{where}: set `audience`, or the node's `public_url`: tokens must be issued for this node")
    if sum(each is not None for each in (settings.jwks_url, settings.jwks_file, settings.secret)) > 1:
        raise ConfigError(f"{where}: set only one of `jwks_url`, `jwks_file` and `secret`")
    if settings.introspection_url is not None and settings.client_id is None:
        raise ConfigError(f"{where}: `introspection_url` needs `client_id`, the name of this node at the issuer")
    for key in ("issuer", "jwks_url", "introspection_url"):
        url = getattr(settings, key)
        if url is not None and not is_secure_url(url):
            raise ConfigError(f"{where}: `{key}` must begin with https://, except on this machine")


def _build_jwt_verifier(
    settings: IssuerSettings, audience: tuple[str, ...], base: Path, metadata: IssuerMetadata
) -> JWTVerifier:
    if settings.secret is not None:
        return JWTVerifier(settings, audience, _constant_key(settings.secret), SECRET_ALGORITHMS)
    if settings.jwks_file is not None:
        document = _read_key_set(base / settings.jwks_file, settings)
        return JWTVerifier(
            settings,
            audience,
            KeySet(settings.issuer, lambda: _return_document(document)).find_key,
            KEY_PAIR_ALGORITHMS,
        )

    async def fetch() -> bytes:
        return await metadata.get(settings.jwks_url or await metadata.find_endpoint("jwks_uri"))

    return JWTVerifier(settings, audience, KeySet(settings.issuer, fetch).find_key, KEY_PAIR_ALGORITHMS)


def _constant_key(secret: str) -> FindKey:
    async def find(key_id: str | None, algorithm: str) -> VerificationKey:
        return secret

    return find


async def _return_document(document: bytes) -> bytes:
    return document


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
