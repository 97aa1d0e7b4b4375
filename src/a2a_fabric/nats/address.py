"""Addresses of NATS: `nats://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME?OPTION=VALUE`, and how a client signs in.

Secrets may stand in the address, in a file or in an environment variable (`token=env:NAME`). The options that all
users of NATS share are read here; whatever else an address holds is left to its reader."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from a2a_fabric.core.errors import ConfigError

DEFAULT_PORT = 4222
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_OPTIONS = frozenset({"creds", "nkey", "token", "tls", "ca", "cert", "key"})
EXAMPLE = "nats://USER:PASSWORD@HOST:4222"


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the servers are, and how the client signs in. At most one kind of credential is set."""

    servers: tuple[str, ...]  # nats://HOST:PORT, without credentials
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey: str | None = None  # the seed, SU…
    creds: str | None = None  # the text of a .creds file: a user JWT and its seed
    tls: bool = False  # required: without it, a server that asks for TLS gets it too
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    connect_timeout: float = 2.0

    def build_tls(self) -> ssl.SSLContext | None:
        """Raises ConfigError for files that cannot be used."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as exc:
            files = ", ".join(str(each) for each in (self.ca, self.cert, self.key) if each is not None)
            raise ConfigError(f"NATS: the TLS files cannot be used ({files}): {exc}") from exc
        return context


class NatsAddress(msgspec.Struct, frozen=True, kw_only=True):
    settings: NatsSettings
    name: str  # the path without its slash; may be empty
    options: dict[str, str]  # those that are not about the connection


def parse_nats_address(address: str, environ: Mapping[str, str] | None = None) -> NatsAddress:
    """Raises ConfigError, which never holds a secret."""
    try:
        parts = urlsplit(address)
        credentials, _, hosts = parts.netloc.rpartition("@")
        values = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as exc:
        raise ConfigError(f"NATS: this is not an address; write {EXAMPLE}, special characters as %XX") from exc
    options = {name: value for name, value in values.items() if name not in _OPTIONS}
    secrets = _read_credentials(credentials, values, os.environ if environ is None else environ)
    settings = NatsSettings(servers=_read_servers(parts, hosts), **secrets, **_read_tls(values))
    return NatsAddress(settings=settings, name=unquote(parts.path).strip("/"), options=options)


def _read_servers(parts: SplitResult, hosts: str) -> tuple[str, ...]:
    names = hosts.split(",")
    if parts.scheme != "nats" or not all(map(_HOST.fullmatch, names)):
        raise ConfigError(f"NATS: an address begins with nats:// and names one or more hosts: {EXAMPLE}")
    return tuple(f"nats://{_HOST.sub(_add_port, name)}" for name in names)


def _add_port(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2] or f':{DEFAULT_PORT}'}"


def _read_credentials(credentials: str, values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    user, colon, password = credentials.partition(":")
    fields: dict[str, str] = {}
    if colon:
        fields = {"user": unquote(user), "password": unquote(password)}
    elif user:
        fields = {"token": unquote(user)}
    for name in ("token", "nkey"):
        if name in values:
            fields[name] = _resolve(name, values[name], environ)
    if "creds" in values:
        fields["creds"] = _read_creds(values["creds"], environ)
    if len(fields.keys() - {"password"}) > 1:
        raise ConfigError("NATS: the address has several credentials; give a password, a token, an nkey or creds")
    return fields


def _resolve(option: str, value: str, environ: Mapping[str, str]) -> str:
    name = value.removeprefix("env:")
    if name == value:
        return value
    if not environ.get(name):
        raise ConfigError(f"NATS: the environment variable {name}, which `{option}` names, is not set")
    return environ[name]


def _read_creds(value: str, environ: Mapping[str, str]) -> str:
    """`creds` names a file, or a variable that holds the text of such a file."""
    if value.startswith("env:"):
        return _resolve("creds", value, environ)
    try:
        return Path(value).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"NATS: the credentials in {value} cannot be read: {exc}") from exc


def _read_tls(values: Mapping[str, str]) -> dict[str, Any]:
    files = {name: Path(values[name]).expanduser() for name in ("ca", "cert", "key") if values.get(name)}
    wants_tls = values.get("tls", "true" if files else "false")
    contradicts = (wants_tls == "false" and files) or ("key" in files and "cert" not in files)
    if wants_tls not in ("true", "false") or contradicts:
        raise ConfigError("NATS: `tls` is true or false; `ca` and `cert` name files, and `key` goes with `cert`")
    return {"tls": wants_tls == "true", **files}
