"""`a2a-fabric schema`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from a2a_fabric.cli.output import print_json, print_line
from a2a_fabric.cli.reference import agents_schema, fabric_schema, reference


def run(
    which: Annotated[
        Literal["fabric", "agents"], typer.Argument(help="Which file: fabric.yaml or agents.yaml.")
    ] = "fabric",
    page: Annotated[
        bool, typer.Option("--reference", help="Print the reference page of both files instead, as Markdown.")
    ] = False,
) -> None:
    """Print the JSON Schema of a configuration file.

    Editors complete and check a file whose first line names its schema:
    # yaml-language-server: $schema=./fabric.schema.json

    Example: a2a-fabric schema fabric > fabric.schema.json
    """
    if page:
        print_line(reference().rstrip("\n"))
    else:
        print_json(fabric_schema() if which == "fabric" else agents_schema())
