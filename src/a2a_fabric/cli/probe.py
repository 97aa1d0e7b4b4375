"""`a2a-fabric probe`: detect the protocol of an address or a program, and write its entry for agents.yaml.

With --add, the node that runs with the file probes and writes, since the agent is to be reached from there.

Secrets are replaced in the entry by references to environment variables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from a2a_fabric.admin.agent_changes import AgentPlan, PlanArguments
from a2a_fabric.cli.agent_editing import AgentEditing, plan_here
from a2a_fabric.cli.options import Json, Token, Url, split_pairs
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors

_MAX_SHOWN = 20  # capabilities
_YAML_STYLE: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}


def run(
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND...", help="An address, or a program; after -- if it has options."),
    ],
    add: Annotated[bool, typer.Option("--add", help="Add the agent to agents.yaml.")] = False,
    agents: Annotated[
        Path | None,
        typer.Option("--agents", metavar="FILE", help="The file to add to. Default: that of the node, or agents.yaml."),
    ] = None,
    agent_id: Annotated[str | None, typer.Option("--id", metavar="NAME", help="The agent's id.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header for an address. VALUE may be env:NAME. Repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for a program. VALUE may be env:NAME. Repeatable."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="For each attempt. Default: 5, for a program 15."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Add without asking.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Detect the protocol of an address or program, and add the agent.

    Prints the entry for agents.yaml. A program is started as a node would start it, and always stopped. With --add, the
    node that runs with the file, or that --url names, does all of this; without one, this command does.

    Example: a2a-fabric probe http://127.0.0.1:8001
    """
    with report_errors(as_json=as_json):
        request = PlanArguments(
            source=shlex.join(_split_target(target)),
            agent_id=agent_id,
            headers=split_pairs(header or [], str),
            env=split_pairs(env or [], str),
            timeout_seconds=timeout,
        )
        editing = AgentEditing(url, token, [agents] if agents else ()) if add else None
        plan = plan_here(request, agents) if editing is None else editing.plan(request)
        is_written = editing is not None and bool(plan.entries) and yes
        if as_json:
            if editing is not None and is_written:
                editing.add(plan)
            _print_report(plan, editing, is_added=is_written)
        else:
            _print_plan(plan)
        if plan.found is None:
            raise typer.Exit(1)
        if editing is None or as_json:
            return
        if not plan.entries:
            remark(f"The agent is in {plan.path} already.")
        elif yes or typer.confirm(f"Add it to {plan.path}?", default=True, err=True):
            editing.add(plan)
            editing.report_who_wrote(plan.path)
            remark("Check it with: a2a-fabric check")


def _split_target(target: list[str]) -> tuple[str, ...]:
    """A single argument may be a whole command line."""
    try:
        argv = shlex.split(target[0]) if len(target) == 1 else target
    except ValueError as exc:
        raise typer.BadParameter(f"{exc}") from exc
    if not argv or not argv[0]:
        raise typer.BadParameter("name an address or a program")
    return tuple(argv)


def _print_plan(plan: AgentPlan) -> None:
    """The entry goes to stdout, so that it can be redirected to a file; everything else to stderr."""
    remark(f"Tried {plan.target}")
    width = max((len(attempt["protocol"]) for attempt in plan.attempts), default=0)
    for attempt in plan.attempts:
        sign = "✓" if attempt["found"] else "·"
        remark(f"  {sign} {attempt['protocol'].ljust(width)}  {attempt['outcome']} ({attempt['seconds']:.2f} s)")
    if plan.found is None:
        remark("No protocol was recognised. docs/runtimes.md says how to describe other APIs and programs.")
        return
    _print_capabilities(plan)
    print_line(yaml.safe_dump([plan.found], **_YAML_STYLE).rstrip("\n"))
    for variable in plan.variables:
        remark(f"Set {variable.name} where the node runs ({variable.purpose}).")


def _print_capabilities(plan: AgentPlan) -> None:
    if plan.trouble is not None:
        remark(f"The agent did not list its capabilities: {plan.trouble}")
    for capability in plan.capabilities[:_MAX_SHOWN]:
        description = " ".join(capability.description.split())[:100]
        remark(f"  offers {capability.name}{': ' if description else ''}{description}")
    if len(plan.capabilities) > _MAX_SHOWN:
        remark(f"  and {len(plan.capabilities) - _MAX_SHOWN} more")
    remark("")


def _print_report(plan: AgentPlan, editing: AgentEditing | None, *, is_added: bool) -> None:
    print_json(
        {
            "ok": plan.found is not None,
            "target": plan.target,
            "tried": plan.attempts,
            "manifest": plan.found,
            "capabilities": plan.capabilities,
            "trouble": plan.trouble,
            "variables": plan.variables,
            "path": plan.path,
            "added": is_added,
            "node": None if editing is None else editing.node_url,
        }
    )
