"""`a2a-fabric version`: print the version."""

from __future__ import annotations

import platform
from typing import Annotated

import msgspec
import typer

from a2a_fabric.version import PROTOCOL_VERSION, __version__


def run(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Print the version.

    Example: a2a-fabric version
    """
    versions = {"version": __version__, "protocol": PROTOCOL_VERSION, "python": platform.python_version()}
    if as_json:
        typer.echo(msgspec.json.encode(versions).decode())
    else:
        typer.echo(f"a2a-fabric {__version__} ({PROTOCOL_VERSION}, Python {versions['python']})")
