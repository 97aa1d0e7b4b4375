"""What in a client's file must not be copied into another: values that look like secrets, and references to variables.

A reference of ours replaces a whole value: `env:NAME`. So `Bearer ${TOKEN}` becomes a
variable of its own, whose value is the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import parse_qsl, urlsplit

import msgspec

_NAMES = re.compile(
    r"(^|[_\-.])(api|access|private|secret|auth)?_?-?(key|keys|token|secret|password|passwd|passphrase|pwd|pat|jwt|"
    r"credentials?|authorization|cookie|dsn|connection_?string)([_\-.]|$)|apikey|authtoken|accesstoken",
    re.IGNORECASE,
)
_VALUES = re.compile(
    r"^(Bearer|Basic|Token)\s+\S|"
    r"^(sk|pk|rk)[-_][A-Za-z0-9_\-]{8,}|^gh[opsur]_\w{16,}|^github_pat_\w+|^glpat-|^xox[abeprs]-|^AKIA[A-Z0-9]{12,}|"
    r"^AIza[\w\-]{20,}|^eyJ[\w\-]+\.[\w\-]+\.|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)
_OPAQUE = re.compile(r"^(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9+_\-]{32,}={0,2}$")
_PLACES = re.compile(r"(file|path|dir|folder|url|uri|host|id|name)$", re.IGNORECASE)
_WHOLE = re.compile(r"^\$(?:\{(?:env:|input:)?([A-Za-z0-9_\-.]+)\}|([A-Za-z_][A-Za-z0-9_]*))$")
_PARTIAL = re.compile(r"\$\{(?:env:|input:)?[A-Za-z0-9_\-.]+(?::-[^}]*)?\}")
_EDITORS_OWN = re.compile(r"\$\{(workspaceFolder|userHome|cwd|pathSeparator|/)\}")


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that somebody has to set, and what it is for."""

    name: str
    purpose: str


def is_secret(name: str, value: str) -> bool:
    """By its name, or by the looks of it."""
    if not value or value.lower() in ("true", "false", "none", "null") or value.isdigit():
        return False
    is_named_so = _NAMES.search(name) and not _PLACES.search(name)
    return bool(is_named_so or _VALUES.search(value) or _OPAQUE.match(value))


def url_holds_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return "@" in parts.netloc or any(is_secret(name, value) for name, value in parse_qsl(parts.query))


class References:
    """Replaces values by references, and remembers which variables have to be set."""

    def __init__(self, *, hides_secrets: bool = True, folder: str = ".", home: str = "~") -> None:
        self.variables: dict[str, Variable] = {}
        self._values: dict[str, str] = {}
        self._hides_secrets = hides_secrets
        self._editors_own = {"workspaceFolder": folder, "cwd": folder, "userHome": home, "pathSeparator": "/", "/": "/"}

    def table(self, owner: str, what: str, values: dict[str, str]) -> dict[str, str]:
        """`env` or `headers` of one server."""
        return {name: self.value(owner, f"{what}.{name}", name, value) for name, value in values.items()}

    def words(self, owner: str, words: Iterable[str]) -> list[str]:
        """A command line: the value after `--api-key`, or in `--api-key=…`, is a secret too."""
        return [self.value(owner, f"argument {number}", name, word) for number, name, word in _named(words)]

    def value(self, owner: str, what: str, name: str, value: str) -> str:
        value = _EDITORS_OWN.sub(lambda match: self._editors_own[match[1]], value)
        if whole := _WHOLE.match(value):
            variable = _variable(whole[1] or whole[2])
            return self._refer(variable, value, f"{owner}: {what}")
        if _PARTIAL.search(value):
            made_from = " and ".join(match[0] for match in _PARTIAL.finditer(value))
            return self._own(owner, name, value, f"{owner}: the whole of {what}, made from {made_from}")
        if self._hides_secrets and is_secret(name, value):
            return self._own(owner, name, value, f"{owner}: {what}")
        return value

    def address(self, owner: str, url: str) -> str:
        if self._hides_secrets and url_holds_secret(url):
            return self._own(owner, "URL", url, f"{owner}: its url")
        return self.value(owner, "its url", "URL", url)

    def _own(self, owner: str, name: str, value: str, purpose: str) -> str:
        """A variable by the value's own name; with its owner in front where that is taken or says too little."""
        short, long = _variable(name), _variable(f"{owner}_{name}")
        is_telling = "_" in short and self._values.get(short, value) == value
        return self._refer(short if is_telling else _free(long, value, self._values.get), value, purpose)

    def _refer(self, variable: str, value: str, purpose: str) -> str:
        self._values[variable] = value
        self.variables.setdefault(variable, Variable(name=variable, purpose=purpose))
        return f"env:{variable}"


def _named(words: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Each word with the option that it belongs to."""
    option = ""
    for number, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            yield number, name.lstrip("-") if equals else "", word
            option = "" if equals else word.lstrip("-")
        else:
            yield number, option or f"ARG_{number}", word
            option = ""


def _variable(name: str) -> str:
    bare = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
    return bare if bare[:1].isalpha() else f"MCP_{bare}"


def _free(name: str, value: str, value_of: Callable[[str], str | None]) -> str:
    number, tried = 1, name
    while value_of(tried) not in (None, value):
        number += 1
        tried = f"{name}_{number}"
    return tried
