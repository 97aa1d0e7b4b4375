"""NAME=VALUE on the command line: the value is JSON if it is, else text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import typer


def pairs_of(given: Iterable[str], hint: str) -> dict[str, Any]:
    """Raises BadParameter, which names the option by `hint`."""
    found: dict[str, Any] = {}
    for pair in given:
        name, is_pair, value = pair.partition("=")
        if not name or not is_pair:
            raise typer.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint=hint)
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
