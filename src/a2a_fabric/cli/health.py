"""`a2a-fabric health`: show the state of a node and its agents."""

from __future__ import annotations

from typing import Any

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_fields, print_json


def run(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how a node and its agents are.

    Example: a2a-fabric health
    """
    client = connect(url, token)
    health = run_request(client, lambda node: node.health(), as_json=as_json)
    if as_json:
        print_json(health)
    else:
        print_fields([("url", client.url), *_build_fields(health)])


def _build_fields(health: dict[str, Any]) -> list[tuple[str, str]]:
    states = ", ".join(f"{count} {state}" for state, count in health["runtimes"].items() if count)
    fields = [
        ("node", health["node_id"]),
        ("version", f"{health['software_version']} ({health['version']})"),
        ("up for", f"{health['uptime_seconds']:.0f} s"),
        ("registry", health["registry"]),
        ("agents", f"{health['agents']['count']} ({states})" if states else "none"),
        ("tools", str(health["tools"]["builtin_count"])),
    ]
    fields += [("problem", f"{source}: {problem}") for source, problem in health["problems"].items()]
    return fields + [("offline", f"{agent}: {reason}") for agent, reason in health["agents"]["errors"].items()]
