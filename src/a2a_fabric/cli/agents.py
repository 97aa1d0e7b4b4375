"""What a node offers: the commands `agents`, `search`, `describe`, `route` and `health`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import complete_agent_ids, complete_capabilities, connect, run_request
from a2a_fabric.cli.options import Json, Token, Url, Wide
from a2a_fabric.cli.output import (
    clip_text,
    format_age,
    format_duration,
    print_fields,
    print_json,
    print_line,
    print_table,
    remark,
    shorten_names,
)
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.agent import Status, TrustTier

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=complete_agent_ids)]
CapabilityFilter = Annotated[str | None, typer.Option(help="Only agents with this capability.")]

_MAX_DESCRIPTION = 100  # characters in a list


def list_agents(
    capability: CapabilityFilter = None,
    tag: Annotated[str | None, typer.Option(help="Only agents with this tag.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only agents with this status.")] = None,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the agents of a node.

    Example: a2a-fabric agents --capability summarize
    """
    client = connect(url, token)

    async def ask(node: FabricClient) -> tuple[list[dict[str, Any]], list[str]]:
        return await node.agents(capability, tag, status), (await node.health()).get("notices", [])

    agents, notices = run_request(client, ask, as_json=as_json)
    for notice in notices:
        remark(f"Note: {notice}")
    if as_json:
        print_json({"agents": agents, "count": len(agents)})
    elif agents:
        rows = [_build_agent_row(agent, wide) for agent in agents]
        print_table(("agent", "status", "runtime", "capabilities", "description"), rows)
    elif capability or tag or status:
        remark(f"No agent at {client.url} matches. List all of them with: a2a-fabric agents")
    else:
        remark(f"The node at {client.url} has no agents. Add one with: a2a-fabric probe URL --add")


def _build_agent_row(agent: dict[str, Any], wide: bool) -> tuple[str, ...]:
    names = shorten_names([capability["name"] for capability in agent["capabilities"]], wide=wide)
    description = agent["description"] or agent.get("error", "")
    if not wide:
        description = clip_text(description, _MAX_DESCRIPTION)
    return agent["agent_id"], agent["status"], agent["runtime"] or "", names, description


