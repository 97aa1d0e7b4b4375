"""Where the database is, and how patient we are with it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

_SECRET = ("password", "passfile", "sslkey", "sslpassword")


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    listen: str | None = None  # an address past the pooler, if `address` is that of one; else only the poll tells
    connections: int = 8
    patience: float = 5.0  # seconds in which a lost server may come back before callers are told
    statement_timeout: float = 20.0

    @property
    def place(self) -> str:
        """The address without its secrets, for messages."""
        try:
            return _without_secrets(self.address)
        except ValueError:
            return "postgresql:"  # whoever cannot read it cannot tell which part is the secret


def _without_secrets(address: str) -> str:
    parts = urlsplit(address)
    user, at, hosts = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRET]
    return urlunsplit((parts.scheme, user.partition(":")[0] + at + hosts, parts.path, urlencode(query, safe="/,"), ""))
