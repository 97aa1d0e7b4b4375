"""From the settings of the trusted issuers to what checks their tokens. Imported only where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.identity.jwks import KeySet
from a2a_fabric.identity.opaque import Opaque
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.signed import KEY_PAIRS, SECRETS, FindKey, Key, Signed
from a2a_fabric.identity.source import Source, is_safe
from a2a_fabric.identity.tokens import Issuer, Tokens
from a2a_fabric.outbound.port import HTTPClient


def trusted(settings: Sequence[IssuerSettings], base: Path, public_url: str | None, http: HTTPClient) -> Tokens:
    """Raises ConfigError."""
    for claim in ("id", "issuer"):
        seen = [getattr(each, claim) for each in settings]
        if twice := next((each for each in seen if seen.count(each) > 1), None):
            raise ConfigError(f"auth.issuers: `{claim}` {twice!r} is there twice")
    return Tokens([_issuer(each, base, public_url, http) for each in settings])


def _issuer(settings: IssuerSettings, base: Path, public_url: str | None, http: HTTPClient) -> Issuer:
    audience = settings.audience or ((public_url,) if public_url else ())
    _check(settings, audience)
    source = Source(settings.issuer, http)
    has_keys = settings.jwks_url or settings.jwks_file or settings.secret
    signed = _signed(settings, audience, base, source) if has_keys or settings.introspection_url is None else None
    opaque = Opaque(settings, audience, source) if settings.client_id is not None else None
    return Issuer(settings.issuer, signed, opaque)


def _check(settings: IssuerSettings, audience: tuple[str, ...]) -> None:
    where = f"auth.issuers: {settings.id}"
    if not audience:
        raise ConfigError(f"{where}: say for whom its tokens must be: `audience`, or the node's `public_url`")
    if sum(each is not None for each in (settings.jwks_url, settings.jwks_file, settings.secret)) > 1:
        raise ConfigError(f"{where}: only one of `jwks_url`, `jwks_file` and `secret` can be its key")
    if settings.introspection_url is not None and settings.client_id is None:
        raise ConfigError(f"{where}: `introspection_url` needs `client_id`, for our name there")
    for key in ("issuer", "jwks_url", "introspection_url"):
        url = getattr(settings, key)
        if url is not None and not is_safe(url):
            raise ConfigError(f"{where}: `{key}` must begin with https://, except on this machine")


def _signed(settings: IssuerSettings, audience: tuple[str, ...], base: Path, source: Source) -> Signed:
    if settings.secret is not None:
        return Signed(settings, audience, _always(settings.secret), SECRETS)
    if settings.jwks_file is not None:
        document = _read(base / settings.jwks_file, settings)
        return Signed(settings, audience, KeySet(settings.issuer, lambda: _at_hand(document)).key, KEY_PAIRS)

    async def fetch() -> bytes:
        return await source.get(settings.jwks_url or await source.place("jwks_uri"))

    return Signed(settings, audience, KeySet(settings.issuer, fetch).key, KEY_PAIRS)


def _always(secret: str) -> FindKey:
    async def find(key_id: str | None, algorithm: str) -> Key:
        return secret

    return find


async def _at_hand(document: bytes) -> bytes:
    return document


def _read(path: Path, settings: IssuerSettings) -> bytes:
    where = f"auth.issuers: {settings.id}: jwks_file: {settings.jwks_file}"
    try:
        document = path.read_bytes()
        keys = msgspec.json.decode(document)["keys"]
    except OSError as exc:
        raise ConfigError(f"{where}: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as exc:
        raise ConfigError(f"{where}: is no JSON Web Key Set") from exc
    if not keys:
        raise ConfigError(f"{where}: has no keys")
    return document
