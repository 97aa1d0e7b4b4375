"""Options that several commands share, and NAME=VALUE arguments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="The node. Default: FABRIC_URL, else the one started last on this machine."
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="KEY", help="Default: FABRIC_TOKEN or FABRIC_PSK, else the key that `up` keeps."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
StoreAddress = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="sqlite:PATH or postgresql://…; default: what the configuration says, else fabric.db in this folder.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Default: fabric.yaml in this folder, if there is one."),
]
AgentsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--agents", metavar="FILE", help="Manifests, instead of those that the configuration names. Repeatable."
    ),
]


def parse_pairs(arguments: Iterable[str], hint: str) -> dict[str, Any]:
    """Raises BadParameter, which names the option by `hint`."""
    pairs: dict[str, Any] = {}
    for pair in arguments:
        name, is_pair, value = pair.partition("=")
        if not name or not is_pair:
            raise typer.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint=hint)
        pairs[name] = _parse_value(value)
    return pairs


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
