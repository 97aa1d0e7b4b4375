"""The settings of a node as it loaded them, with every secret masked.

A value is masked by the name of its setting, if it is a password in an address, or if it is a secret of the node that
the caller of this module names. The reader learns that a secret is set, and nothing of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from a2a_fabric.config import Config

MASK = "••••••"
_SECRET_NAME = re.compile(r"psk|secret|password|passphrase|token|credential|authorization|api.?key|cookie", re.I)
_SECRET_PATHS = re.compile(r"auth\.keys\.\d+\.key")
_SECRET_TABLES = ("headers", "env", "options")  # their names are chosen by the operator, so all values are masked
_MIN_SECRET = 8  # characters; shorter values would mask words


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # with dots
    value: Any
    is_default: bool
    is_masked: bool = False


def list_settings(config: Config, secrets: Collection[str] = ()) -> list[SettingRow]:
    """One row for each setting, in the order of the reference."""
    known = {secret for secret in secrets if len(secret) >= _MIN_SECRET}
    rows = _walk(msgspec.to_builtins(config), "")
    defaults = dict(_walk(msgspec.to_builtins(Config()), ""))
    settings: list[SettingRow] = []
    for name, value in rows:
        shown = _mask(name, value, known)
        is_default = defaults.get(name) == value  # what an entry of a list leaves out is its default
        settings.append(SettingRow(name=name, value=shown, is_default=is_default, is_masked=shown != value))
    return settings


def _walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _walk(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value and any(isinstance(each, Mapping) for each in value):
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{name}.{number}")
    else:
        yield name, value


def _mask(name: str, value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mask(name, each, secrets) for each in value)
    if not isinstance(value, str) or not value:
        return value
    parts = name.split(".")
    is_secret = _SECRET_NAME.search(parts[-1]) or _SECRET_PATHS.fullmatch(name) or value in secrets
    if is_secret or any(part in _SECRET_TABLES for part in parts[:-1]):
        return MASK
    return _mask_address(value)


def _mask_address(value: str) -> str:
    """Without the password of an address, and without its query, which may hold one."""
    if "://" not in value or ("@" not in value and "?" not in value):
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return MASK
    user, separator, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:{MASK}@{host}" if separator else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", ""))
