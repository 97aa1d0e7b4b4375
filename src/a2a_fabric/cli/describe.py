"""`a2a-fabric describe`: show everything about one agent."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import complete_agent_ids, connect, run_request
from a2a_fabric.cli.job_text import format_age
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=complete_agent_ids)],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show everything about one agent.

    Example: a2a-fabric describe percy
    """
    view = run_request(connect(url, token), lambda node: node.describe(agent), as_json=as_json)
    if as_json:
        print_json(view)
        return
    print_fields(_build_fields(view))
    for capability in view["capabilities"]:
        print_line()
        _print_capability(agent, capability)


def _build_fields(view: dict[str, Any]) -> list[tuple[str, str]]:
    endpoint = view["endpoint"]
    return [
        ("agent", view["agent_id"]),
        ("name", view["display_name"] if view["display_name"] != view["agent_id"] else ""),
        ("about", view["description"]),
        ("status", view["status"]),
        ("error", view.get("error", "")),
        ("runtime", view["runtime"] or ""),
        ("endpoint", " ".join(filter(None, (endpoint["transport"], endpoint["uri"])))),
        ("node", view["node_id"]),
        ("version", view["version"]),
        ("trust tier", view["trust_tier"]),
        ("tags", ", ".join(view["tags"])),
        ("fallbacks", ", ".join(view["fallbacks"])),
        *((name.removesuffix("_id"), view.get(name) or "") for name in ("audience", "realm", "cog_id", "delegate_id")),
        *_build_registration_fields(view.get("registration")),
    ]


def _build_registration_fields(row: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Whose it is and how long it stays; nothing for an agent of the node's own files."""
    if row is None:
        return []
    condition = " unless it passes a check" if row["renewed_by_checks"] else " unless a heartbeat comes"
    expiry = "" if row["lease_until"] is None else f"{format_age(row['lease_until'])}{condition}"
    return [("registered", f"{format_age(row['registered_at'])} by {row['owner']}"), ("leaves", expiry)]


def _print_capability(agent: str, capability: dict[str, Any]) -> None:
    streams = " (streams)" if capability["streaming"] else ""
    typer.secho(f"{agent} {capability['name']}{streams}", bold=True)
    if capability["description"]:
        print_line(f"  {capability['description']}")
    schema = capability["input_schema"]
    properties: dict[str, Any] = schema.get("properties", {})
    if properties:
        print_table(("argument", "type", "needed", "about"), _build_argument_rows(schema, properties))


def _build_argument_rows(schema: dict[str, Any], properties: dict[str, Any]) -> list[tuple[str, ...]]:
    required = schema.get("required", [])
    return [
        (
            f"  {name}",
            _format_type(property_schema),
            "yes" if name in required else _format_default(property_schema),
            str(property_schema.get("description", "")),
        )
        for name, property_schema in properties.items()
        if isinstance(property_schema, dict)
    ]


def _format_type(property_schema: dict[str, Any]) -> str:
    options = [property_schema, *property_schema.get("anyOf", [])]
    return " | ".join(str(option["type"]) for option in options if "type" in option)


def _format_default(property_schema: dict[str, Any]) -> str:
    return f"no ({property_schema['default']!r})" if "default" in property_schema else "no"
