"""`a2a-fabric describe`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.completion import agent_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import ago
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=agent_ids)],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show everything about one agent.

    Example: a2a-fabric describe percy
    """
    found = ask(connect(url, token), lambda node: node.describe(agent), as_json=as_json)
    if as_json:
        print_json(found)
        return
    print_fields(_fields(found))
    for capability in found["capabilities"]:
        print_line()
        _show_capability(agent, capability)


def _fields(found: dict[str, Any]) -> list[tuple[str, str]]:
    endpoint = found["endpoint"]
    return [
        ("agent", found["agent_id"]),
        ("name", found["display_name"] if found["display_name"] != found["agent_id"] else ""),
        ("about", found["description"]),
        ("status", found["status"]),
        ("error", found.get("error", "")),
        ("runtime", found["runtime"] or ""),
        ("endpoint", " ".join(filter(None, (endpoint["transport"], endpoint["uri"])))),
        ("node", found["node_id"]),
        ("version", found["version"]),
        ("trust tier", found["trust_tier"]),
        ("tags", ", ".join(found["tags"])),
        ("fallbacks", ", ".join(found["fallbacks"])),
        *((name.removesuffix("_id"), found.get(name) or "") for name in ("audience", "realm", "cog_id", "delegate_id")),
        *_registration(found.get("registration")),
    ]


def _registration(row: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Whose it is and how long it stays; nothing for an agent of the node's own files."""
    if row is None:
        return []
    kept = " unless it passes a check" if row["renewed_by_checks"] else " unless a heartbeat comes"
    leaves = "" if row["lease_until"] is None else f"{ago(row['lease_until'])}{kept}"
    return [("registered", f"{ago(row['registered_at'])} by {row['owner']}"), ("leaves", leaves)]


def _show_capability(agent: str, capability: dict[str, Any]) -> None:
    streams = " (streams)" if capability["streaming"] else ""
    typer.secho(f"{agent} {capability['name']}{streams}", bold=True)
    if capability["description"]:
        print_line(f"  {capability['description']}")
    schema = capability["input_schema"]
    properties: dict[str, Any] = schema.get("properties", {})
    if properties:
        print_table(("argument", "type", "needed", "about"), _arguments(schema, properties))


def _arguments(schema: dict[str, Any], properties: dict[str, Any]) -> list[tuple[str, ...]]:
    required = schema.get("required", [])
    return [
        (f"  {name}", _type(about), "yes" if name in required else _default(about), str(about.get("description", "")))
        for name, about in properties.items()
        if isinstance(about, dict)
    ]


def _type(about: dict[str, Any]) -> str:
    options = [about, *about.get("anyOf", [])]
    return " | ".join(str(option["type"]) for option in options if "type" in option)


def _default(about: dict[str, Any]) -> str:
    return f"no ({about['default']!r})" if "default" in about else "no"
