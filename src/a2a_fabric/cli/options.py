"""Options that several commands share, and how option values are parsed: NAME=VALUE, durations, times."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from a2a_fabric.core.errors import BadInput

T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="The node. Default: FABRIC_URL, else the node started last on this machine."
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="KEY", help="Default: FABRIC_TOKEN or FABRIC_PSK, else the key that `up` saved."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all names and whole texts.")]
StoreAddress = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="sqlite:PATH, postgresql://… or nats://…; default: the configured store, else fabric.db in this folder.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Default: fabric.yaml in this folder, if it exists."),
]
AgentsFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--agents",
        metavar="SOURCE",
        help="A file of manifests, a folder of agents, a registry.json, or a URL, instead of those that the "
        "configuration names. Repeatable.",
    ),
]

EnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env-file",
        metavar="FILE",
        help="Variables for env:NAME references. Default: .env beside the configuration. Real variables win.",
    ),
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_value(text: str) -> Any:
    """JSON if the text is JSON, else the text itself."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def split_pairs(pairs: Iterable[str], parse: Callable[[str], T]) -> dict[str, T]:
    """`NAME=VALUE` each. Raises BadInput."""
    values: dict[str, T] = {}
    for pair in pairs:
        name, equals_sign, value = pair.partition("=")
        if not name or not equals_sign:
            raise BadInput(f"'{pair}' is not NAME=VALUE")
        values[name] = parse(value)
    return values


def parse_pairs(pairs: Iterable[str], hint: str) -> dict[str, Any]:
    """Values are JSON or text. Raises BadParameter, which names the option by `hint`."""
    try:
        return split_pairs(pairs, parse_value)
    except BadInput as exc:
        raise typer.BadParameter(exc.message, param_hint=hint) from exc


def parse_duration(text: str, hint: str) -> float:
    """`30d`, `12h`, `90m`, `5s` in seconds. Raises BadParameter, which names the option by `hint`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"'{text}' is not a duration such as 7d or 12h", param_hint=hint)
    return float(match[1]) * _SECONDS[match[2]]


def parse_time(text: str, hint: str) -> float:
    """`2026-11-16T18:00` (in this machine's zone unless it names one), or a duration from now. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        pass
    duration = text.strip().removeprefix("+")
    if _DURATION.fullmatch(duration):
        return time.time() + parse_duration(duration, hint)
    raise typer.BadParameter(
        f"'{text}' is neither a time such as 2026-11-16T18:00 nor a duration such as 10m", param_hint=hint
    )
