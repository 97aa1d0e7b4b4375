"""Finds credentials in text by their form, and replaces them: for guards, for log lines, for the call history.

It finds keys of well-known services, private keys, JSON Web Tokens, and what follows `Bearer`. In JSON it also replaces
the values of fields whose name says that they are secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Every pattern takes time in proportion to the text: it begins only where a word does, and what it tries is bounded.
SECRET_PATTERNS = {
    "private key": (
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s,:\\]|-(?!-)){0,8000}"
        r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
    ),
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}",
    "API key": r"\b(?:sk|rk)[-_](?:live[-_]|test[-_]|proj-|ant-)?[A-Za-z0-9_-]{20,255}",
    "JSON Web Token": r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{8,4096}",
}
_BEARER = r"(?i:\bbearer )[A-Za-z0-9._~+/=-]{8,8192}"
_URL_PASSWORD = r"(?<=://)[^\s/:@]{0,256}:[^\s/@]{1,256}(?=@)"  # noqa: S105
_ALL = re.compile("|".join((*SECRET_PATTERNS.values(), _BEARER, _URL_PASSWORD)), re.ASCII)
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|apikey|authorization|credentials?|private[_-]?key|"
    r"cookie|psk)$",
    re.IGNORECASE | re.ASCII,
)
# A cheap test: text without any of these has nothing to find.
_HINT = re.compile(
    r"-----BEGIN|A[KS]IA|gh[pousr]_|github_pat_|xox|AIza|[sr]k[-_]|eyJ|[Bb][Ee][Aa][Rr][Ee][Rr] |://", re.ASCII
)
_MAX_DEPTH = 64
REDACTED = "[redacted]"


def redact_text(text: str) -> str:
    return _ALL.sub(REDACTED, text) if _HINT.search(text) else text


def redact_json(value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value without credentials. What is nested too deeply is left out."""
    if isinstance(value, str):
        return redact_text(value)
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if _is_secret(str(key), inner) else redact_json(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_json(inner, depth + 1) for inner in value]
    return value


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and _SECRET_NAME.search(name) is not None