def enable_agent(agent: AgentId, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Switch an agent on that was switched off.

    Example: a2a-fabric agents enable percy
    """
    _switch(agent, url, token, on=True, as_json=as_json)


def disable_agent(agent: AgentId, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Switch an agent off: it is neither listed nor called.

    The node writes it into the agents.yaml that declares the agent. Needs the node's own key, or an operator's.

    Example: a2a-fabric agents disable percy
    """
    _switch(agent, url, token, on=False, as_json=as_json)


def _switch(agent: str, url: str | None, token: str | None, *, on: bool, as_json: bool) -> None:
    client = connect(url, token)
    done = run_request(client, lambda node: node.administer("agent.switch", agent_id=agent, on=on), as_json=as_json)
    if as_json:
        print_json({"agent_id": agent, "on": done["on"], "file": done["path"]})
    else:
        print_line(f"{agent} is switched {'on' if on else 'off'} in {done['path']}")


def search_agents(
    words: Annotated[
        list[str] | None, typer.Argument(help="The task in words. Without words, all agents that match the filters.")
    ] = None,
    capability: CapabilityFilter = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only agents with this tag. Repeatable: any of them.")] = None,
    trust: Annotated[TrustTier | None, typer.Option(help="Only agents of this trust tier.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The most agents to show.")] = 10,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Find agents for a task, the best first, and show why they match.

    Example: a2a-fabric search summarize a text
    """
    client = connect(url, token)
    query = " ".join(words or ())
    hits = run_request(
        client,
        lambda node: node.search(query, capability=capability, tag=tag, trust_tier=trust, limit=limit),
        as_json=as_json,
    )
    if as_json:
        print_json({"results": hits, "count": len(hits)})
    elif hits:
        print_table(("score", "agent", "status", "capabilities", "why"), [_build_hit_row(hit, wide) for hit in hits])
    else:
        remark(f"No agent at {client.url} matches. List all of them with: a2a-fabric agents")


def _build_hit_row(hit: dict[str, Any], wide: bool) -> tuple[str, ...]:
    reasons = "; ".join(hit["why"] if wide else hit["why"][:2])
    names = shorten_names(hit["capabilities"], wide=wide)
    return str(hit["score"]), hit["agent_id"], hit["status"], names, reasons


def describe_agent(agent: AgentId, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show everything about one agent.

    Example: a2a-fabric describe percy
    """
    view = run_request(connect(url, token), lambda node: node.describe(agent), as_json=as_json)
    if as_json:
        print_json(view)
        return
    print_fields(_build_agent_fields(view))
    for capability in view["capabilities"]:
        print_line()
        _print_capability(agent, capability)


def _build_agent_fields(view: dict[str, Any]) -> list[tuple[str, str]]:
    endpoint = view["endpoint"]
    return [
        ("agent", view["agent_id"]),
        ("name", view["display_name"] if view["display_name"] != view["agent_id"] else ""),
        ("role", view.get("role", "")),
        ("about", view["description"]),
        ("status", view["status"]),
        ("error", view.get("error", "")),
        ("held back", ", ".join(view.get("held_tools", ()))),
        ("runtime", view["runtime"] or ""),
        ("endpoint", " ".join(filter(None, (endpoint["transport"], endpoint["uri"])))),
        ("node", view["node_id"]),
        ("version", view["version"]),
        ("trust tier", view["trust_tier"]),
        ("tags", ", ".join(view["tags"])),
        ("fallbacks", ", ".join(view["fallbacks"])),
        *((name.removesuffix("_id"), view.get(name) or "") for name in ("audience", "realm", "cog_id", "delegate_id")),
        ("signals", ", ".join(view.get("signals", ()))),
        ("provider", " ".join(filter(None, (view.get("provider") or {}).values()))),
        ("comes from", _describe_origin(view.get("origin"))),
        *_build_registration_fields(view.get("registration")),
    ]


def _describe_origin(origin: dict[str, Any] | None) -> str:
    """Repository and commit, address, or folder; empty for an agent that is not federated."""
    if origin is None:
        return ""
    place = origin.get("url") or origin.get("folder", "")
    return " ".join(filter(None, (origin["location"], place, origin.get("commit") or origin.get("ref", ""))))


def _build_registration_fields(row: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Owner and lease; nothing for an agent that is declared in the node's own files."""
    if row is None:
        return []
    condition = " unless it passes a check" if row["renewed_by_checks"] else " unless a heartbeat comes"
    expiry = "" if row["lease_until"] is None else f"{format_age(row['lease_until'])}{condition}"
    return [("registered", f"{format_age(row['registered_at'])} by {row['owner']}"), ("expires", expiry)]


def _print_capability(agent: str, capability: dict[str, Any]) -> None:
    streams = " (streams)" if capability["streaming"] else ""
    typer.secho(f"{agent} {capability['name']}{streams}", bold=True)
    if capability.get("changed_since_approval"):
        print_line(f"  It says something else than when it was approved. See: a2a-fabric tools diff {agent}")
    if capability["description"]:
        print_line(f"  {capability['description']}")
    schema = capability["input_schema"]
    arguments = {name: part for name, part in schema.get("properties", {}).items() if isinstance(part, dict)}
    if arguments:
        required = schema.get("required", [])
        rows = [_build_argument_row(name, part, is_required=name in required) for name, part in arguments.items()]
        print_table(("argument", "type", "required", "about"), rows)


def _build_argument_row(name: str, schema: dict[str, Any], *, is_required: bool) -> tuple[str, ...]:
    types = " | ".join(str(option["type"]) for option in (schema, *schema.get("anyOf", [])) if "type" in option)
    default = f"no ({schema['default']!r})" if "default" in schema else "no"
    return name, types, "yes" if is_required else default, str(schema.get("description", ""))


def show_route(
    agent: AgentId,
    capability: Annotated[
        str, typer.Argument(metavar="CAPABILITY", help="The capability.", autocompletion=complete_capabilities)
    ],
    stream: Annotated[bool, typer.Option("--stream", help="Plan for a call that is streamed.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show which agents would answer a call, in which order, and why.

    Example: a2a-fabric route scribe summarize
    """
    plan = run_request(connect(url, token), lambda node: node.route(agent, capability, stream), as_json=as_json)
    if as_json:
        print_json(plan)
        return
    if not plan["policy"]["allowed"]:
        remark(f"No agent would be called. {plan['policy']['reason']}")
        raise typer.Exit(1)
    rows: list[tuple[str, ...]] = [("1", plan["selected_agent"], "", plan["policy"]["reason"])]
    rows += [(str(n), hop["agent_id"], hop["tier"], hop["reason"]) for n, hop in enumerate(plan["fallbacks"], start=2)]
    rows += [("-", refused["agent_id"], "refused", refused["reason"]) for refused in plan["refused"]]
    print_table(("order", "agent", "tier", "why"), rows)
    if "node" in plan:  # in a mesh
        remark(f"The call would go to node {plan['node']}: {plan['node_reason']}")


def list_nodes(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the nodes of the mesh: version, site, agents, load, age.

    Example: a2a-fabric nodes
    """
    client = connect(url, token)
    nodes = run_request(client, lambda node: node.nodes(), as_json=as_json)
    if as_json:
        print_json({"nodes": nodes, "count": len(nodes)})
        return
    if not nodes:
        remark(f"The node at {client.url} is in no mesh. Join one with `mesh:` in fabric.yaml")
        return
    rows = [_build_node_row(each, "here" if each is nodes[0] else f"{each['heard_seconds']:g} s ago") for each in nodes]
    print_table(("node", "site", "state", "agents", "calls", "version", "up for", "heard"), rows)
    if problem := nodes[0].get("problem"):
        remark(f"{nodes[0]['member']} is not in the mesh: {problem}")
    for node in nodes[1:]:
        if problem := node.get("problem"):
            remark(f"{node['member']} is not taken in: {problem}")


def _build_node_row(node: dict[str, Any], last_heard: str) -> tuple[str, ...]:
    age = format_duration(max(0.0, time.time() - node["started_at"]))
    counts = (str(node["agents"]), str(node["calls"]))
    return (node["member"], node["site"], node["state"], *counts, node["version"], age, last_heard)


def show_health(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the health of a node and its agents.

    Example: a2a-fabric health
    """
    client = connect(url, token)
    health = run_request(client, lambda node: node.health(), as_json=as_json)
    if as_json:
        print_json(health)
        return
    states = ", ".join(f"{count} {state}" for state, count in health["runtimes"].items() if count)
    fields = [
        ("url", client.url),
        ("node", health["node_id"]),
        ("version", f"{health['software_version']} ({health['version']})"),
        ("up for", f"{health['uptime_seconds']:.0f} s"),
        ("registry", health["registry"]),
        ("agents", f"{health['agents']['count']} ({states})" if states else "none"),
        ("tools", str(health["tools"]["builtin_count"])),
    ]
    if mesh := health.get("mesh"):
        count = mesh["nodes"]
        fields.append(("mesh", mesh["problem"] or ("1 node" if count == 1 else f"{count} nodes")))
    fields += [("note", notice) for notice in health.get("notices", [])]
    fields += [("problem", f"{source}: {problem}") for source, problem in health["problems"].items()]
    fields += [("offline", f"{agent}: {reason}") for agent, reason in health["agents"]["errors"].items()]
    if more := health["agents"].get("more_errors"):
        fields.append(("offline", f"{more} more; list them with: a2a-fabric agents --status offline"))
    print_fields(fields)
