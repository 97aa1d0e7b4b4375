"""Spans of time and moments as people write them on the command line."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(span: str, hint: str) -> float:
    """`30d`, `12h`, `90m`, `5s`. Raises BadParameter, which names the option by `hint`."""
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise typer.BadParameter(f"'{span}' is no span of time such as 7d or 12h", param_hint=hint)
    return float(found[1]) * _SECONDS[found[2]]


def moment_of(text: str, hint: str) -> float:
    """`2026-11-16T18:00` (of this machine's clock unless it names a zone), or a span from now. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        pass
    if _SPAN.fullmatch(text.strip().removeprefix("+")):
        return time.time() + seconds_of(text.strip().removeprefix("+"), hint)
    raise typer.BadParameter(f"'{text}' is no moment such as 2026-11-16T18:00, nor a span such as 10m", param_hint=hint)
