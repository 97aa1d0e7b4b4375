"""Parses URLs strictly and once: the guard checks and the client connects by the same result.

Only plain http and https are accepted. What browsers would repair or guess (spaces, backslashes,
credentials, percent signs in a host) is refused."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import quote

import msgspec

from a2a_fabric.outbound.port import ConnectFailed

MAX_URL_LENGTH = 8192
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?=.{1,253}\.?\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")
_UNQUOTED = "!$%&'()*+,/:;=?@[]~"  # besides letters, digits and _.-


class Url(msgspec.Struct, frozen=True):
    scheme: str
    host: str  # in lower case and ASCII; an IPv6 address without its brackets
    port: int
    target: str  # path and query, as in the request line

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def server_name(self) -> str:
        """The name that the certificate must be for."""
        return self.host.removesuffix(".")


def parse_url(url: str) -> Url:
    """Raises ConnectFailed, never with more of the URL than its scheme, since secrets may be in the rest."""
    if len(url) > MAX_URL_LENGTH:
        raise ConnectFailed(f"URL longer than {MAX_URL_LENGTH} characters")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ConnectFailed("URL with spaces, backslashes or control characters")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ConnectFailed("Not a URL with a scheme and a host")
    scheme = parts[1].lower()
    if scheme not in _PORTS:
        raise ConnectFailed(f"Only http and https URLs can be used, not {scheme[:20]}")
    host, port = _parse_authority(parts[2])
    return Url(scheme, host, port or _PORTS[scheme], _quote_target(parts[3]))


def _parse_authority(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise ConnectFailed("URL with a user name or password")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ConnectFailed("URL without a well-formed host and port")
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 65536:
        raise ConnectFailed(f"There is no port {port}")
    return _parse_host(match[1]), port


def _parse_host(text: str) -> str:
    try:
        if text.startswith("["):
            return str(IPv6Address(text[1:-1]))
        host = text.lower() if text.isascii() else text.encode("idna").decode("ascii").lower()
    except ValueError as exc:
        raise ConnectFailed("URL whose host is neither a name nor an address") from exc
    if not _NAME.fullmatch(host):
        raise ConnectFailed("URL whose host is neither a name nor an address")
    return host


def _quote_target(text: str) -> str:
    try:
        target = quote(text, safe=_UNQUOTED)
    except UnicodeEncodeError as exc:
        raise ConnectFailed("URL with characters that cannot be sent") from exc
    return target if target.startswith("/") else f"/{target}"
