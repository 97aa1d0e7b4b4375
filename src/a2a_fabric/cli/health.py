"""`a2a-fabric health`"""

from __future__ import annotations

from typing import Any

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_fields, print_json


def run(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how a node and its agents are.

    Example: a2a-fabric health
    """
    client = connect(url, token)
    found = ask(client, lambda node: node.health(), as_json=as_json)
    if as_json:
        print_json(found)
    else:
        print_fields([("url", client.url), *_fields(found)])


def _fields(found: dict[str, Any]) -> list[tuple[str, str]]:
    states = ", ".join(f"{count} {state}" for state, count in found["runtimes"].items() if count)
    fields = [
        ("node", found["node_id"]),
        ("version", f"{found['software_version']} ({found['version']})"),
        ("up for", f"{found['uptime_seconds']:.0f} s"),
        ("registry", found["registry"]),
        ("agents", f"{found['agents']['count']} ({states})" if states else "none"),
        ("tools", str(found["tools"]["builtin_count"])),
    ]
    fields += [("problem", f"{where}: {what}") for where, what in found["problems"].items()]
    return fields + [("offline", f"{agent}: {why}") for agent, why in found["agents"]["errors"].items()]
