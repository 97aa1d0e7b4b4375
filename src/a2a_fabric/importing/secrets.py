"""Finds secrets and variable references in a client's file and replaces them by `env:NAME` references.

A reference replaces a whole value. So `Bearer ${TOKEN}` becomes a variable of its own that holds the whole
value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

_SECRET_NAMES = re.compile(
    r"(^|[_\-.])(api|access|private|secret|auth)?_?-?(key|keys|token|secret|password|passwd|passphrase|pwd|pat|jwt|"
    r"credentials?|authorization|cookie|dsn|connection_?string)([_\-.]|$)|apikey|authtoken|accesstoken",
    re.IGNORECASE,
)
_SECRET_VALUES = re.compile(
    r"^(Bearer|Basic|Token)\s+\S|"
    r"^(sk|pk|rk)[-_][A-Za-z0-9_\-]{8,}|^gh[opsur]_\w{16,}|^github_pat_\w+|^glpat-|^xox[abeprs]-|^AKIA[A-Z0-9]{12,}|"
    r"^AIza[\w\-]{20,}|^eyJ[\w\-]+\.[\w\-]+\.|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)
_OPAQUE_VALUES = re.compile(r"^(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9+_\-]{32,}={0,2}$")
_LOCATION_NAMES = re.compile(r"(file|path|dir|folder|url|uri|host|id|name)$", re.IGNORECASE)
_WHOLE_REFERENCE = re.compile(r"^\$(?:\{(?:env:|input:)?([A-Za-z0-9_\-.]+)\}|([A-Za-z_][A-Za-z0-9_]*))$")
_PARTIAL_REFERENCE = re.compile(r"\$\{(?:env:|input:)?[A-Za-z0-9_\-.]+(?::-[^}]*)?\}")
_EDITOR_VARIABLES = re.compile(r"\$\{(workspaceFolder|userHome|cwd|pathSeparator|/)\}")


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that the operator has to set, and its purpose."""

    name: str
    purpose: str


def is_secret(name: str, value: str) -> bool:
    """Whether a value is a secret, by its name or by its form."""
    if not value or value.lower() in ("true", "false", "none", "null") or value.isdigit():
        return False
    has_secret_name = _SECRET_NAMES.search(name) and not _LOCATION_NAMES.search(name)
    return bool(has_secret_name or _SECRET_VALUES.search(value) or _OPAQUE_VALUES.match(value))


def url_holds_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return "@" in parts.netloc or any(is_secret(name, value) for name, value in parse_qsl(parts.query))


class References:
    """Replaces values by references, and collects the variables that have to be set."""

    def __init__(self, *, hides_secrets: bool = True, folder: str = ".", home: str = "~") -> None:
        self.variables: dict[str, Variable] = {}
        self._values: dict[str, str] = {}
        self._hides_secrets = hides_secrets
        self._editor_values = {
            "workspaceFolder": folder,
            "cwd": folder,
            "userHome": home,
            "pathSeparator": "/",
            "/": "/",
        }

    def replace_endpoint(self, owner: str, endpoint: Mapping[str, Any]) -> dict[str, Any]:
        """An agent's endpoint with references in place of its secrets; the original stays as it is."""
        replaced = dict(endpoint)
        for table in ("env", "headers"):  # first, because its names are the best names for variables
            if table in endpoint:
                replaced[table] = {
                    name: self.replace_value(owner, f"{table}.{name}", name, value)
                    for name, value in endpoint[table].items()
                }
        for name in ("uri", "openapi"):
            if name in endpoint:
                replaced[name] = self.replace_url(owner, endpoint[name])
        for name, variable in (("psk", "psk_key"), ("cwd", "CWD")):
            if name in endpoint:
                replaced[name] = self.replace_value(owner, name, variable, endpoint[name])
        if "command" in endpoint:
            replaced["command"] = self.replace_arguments(owner, endpoint["command"])
        return replaced

    def replace_arguments(self, owner: str, arguments: Iterable[str]) -> list[str]:
        """A command line: the value after `--api-key`, or in `--api-key=…`, is a secret too."""
        return [
            self.replace_value(owner, f"argument {number}", name, word)
            for number, name, word in _pair_with_options(arguments)
        ]

    def replace_value(self, owner: str, label: str, name: str, value: str) -> str:
        if value.startswith("env:"):
            return value
        value = _EDITOR_VARIABLES.sub(lambda match: self._editor_values[match[1]], value)
        if whole := _WHOLE_REFERENCE.match(value):
            variable = _to_variable_name(whole[1] or whole[2])
            return self._add_reference(variable, value, f"{owner}: {label}")
        if _PARTIAL_REFERENCE.search(value):
            sources = " and ".join(match[0] for match in _PARTIAL_REFERENCE.finditer(value))
            return self._make_variable(owner, name, value, f"{owner}: the whole of {label}, made from {sources}")
        if self._hides_secrets and is_secret(name, value):
            return self._make_variable(owner, name, value, f"{owner}: {label}")
        return value

    def replace_url(self, owner: str, url: str) -> str:
        if self._hides_secrets and url_holds_secret(url):
            return self._make_variable(owner, "URL", url, f"{owner}: its url")
        return self.replace_value(owner, "its url", "URL", url)

    def _make_variable(self, owner: str, name: str, value: str, purpose: str) -> str:
        """A variable named after the value; with its owner in front if that name is taken or too short to be clear."""
        short, long = _to_variable_name(name), _to_variable_name(f"{owner}_{name}")
        is_descriptive = "_" in short and self._values.get(short, value) == value
        return self._add_reference(
            short if is_descriptive else _find_free_name(long, value, self._values.get), value, purpose
        )

    def _add_reference(self, variable: str, value: str, purpose: str) -> str:
        self._values[variable] = value
        self.variables.setdefault(variable, Variable(name=variable, purpose=purpose))
        return f"env:{variable}"


def _pair_with_options(arguments: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Each word with its position and the option that it belongs to."""
    option = ""
    for number, word in enumerate(arguments):
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            yield number, name.lstrip("-") if equals else "", word
            option = "" if equals else word.lstrip("-")
        else:
            yield number, option or f"ARG_{number}", word
            option = ""


def _to_variable_name(name: str) -> str:
    bare = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
    return bare if bare[:1].isalpha() else f"MCP_{bare}"


def _find_free_name(name: str, value: str, value_of: Callable[[str], str | None]) -> str:
    number, candidate = 1, name
    while value_of(candidate) not in (None, value):
        number += 1
        candidate = f"{name}_{number}"
    return candidate
