"""The guard `secrets`: finds credentials and personal data in text, and redacts them or refuses the call.

It finds what has a form of its own: keys of well-known services, private keys, JSON Web Tokens, email addresses, and
card and account numbers whose check digits are right. Passwords, names and phone numbers have none, so it does not find
them. Files in base64 are not decoded."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.guards import CallGuard, GuardRequest, GuardVerdict
from a2a_fabric.core.redaction import SECRET_PATTERNS

_MAX_INLINE = 64 * 1024  # characters that are searched without a thread
_MAX_DEPTH = 200

# As `SECRET_PATTERNS`: in proportion to the text.
_PERSONAL = {
    "email address": r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b",
    "account number": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card number": r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d.-])",
    "social security number": r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])",
}
_PATTERNS = {"secrets": SECRET_PATTERNS, "personal": _PERSONAL}


class SecretsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Literal["redact", "refuse"] = "redact"
    find: Annotated[tuple[Literal["secrets", "personal"], ...], Meta(min_length=1)] = ("secrets", "personal")


def build(options: Mapping[str, Any]) -> CallGuard:
    """Raises ConfigError."""
    try:
        settings = msgspec.convert(dict(options), SecretsOptions)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"options: {exc}") from exc
    return SecretsGuard(settings)


class SecretsGuard:
    def __init__(self, options: SecretsOptions) -> None:
        self._options = options
        kinds = {name: pattern for kind in options.find for name, pattern in _PATTERNS[kind].items()}
        self._names = list(kinds)
        self._pattern = re.compile(
            "|".join(f"(?P<k{n}>{pattern})" for n, pattern in enumerate(kinds.values())), re.ASCII
        )

    async def __call__(self, request: GuardRequest) -> GuardVerdict:
        if _count_characters(request.payload) <= _MAX_INLINE:
            return self._check(request.payload)
        return await asyncio.to_thread(self._check, request.payload)

    def _check(self, payload: dict[str, Any]) -> GuardVerdict:
        found: Counter[str] = Counter()
        redacted = self._redact(payload, found, 0)
        if not found:
            return GuardVerdict()
        reason = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in found.items())
        if self._options.action == "refuse":
            return GuardVerdict(action="refuse", reason=f"it holds what must not be sent: {reason}")
        return GuardVerdict(action="replace", payload=redacted, reason=f"redacted {reason}")

    def _redact(self, value: Any, found: Counter[str], depth: int) -> Any:
        """Keys of objects are searched, too. Raises RecursionError for what no door accepts."""
        if depth > _MAX_DEPTH:
            raise RecursionError
        if isinstance(value, str):
            return self._redact_text(value, found)
        if isinstance(value, Mapping):
            return {
                self._redact_text(str(key), found): self._redact(inner, found, depth + 1)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact(inner, found, depth + 1) for inner in value]
        return value

    def _redact_text(self, text: str, found: Counter[str]) -> str:
        def replace(match: re.Match[str]) -> str:
            name = self._names[int(str(match.lastgroup)[1:])]
            if not _is_plausible(name, match[0]):
                return match[0]
            found[name] += 1
            return f"[redacted {name}]"

        return self._pattern.sub(replace, text)


def _count_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_count_characters, value.values())) + len(value)
    return sum(map(_count_characters, value)) if isinstance(value, list | tuple) else 1


def _is_plausible(name: str, text: str) -> bool:
    if name == "card number":
        return _has_luhn_digit([int(each) for each in text if each.isdigit()])
    if name == "account number":
        return _has_iban_digits(text.replace(" ", ""))
    return True


def _has_luhn_digit(digits: list[int]) -> bool:
    doubled = [each if n % 2 == 0 else sum(divmod(each * 2, 10)) for n, each in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0 and any(digits)


def _has_iban_digits(text: str) -> bool:
    rearranged = text[4:] + text[:4]
    return 15 <= len(text) <= 34 and int("".join(str(int(each, 36)) for each in rearranged)) % 97 == 1
