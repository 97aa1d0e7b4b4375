"""`a2a-fabric identity`: the key with which a node signs. These commands need no running node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.options import ConfigFile, Json, parse_duration
from a2a_fabric.cli.output import format_age, print_fields, print_json, print_line, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.config import read_environment
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.node.identity import resolve_identity_path


def show_identity(
    config: ConfigFile = None,
    create: Annotated[bool, typer.Option("--create", help="Make the key if there is none.")] = False,
    as_json: Json = False,
) -> None:
    """Show the public keys of the node: the current one, and those before it that still count.

    The JSON is a JSON Web Key Set, as other nodes and agents take it (`jwks_file`, `NodeIdentityVerifier`).

    Example: a2a-fabric identity show --create --json > public-keys.json
    """
    keys = open_keys(config)
    if create:
        keys.get()
    published = keys.list_public()
    if as_json:
        print_json({"keys": published})
    elif not published:
        print_line(f"{keys.path}: the node has no key yet; it makes one when it first signs")
        remark(f"Make it now with: {NAME} identity show --create")
    else:
        print_fields(
            [
                (each["kid"], "signs" if "exp" not in each else f"signs no more; ends {format_age(each['exp'])}")
                for each in published
            ]
        )


def rotate_identity(
    config: ConfigFile = None,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="How long the old key still counts: 1h, 1d.")
    ] = "1d",
    as_json: Json = False,
) -> None:
    """Make a new key for the node. A running node signs with it within a second.

    Example: a2a-fabric identity rotate --overlap 1h
    """
    keys = open_keys(config)
    key = keys.rotate(parse_duration(overlap, "--overlap"))
    if as_json:
        print_json({"keys": keys.list_public()})
        return
    print_line(f"{keys.path}: the node signs with {key.key_id} from now on")
    remark(f"Receivers that have the keys in a file need the new {keys.public_path.name}")


def open_keys(config_file: Path | None) -> NodeKeys:
    environ = read_environment()
    setup = plan_setup(config_file, (), None, environ)
    return NodeKeys(resolve_identity_path(setup.config, setup.base or Path.cwd(), environ))
