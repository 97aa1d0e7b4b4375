"""Where an issuer tells of itself, put together from its address in one place for all who look there or point there."""

from __future__ import annotations

from urllib.parse import urlsplit

_OPENID = "/.well-known/openid-configuration"
_OAUTH = "/.well-known/oauth-authorization-server"


def openid_page(issuer: str) -> str:
    """As OpenID Connect has it: below the issuer."""
    origin, path = _parts(issuer)
    return f"{origin}{path}{_OPENID}"


def pages_of(issuer: str) -> list[str]:
    """In the order in which they are looked at; OAuth 2.0 puts its page between host and path."""
    origin, path = _parts(issuer)
    return list(dict.fromkeys([openid_page(issuer), f"{origin}{_OAUTH}{path}", f"{origin}{_OPENID}{path}"]))


def _parts(issuer: str) -> tuple[str, str]:
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
