"""`a2a-fabric probe`: detect the protocol of an address or a program, and write its entry for agents.yaml.

Secrets are replaced in the entry by references to environment variables."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from a2a_fabric.admin.probe import ProbeOutcome, ProbeTarget, run_probe
from a2a_fabric.cli.node_setup import AGENTS_FILE
from a2a_fabric.cli.options import Json, split_pairs
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.config import read_environment
from a2a_fabric.importing.agents_yaml import add_entries
from a2a_fabric.importing.files import read_text, replace_text
from a2a_fabric.registry.sources.files import read_manifests

_MAX_SHOWN = 20  # capabilities
_YAML_STYLE: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}


def run(
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND...", help="An address, or a program; after -- if it has options."),
    ],
    add: Annotated[bool, typer.Option("--add", help="Add the agent to agents.yaml.")] = False,
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="The file to add to.")] = Path(AGENTS_FILE),
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
) -> None:
    """Detect the protocol of an address or program, and add the agent.

    Prints the entry for agents.yaml. A program is started as a node would start it, and always stopped.

    Example: a2a-fabric probe http://127.0.0.1:8001
    """
    with report_errors(as_json=as_json):
        before = read_text(agents) or ""
        present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
        probe_target = ProbeTarget(
            argv=_split_target(target),
            headers=split_pairs(header or [], str),
            env=split_pairs(env or [], str),
            timeout=timeout,
        )
        outcome = asyncio.run(run_probe(probe_target, agent_id, present, read_environment()))
        entries = [outcome.entry] if add and outcome.entry is not None and not outcome.is_present else []
        after = add_entries(before, entries, str(agents))
        if as_json:
            _print_report(outcome, agents, is_added=yes and after != before)
        else:
            _print_outcome(outcome)
        if outcome.entry is None:
            raise typer.Exit(1)
        if after != before and (yes or (not as_json and typer.confirm(f"Add it to {agents}?", default=True, err=True))):
            replace_text(agents, after)
            if not as_json:
                remark(f"Added to {agents}. Check it with: a2a-fabric check")
        elif add and outcome.is_present and not as_json:
            remark(f"The agent is in {agents} already.")


def _split_target(target: list[str]) -> tuple[str, ...]:
    """A single argument may be a whole command line."""
    try:
        argv = shlex.split(target[0]) if len(target) == 1 else target
    except ValueError as exc:
        raise typer.BadParameter(f"{exc}") from exc
    if not argv or not argv[0]:
        raise typer.BadParameter("name an address or a program")
    return tuple(argv)


def _print_outcome(outcome: ProbeOutcome) -> None:
    """The entry goes to stdout, so that it can be redirected to a file; everything else to stderr."""
    attempts = outcome.report.attempts
    remark(f"Tried {outcome.report.target}")
    width = max((len(attempt.protocol) for attempt in attempts), default=0)
    for attempt in attempts:
        sign = "✓" if attempt.finding else "·"
        remark(f"  {sign} {attempt.protocol.ljust(width)}  {attempt.outcome} ({attempt.seconds:.2f} s)")
    if outcome.entry is None:
        remark("No protocol was recognised. docs/runtimes.md says how to describe other APIs and programs.")
        return
    _print_capabilities(outcome)
    print_line(yaml.safe_dump([outcome.entry], **_YAML_STYLE).rstrip("\n"))
    for variable in outcome.variables:
        remark(f"Set {variable.name} where the node runs ({variable.purpose}).")


def _print_capabilities(outcome: ProbeOutcome) -> None:
    if outcome.trouble is not None:
        remark(f"The agent did not list its capabilities: {outcome.trouble}")
    for capability in outcome.capabilities[:_MAX_SHOWN]:
        description = " ".join(capability.description.split())[:100]
        remark(f"  offers {capability.name}{': ' if description else ''}{description}")
    if len(outcome.capabilities) > _MAX_SHOWN:
        remark(f"  and {len(outcome.capabilities) - _MAX_SHOWN} more")
    remark("")


def _print_report(outcome: ProbeOutcome, agents: Path, *, is_added: bool) -> None:
    attempts = [
        {
            "protocol": attempt.protocol,
            "outcome": attempt.outcome,
            "seconds": round(attempt.seconds, 3),
            "found": bool(attempt.finding),
        }
        for attempt in outcome.report.attempts
    ]
    print_json(
        {
            "ok": outcome.entry is not None,
            "target": outcome.report.target,
            "tried": attempts,
            "manifest": outcome.entry,
            "capabilities": outcome.capabilities,
            "trouble": outcome.trouble,
            "variables": outcome.variables,
            "path": str(agents),
            "added": is_added,
        }
    )
