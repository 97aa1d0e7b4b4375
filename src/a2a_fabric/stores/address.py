"""The address of a store: `memory:`, `sqlite:PATH`, `postgresql://…` or `nats://…`.

The word before the colon is its kind."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from a2a_fabric.core.errors import ConfigError

DEFAULT_FILE = "fabric.db"
_SQLITE_PREFIX = "sqlite:"
_SECRET_PARAMETERS = ("password", "passfile", "sslkey", "sslpassword", "token", "nkey")


def kind_from_address(address: str) -> str:
    """The word before the colon. Raises ConfigError."""
    kind, colon, _ = address.partition(":")
    if not kind or (not colon and kind != "memory"):
        raise ConfigError(
            "store: an address is memory:, sqlite:PATH, postgresql://USER@HOST/DATABASE or nats://HOST/NAME"
        )
    return kind


def resolve_address(address: str, base: Path) -> str:
    """The address with a relative path resolved from `base`. Raises ConfigError for sqlite: without a path."""
    if not address.startswith(_SQLITE_PREFIX):
        return address
    path = address.removeprefix(_SQLITE_PREFIX)
    if not path.strip("/"):
        raise ConfigError("store: sqlite: needs the path of a file")
    return f"{_SQLITE_PREFIX}{base / path}"


def build_default_address(base: Path) -> str:
    """The default: a file beside the configuration."""
    return f"{_SQLITE_PREFIX}{base / DEFAULT_FILE}"


def redact_address(address: str) -> str:
    """The address without secrets, for messages; of an address that cannot be parsed, only the kind."""
    if address.startswith(_SQLITE_PREFIX):
        return address
    try:
        parts = urlsplit(address)
    except ValueError:
        return address.partition(":")[0] + ":"
    user, at, hosts = parts.netloc.rpartition("@")
    query = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRET_PARAMETERS], safe="/,"
    )
    name, colon, _ = user.partition(":")
    if parts.scheme == "nats" and not colon:
        name = at = ""  # it is a token, not a name
    return urlunsplit((parts.scheme, name + at + hosts, parts.path, query, ""))
