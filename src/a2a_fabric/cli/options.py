"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
